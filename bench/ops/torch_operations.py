"""Each operation in PyTorch (torch.nn.functional), for the benchmarks' times and the tests' comparisons.

Arguments are those of the public forward, by name, arrays as tensors. Of attention and rotary embeddings, whose packed
form PyTorch has not, there is what the benchmarks time: packed sequences of one length.
"""

import importlib
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any


def in_torch(operation: str, arguments: dict[str, Any]) -> Any:
    """Return the output of an operation, differentiable by PyTorch."""
    return torch_function(operation)(**arguments)


def torch_function(operation: str) -> Callable[..., Any]:
    """The same as a function of the arguments, which imports nothing when it is called: torch.compile can follow it."""
    return partial(_OPERATIONS[operation], importlib.import_module("torch.nn.functional"))


def _added(x, other):
    return x if other is None else x + other


def _activation(functional, input, activation):
    if activation is None:
        return input
    if activation == "gelu_tanh":
        return functional.gelu(input, approximate="tanh")
    return getattr(functional, activation)(input)


def _softmax(functional, input, dim=-1):
    return functional.softmax(input, dim)


def _layer_norm(functional, input, weight=None, bias=None, eps=1e-5, residual=None):
    return functional.layer_norm(_added(input, residual), input.shape[-1:], weight, bias, eps)


def _rms_norm(functional, input, weight=None, eps=1e-6, residual=None):
    return functional.rms_norm(_added(input, residual), input.shape[-1:], weight, eps)


def _affine(functional, input, weight, bias, residual=None):
    return _added(input, residual) * weight + bias


def _rotary(functional, input, cos, sin, cu_seqlens):
    half, texts = cos.shape[1], len(cu_seqlens) - 1
    cos, sin = (table.tile(texts, 1)[:, None, None] for table in (cos, sin))
    first, second, rest = input[..., :half], input[..., half : 2 * half], input[..., 2 * half :]
    return importlib.import_module("torch").cat((first * cos - second * sin, first * sin + second * cos, rest), -1)


def _gelu(functional, input, approximate="none", bias=None):
    return functional.gelu(_added(input, bias), approximate=approximate)


def _gated_activation(functional, input, activation, gate="first"):
    first, second = input.chunk(2, -1)
    gate, value = (first, second) if gate == "first" else (second, first)
    return _activation(functional, gate, activation) * value


def _linear(functional, input, weight, bias=None, activation=None, residual=None):
    return _added(_activation(functional, functional.linear(input, weight, bias), activation), residual)


def _attention(functional, query, key, value, cu_seqlens=None, bias=None, position_key=None, **relative):
    if cu_seqlens is None:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    texts, (tokens, heads, head_dim) = len(cu_seqlens) - 1, query.shape
    arrays = (array.reshape(texts, -1, heads, head_dim).transpose(1, 2) for array in (query, key, value))
    if position_key is None:
        output = functional.scaled_dot_product_attention(*arrays)
    else:
        output = _relative_attention(functional, *arrays, position_key, **relative)
    return output.transpose(1, 2).reshape(tokens, heads, head_dim)


def _relative_attention(functional, query, key, value, position_key, position_query, distance_rows):
    texts, heads, length, head_dim = query.shape
    position, last = distance_rows.new_ones(length).cumsum(0), len(distance_rows) // 2
    rows = distance_rows.long()[(position[:, None] - position).clamp(-last, last) + last]
    shape = (texts, heads, *rows.shape)
    scores = query @ key.mT
    scores = scores + (query @ position_key.permute(1, 2, 0)).gather(-1, rows.expand(shape))
    scores = scores + (key @ position_query.permute(1, 2, 0)).gather(-1, rows.mT.expand(shape)).mT
    return functional.softmax(scores * head_dim**-0.5, -1) @ value


def _embedding(functional, input, weight):
    return functional.embedding(input.long(), weight)


def _cross_entropy(functional, input, target, **options):
    return functional.cross_entropy(input, target.long(), **options)


def _pooling(functional, input, cu_seqlens):
    return importlib.import_module("torch").segment_reduce(input, "mean", lengths=cu_seqlens.diff().long(), axis=0)


def _maxsim(functional, query, document, cu_seqlens):
    torch, ends = importlib.import_module("torch"), cu_seqlens.tolist()
    products = query @ document.T
    columns = [products[:, :, first:last].amax(-1).sum(-1) for first, last in pairwise(ends)]
    return torch.stack(columns, 1)


def _lstm(functional, input, weight, cu_seqlens):
    """Compute torch.nn.LSTM's steps: its own kernels multiply the inputs as well."""
    torch, (directions, width, hidden) = importlib.import_module("torch"), weight.shape
    steps, outputs = input.unflatten(0, (len(cu_seqlens) - 1, -1)).unflatten(-1, (directions, width)), []
    for direction in range(directions):
        rows = steps[:, :, direction].flip(1) if direction else steps[:, :, direction]
        state = cell = rows.new_zeros(len(rows), hidden)
        found = []
        for row in rows.unbind(1):
            into, kept, new, shown = (row + state @ weight[direction].T).chunk(4, -1)
            cell = kept.sigmoid() * cell + into.sigmoid() * new.tanh()
            state = shown.sigmoid() * cell.tanh()
            found.append(state)
        outputs.append(torch.stack(found[::-1] if direction else found, 1))
    return torch.cat(outputs, -1).flatten(0, 1)


_OPERATIONS = {
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "affine": _affine,
    "rotary": _rotary,
    "gelu": _gelu,
    "activation": _activation,
    "gated_activation": _gated_activation,
    "linear": _linear,
    "attention": _attention,
    "embedding": _embedding,
    "pooling": _pooling,
    "maxsim": _maxsim,
    "lstm": _lstm,
    "cross_entropy": _cross_entropy,
}
