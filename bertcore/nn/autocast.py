"""Mixed precision: what computes in 16 bits over parameters in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

AUTOCAST = "bfloat16", "float16"

_dtype: ContextVar[str | None] = ContextVar("bertcore_autocast", default=None)


@contextmanager
def autocast(dtype: str) -> Iterator[None]:
    """Compute in 16 bits with a model in float32 within a `with` block, for this thread or task alone.

        with autocast("bfloat16"):
            out, grads = value_and_grad(model)(**batch)

    The parameters and their gradients stay float32 (Kalamkar et al. 2019, arXiv:1905.12322). On the CPU, "bfloat16"
    alone, both factors of each product with the weight of a linear map, forward and backward, are rounded, and their
    products summed in float32; all else is float32. A CPU that multiplies bfloat16 faster than float32 gains by it; on
    others the backend numba rounds the weights alone. On a GPU all parameters are rounded, and activations and their
    gradients are of `dtype`; sums of products, norms, softmaxes and losses are float32. Gradients in "float16" may
    vanish: see `TrainingArguments(fp16=True)`.

    Raises:
        ValueError: for another dtype; from a model's call, for "float16" on the CPU.
    """
    if dtype not in AUTOCAST:
        raise ValueError(f"dtype is {dtype!r}, expected {' or '.join(map(repr, AUTOCAST))}")
    token = _dtype.set(dtype)
    try:
        yield
    finally:
        _dtype.reset(token)


autocast_dtype = _dtype.get
"""The dtype of `autocast` here; None outside of it."""
