"""The GPU at hand in one command: is every kernel right, is a model of every family right, how fast are they.

    python -m bench.gpu [--quick] [--csv results.csv]

Needs NumPy, ml_dtypes and CuPy, and no installation: a folder with bertcore/, bench/ and tests/, and with kernels/
copied to bertcore/kernels, is enough on PYTHONPATH.
"""
