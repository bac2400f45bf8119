"""The types of arrays in annotations."""

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:  # neither library is imported before its first use
    import cupy
    import numpy as np
    import torch
    from numpy.typing import ArrayLike as _ArrayLike

    Array: TypeAlias = np.ndarray | cupy.ndarray | torch.Tensor
    """An array of NumPy, CuPy or PyTorch."""
    NativeArray: TypeAlias = np.ndarray | cupy.ndarray
    """An array of NumPy or CuPy."""
    ArrayLike: TypeAlias = _ArrayLike | cupy.ndarray
    """Numbers in lists or an array of NumPy or CuPy."""
else:
    Array = NativeArray = ArrayLike = Any

ArrayT = TypeVar("ArrayT", bound="np.ndarray | cupy.ndarray | torch.Tensor")
"""The kind of array that came in, for functions that return the same kind."""
