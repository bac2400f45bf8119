"""Fixtures of the kernels' tests."""

from tests.kernels.cuda_support import cuda, dtype, gpu, place  # noqa: F401
