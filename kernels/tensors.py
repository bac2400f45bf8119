"""The memory of PyTorch tensors as NumPy and CuPy arrays, without a copy (DLPack)."""

import importlib
from typing import Any

import numpy as np

from .own_name import PACKAGE


def array_of(name: str, tensor: Any) -> tuple[Any, str]:
    """Return the NumPy or CuPy array of a tensor's memory, and its home: "host" or "GPU".

    Raises TypeError, with the tensor's `name`, if it needs autograd, or if its memory does not hold its values.
    """
    torch = importlib.import_module("torch")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise TypeError(
            f"{name} requires grad, but PyTorch's autograd cannot differentiate {PACKAGE}: "
            f"pass {name}.detach(), or call under torch.no_grad()"
        )
    kinds = {
        "meta": tensor.is_meta,
        "sparse": tensor.layout != torch.strided,
        "quantized": tensor.is_quantized,
        "conjugated or negated": tensor.is_conj() or tensor.is_neg(),
    }
    for kind, is_it in kinds.items():
        if is_it:
            raise TypeError(f"{name} is a {kind} tensor, expected a dense one with memory of its own values")
    tensor = tensor.detach()
    if tensor.is_cuda:
        return importlib.import_module("cupy").from_dlpack(tensor), "GPU"
    if tensor.dtype == torch.bfloat16:
        raise TypeError(f"{name} is a bfloat16 tensor in host memory, which NumPy cannot hold: pass {name}.float()")
    return np.from_dlpack(tensor), "host"


def tensor_of(array: Any) -> Any:
    """Return a tensor of the memory of an array; None for None."""
    return None if array is None else importlib.import_module("torch").from_dlpack(array)
