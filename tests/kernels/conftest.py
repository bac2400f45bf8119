"""Fixtures of the kernels' tests."""

from tests.kernels.cuda_support import cuda, dtype, gpu  # noqa: F401
