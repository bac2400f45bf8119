"""The blocks that models are assembled from, built on bertcore.kernels."""
