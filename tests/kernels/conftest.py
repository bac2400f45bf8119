"""Fixtures of the kernels' tests."""

from tests.kernels.cuda_support import cuda, gpu  # noqa: F401
