"""Mixed precision: products in bfloat16 over parameters, activations and gradients in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_dtype: ContextVar[str | None] = ContextVar("bertcore_autocast", default=None)


@contextmanager
def autocast(dtype: str) -> Iterator[None]:
    """Multiply by the weights of linear maps in bfloat16 within a `with` block, for this thread or task alone.

        with autocast("bfloat16"):
            out, grads = value_and_grad(model)(**batch)

    It concerns models in float32, on the CPU. Both factors of each product, forward and backward, are rounded to
    bfloat16, and their products summed in float32; the parameters, their gradients and all else stay float32
    (Kalamkar et al. 2019, arXiv:1905.12322). A CPU that multiplies bfloat16 faster than float32 gains by it; on others
    the backend numba rounds the weights alone.

    Raises:
        ValueError: for another dtype than "bfloat16"; from a model's call, on a GPU.
    """
    if dtype != "bfloat16":
        raise ValueError(f"dtype is {dtype!r}, expected 'bfloat16'")
    token = _dtype.set(dtype)
    try:
        yield
    finally:
        _dtype.reset(token)


autocast_dtype = _dtype.get
"""The dtype of `autocast` here; None outside of it."""
