"""The blocks from which models are assembled, built on bertcore.kernels."""
