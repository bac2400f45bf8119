"""Numeric kernels of bertcore: plain functions over NumPy, CuPy and PyTorch arrays."""
