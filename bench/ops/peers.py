"""The same cases in PyTorch (torch.nn.functional) on the CPU, for comparison: --peers."""

import importlib
import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from bench.ops.calls import split_qkv
from bench.ops.cases import FORWARD, Case


def torch_unavailable_reason(case: Case) -> str | None:
    """Why PyTorch cannot run the case, or None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed: pip install torch"
    if case.op == "dropout":
        return "PyTorch drops other elements: its results cannot be checked"
    offsets = case.inputs.get("cu_seqlens")
    if offsets is not None and len(set(np.diff(offsets))) > 1:
        return "torch.nn.functional has no attention over packed texts of different lengths"
    return None


def bind_torch(case: Case, inputs: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The call to time, on as many threads as our kernels use; its results are those of the case."""
    from bertcore.kernels import _numba

    torch = importlib.import_module("torch")
    torch.set_num_threads(_numba.num_threads())
    tensors = {name: torch.from_numpy(it) if isinstance(it, np.ndarray) else it for name, it in inputs.items()}
    a = SimpleNamespace(**split_qkv(tensors))
    function, differentiable = _PEERS["relative" if "position_key" in inputs else case.op]
    leaves = [getattr(a, name) for name in differentiable]
    names = ("output", *(f"grad_{name}" for name in differentiable))

    def forward() -> dict[str, Any]:
        with torch.inference_mode():
            return {"output": function(torch.nn.functional, a)}

    def training() -> dict[str, Any]:
        output = function(torch.nn.functional, a)
        return dict(zip(names, (output, *torch.autograd.grad(output, leaves, a.grad_output)), strict=True))

    if case.direction == FORWARD:
        return forward
    for leaf in leaves:
        leaf.requires_grad_()
    return training


def _softmax(functional, a):
    return functional.softmax(a.input, -1)


def _layer_norm(functional, a):
    x = a.input if a.residual is None else a.input + a.residual
    return functional.layer_norm(x, x.shape[-1:], a.weight, a.bias)


def _rms_norm(functional, a):
    return functional.rms_norm(a.input, a.input.shape[-1:], a.weight, 1e-6)


def _affine(functional, a):
    return (a.input + a.residual) * a.weight + a.bias


def _rotary(functional, a):
    half, texts = a.cos.shape[1], len(a.cu_seqlens) - 1
    cos, sin = (table.tile(texts, 1)[:, None, None] for table in (a.cos, a.sin))
    first, second, rest = a.input[..., :half], a.input[..., half : 2 * half], a.input[..., 2 * half :]
    return importlib.import_module("torch").cat((first * cos - second * sin, first * sin + second * cos, rest), -1)


def _gelu(functional, a):
    return functional.gelu(a.input + a.bias, approximate=a.approximate)


def _activation(functional, a):
    return getattr(functional, a.activation)(a.input)


def _gated_activation(functional, a):
    gate, value = a.input.chunk(2, -1)
    return getattr(functional, a.activation)(gate) * value


def _linear(functional, a):
    output = functional.linear(a.input, a.weight, a.bias)
    if a.activation is not None:
        output = getattr(functional, a.activation)(output)
    return output if a.residual is None else output + a.residual


def _attention(functional, a):
    arrays = (a.query, a.key, a.value)
    if a.cu_seqlens is None:
        return functional.scaled_dot_product_attention(*arrays)
    texts, (_, heads, head_dim) = len(a.cu_seqlens) - 1, a.query.shape
    arrays = (array.reshape(texts, -1, heads, head_dim).transpose(1, 2) for array in arrays)
    return functional.scaled_dot_product_attention(*arrays).transpose(1, 2).reshape(-1, heads, head_dim)


def _relative_attention(functional, a):
    texts, (tokens, heads, head_dim) = len(a.cu_seqlens) - 1, a.query.shape
    query, key, value = (
        array.reshape(texts, -1, heads, head_dim).transpose(1, 2) for array in (a.query, a.key, a.value)
    )
    position, last = a.cu_seqlens.new_ones(tokens // texts).cumsum(0), len(a.distance_rows) // 2
    rows = a.distance_rows[(position[:, None] - position).clamp(-last, last) + last]
    shape = (texts, heads, *rows.shape)
    scores = query @ key.mT
    scores = scores + (query @ a.position_key.permute(1, 2, 0)).gather(-1, rows.expand(shape))
    scores = scores + (key @ a.position_query.permute(1, 2, 0)).gather(-1, rows.mT.expand(shape)).mT
    output = functional.softmax(scores * head_dim**-0.5, -1) @ value
    return output.transpose(1, 2).reshape(tokens, heads, head_dim)


def _embedding(functional, a):
    return functional.embedding(a.input, a.weight)


def _cross_entropy(functional, a):
    return functional.cross_entropy(a.input, a.target)


_PEERS = {  # the function, and what has a gradient
    "softmax": (_softmax, ("input",)),
    "layer_norm": (_layer_norm, ("input", "weight", "bias")),
    "rms_norm": (_rms_norm, ("input", "weight")),
    "affine": (_affine, ("input", "weight", "bias")),
    "rotary": (_rotary, ("input",)),
    "gelu": (_gelu, ("input", "bias")),
    "activation": (_activation, ("input",)),
    "gated_activation": (_gated_activation, ("input",)),
    "linear": (_linear, ("input", "weight", "bias")),
    "attention": (_attention, ("query", "key", "value")),
    "relative": (_relative_attention, ("query", "key", "value", "position_key", "position_query")),
    "embedding": (_embedding, ("weight",)),
    "cross_entropy": (_cross_entropy, ("input",)),
}
