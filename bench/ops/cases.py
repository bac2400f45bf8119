"""The table of cases: what `python -m bench.ops`, `pytest bench/ops` and the tests all run.

A case is one use of the public functions of bertcore.kernels at a size that models have: "forward" as inference calls
them, "forward+backward" as training does. Its inputs are made once, in float32, and brought to a backend and a dtype
outside of what is timed; for the forward the weights are prepared there too (training changes them at every step).

What a case moves is counted as the elements it cannot avoid to read or write: inputs once, outputs once. The backward
reads the gradient of the output and what its contract takes, and writes the gradients. Integer ids and offsets are left
out. FLOPs are given where arithmetic is the limit (linear, attention): 2 per multiply-add of the products, of which
attention has two forward and five backward (one of them computes the scores again); relative attention has one more
forward for each table, and three backward. All other cases are memory-bound.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from bench.texts import ragged_lengths
from bertcore import kernels
from bertcore.kernels.precision import working_dtype

FORWARD, TRAINING = "forward", "forward+backward"
DIRECTIONS = (FORWARD, TRAINING)
LENGTHS = ("short", "long")


class Size(NamedTuple):
    """The widths of a model, and the batches it is given: for short and long, the lengths of the texts by name."""

    hidden: int
    intermediate: int
    heads: int
    vocabulary: int
    batches: dict[str, dict[str, tuple[int, ...]]]

    def tokens(self, length: str) -> int:
        """The tokens of one batch: 16 and 4096 for the sizes of models."""
        return sum(next(iter(self.batches[length].values())))


_BATCHES = {"short": {"1x16": (16,)}, "long": {"32x128": (128,) * 32, "8x512": (512,) * 8, "ragged": ragged_lengths()}}
_TINY_BATCHES = {"short": {"1x3": (3,)}, "long": {"3x7": (7,) * 3, "ragged": (1, 9, 4)}}

SIZES = {
    "mini": Size(192, 768, 3, 8192, _BATCHES),
    "base": Size(768, 3072, 12, 30522, _BATCHES),
    "large": Size(1024, 4096, 16, 30522, _BATCHES),
    "tiny": Size(39, 80, 3, 97, _TINY_BATCHES),  # for the tests
}
MODEL_SIZES = ("mini", "base", "large")


class Normal(NamedTuple):
    """An input of normally distributed float32 numbers."""

    shape: tuple[int, ...]
    scale: float = 1

    def make(self, rng: np.random.Generator) -> np.ndarray:
        return np.asarray(rng.standard_normal(self.shape, dtype=np.float32) * np.float32(self.scale))


class Integers(NamedTuple):
    """An input of evenly distributed integers from 0 to below."""

    below: int
    shape: tuple[int, ...]

    def make(self, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, self.below, self.shape)


@dataclass(frozen=True)
class Case:
    """One thing to check and time.

    function(inputs, backend) gives a tuple of arrays: the output and, for training, the gradients. elements and flops
    are what it moves and computes; `prepared` names the inputs that are given to it as prepared weights.
    """

    op: str
    name: str
    size: str
    length: str
    direction: str
    inputs: dict[str, Any]  # Normal, Integers, arrays and constants by name
    function: Callable[[SimpleNamespace, str], tuple]
    elements: int
    flops: int | None = None
    prepared: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.op}-{self.name}-{self.size}-{self.length}-{self.direction}".replace(" ", "_")

    @property
    def needs(self) -> tuple[str, ...]:
        """The functions that an implementation must have."""
        prepare = ("prepare_weight",) if self.prepared else ()
        backward = (f"{self.op}_backward",) if self.direction == TRAINING else ()
        return (self.op, *prepare, *backward)

    def make(self, rng: np.random.Generator) -> dict[str, Any]:
        """The inputs by name, as NumPy arrays and constants."""
        return {name: it.make(rng) if isinstance(it, Normal | Integers) else it for name, it in self.inputs.items()}


def cases(size: str) -> Iterator[Case]:
    """All cases of one size."""
    for of_op in OPS.values():
        for length in LENGTHS:
            yield from of_op(size, length)


class _Cost(NamedTuple):
    elements: int
    flops: int | None = None


def _pair(label: tuple[str, ...], inputs: dict, functions: tuple, forward: _Cost, backward: _Cost) -> Iterator[Case]:
    """The forward and the forward+backward case of (op, name, size, length)."""
    without_gradient = {name: it for name, it in inputs.items() if name != "grad_output"}
    yield Case(*label, FORWARD, without_gradient, functions[0], *forward)
    flops = None if forward.flops is None else forward.flops + backward.flops
    yield Case(*label, TRAINING, inputs, functions[1], forward.elements + backward.elements, flops)


# softmax: the attention scores of a batch


def _softmax_cases(size: str, length: str) -> Iterator[Case]:
    for name, lengths in SIZES[size].batches[length].items():
        if len(set(lengths)) == 1:
            shape = (len(lengths), SIZES[size].heads, lengths[0], lengths[0])
            inputs = {"input": Normal(shape), "grad_output": Normal(shape)}
            count = math.prod(shape)
            functions = (_softmax, _softmax_training)
            yield from _pair(("softmax", name, size, length), inputs, functions, _Cost(2 * count), _Cost(3 * count))


def _softmax(a, backend):
    return (kernels.softmax(a.input, backend=backend),)


def _softmax_training(a, backend):
    output = kernels.softmax(a.input, backend=backend)
    return output, kernels.softmax_backward(a.grad_output, output, backend=backend)


# layer norm: hidden states, alone and with a residual


def _layer_norm_cases(size: str, length: str) -> Iterator[Case]:
    width = SIZES[size].hidden
    rows = Normal((SIZES[size].tokens(length), width))
    count = math.prod(rows.shape)
    for name, residual in (("plain", None), ("residual", rows)):
        inputs = {"input": rows, "weight": Normal((width,)), "bias": Normal((width,)), "residual": residual}
        inputs["grad_output"] = rows
        read = count if residual is None else 2 * count
        costs = _Cost(read + count + 2 * width), _Cost(read + 2 * count + 3 * width)
        yield from _pair(("layer_norm", name, size, length), inputs, (_layer_norm, _layer_norm_training), *costs)


def _layer_norm(a, backend):
    return (kernels.layer_norm(a.input, a.weight, a.bias, residual=a.residual, backend=backend),)


def _layer_norm_training(a, backend):
    grads = kernels.layer_norm_backward(a.grad_output, a.input, a.weight, a.bias, residual=a.residual, backend=backend)
    return *_layer_norm(a, backend), *grads


def _rms_norm_cases(size: str, length: str) -> Iterator[Case]:
    width = SIZES[size].hidden
    rows = Normal((SIZES[size].tokens(length), width))
    count = math.prod(rows.shape)
    inputs = {"input": rows, "weight": Normal((width,)), "grad_output": rows}
    costs = _Cost(2 * count + width), _Cost(3 * count + 2 * width)
    yield from _pair(("rms_norm", "plain", size, length), inputs, (_rms_norm, _rms_norm_training), *costs)


def _rms_norm(a, backend):
    return (kernels.rms_norm(a.input, a.weight, backend=backend),)


def _rms_norm_training(a, backend):
    return *_rms_norm(a, backend), *kernels.rms_norm_backward(a.grad_output, a.input, a.weight, backend=backend)


# gelu and activation: the inside of the feed-forward


def _gelu_cases(size: str, length: str) -> Iterator[Case]:
    width = SIZES[size].intermediate
    rows = Normal((SIZES[size].tokens(length), width))
    count = math.prod(rows.shape)
    costs = _Cost(2 * count + width), _Cost(3 * count + 2 * width)
    for name, approximate in (("erf", "none"), ("tanh", "tanh")):
        inputs = {"input": rows, "bias": Normal((width,)), "approximate": approximate, "grad_output": rows}
        yield from _pair(("gelu", name, size, length), inputs, (_gelu, _gelu_training), *costs)


def _gelu(a, backend):
    return (kernels.gelu(a.input, a.approximate, bias=a.bias, backend=backend),)


def _gelu_training(a, backend):
    grads = kernels.gelu_backward(a.grad_output, a.input, a.approximate, bias=a.bias, backend=backend)
    return *_gelu(a, backend), *grads


def _activation_cases(size: str, length: str) -> Iterator[Case]:
    rows = Normal((SIZES[size].tokens(length), SIZES[size].intermediate))
    count = math.prod(rows.shape)
    for name in ("relu", "tanh", "silu"):
        inputs = {"input": rows, "activation": name, "grad_output": rows}
        functions = (_activation, _activation_training)
        yield from _pair(("activation", name, size, length), inputs, functions, _Cost(2 * count), _Cost(3 * count))


def _activation(a, backend):
    return (kernels.activation(a.input, a.activation, backend=backend),)


def _activation_training(a, backend):
    return *_activation(a, backend), kernels.activation_backward(a.grad_output, a.input, a.activation, backend=backend)


def _gated_activation_cases(size: str, length: str) -> Iterator[Case]:
    rows, width = SIZES[size].tokens(length), SIZES[size].intermediate
    inputs = {"input": Normal((rows, 2 * width)), "activation": "gelu", "grad_output": Normal((rows, width))}
    functions = (_gated_activation, _gated_activation_training)
    costs = _Cost(3 * rows * width), _Cost(5 * rows * width)
    yield from _pair(("gated_activation", "gelu", size, length), inputs, functions, *costs)


def _gated_activation(a, backend):
    return (kernels.gated_activation(a.input, a.activation, backend=backend),)


def _gated_activation_training(a, backend):
    grad = kernels.gated_activation_backward(a.grad_output, a.input, a.activation, backend=backend)
    return *_gated_activation(a, backend), grad


# linear: the four products of an encoder layer, with what follows them in the same pass


def _linear_cases(size: str, length: str) -> Iterator[Case]:
    hidden, intermediate = SIZES[size].hidden, SIZES[size].intermediate
    yield from _linear_pair("qkv", size, length, hidden, 3 * hidden)
    yield from _linear_pair("projection residual", size, length, hidden, hidden, has_residual=True)
    yield from _linear_pair("up gelu", size, length, hidden, intermediate, activation="gelu")
    yield from _linear_pair("down residual", size, length, intermediate, hidden, has_residual=True)


def _linear_pair(name, size, length, in_features, out_features, activation=None, has_residual=False) -> Iterator[Case]:
    rows = SIZES[size].tokens(length)
    grad = Normal((rows, out_features))
    inputs = {
        "input": Normal((rows, in_features)),
        "weight": Normal((out_features, in_features), 1 / math.sqrt(in_features)),
        "bias": Normal((out_features,)),
        "activation": activation,
        "residual": grad if has_residual else None,
        "grad_output": grad,
    }
    weights, products = (in_features + 1) * out_features, 2 * rows * in_features * out_features
    moved = rows * in_features + weights + rows * out_features
    moved_back = rows * out_features + 2 * (rows * in_features + weights)
    costs = _Cost(moved + has_residual * rows * out_features, products), _Cost(moved_back, 2 * products)
    forward, training = _pair(("linear", name, size, length), inputs, (_linear, _linear_training), *costs)
    yield replace(forward, prepared=("weight",))
    yield training


def _linear(a, backend):
    return (kernels.linear(a.input, a.weight, a.bias, activation=a.activation, residual=a.residual, backend=backend),)


def _linear_training(a, backend):
    """With an activation of its own: its gradient needs what goes in."""
    if a.activation is None:
        grads = kernels.linear_backward(a.grad_output, a.input, a.weight, a.bias, backend=backend)
        return *_linear(a, backend), *grads
    inner = kernels.linear(a.input, a.weight, a.bias, backend=backend)
    grad = kernels.activation_backward(a.grad_output, inner, a.activation, backend=backend)
    grads = kernels.linear_backward(grad, a.input, a.weight, a.bias, backend=backend)
    return kernels.activation(inner, a.activation, backend=backend), *grads


# attention: packed texts out of one fused (tokens, 3, heads, head_dim) array, and (batch, heads, length, head_dim)


def _attention_cases(size: str, length: str) -> Iterator[Case]:
    heads, hidden = SIZES[size].heads, SIZES[size].hidden
    for name, lengths in SIZES[size].batches[length].items():
        tokens, head_dim = sum(lengths), hidden // heads
        product = 2 * hidden * sum(own * own for own in lengths)
        costs = _Cost(4 * tokens * hidden, 2 * product), _Cost(8 * tokens * hidden, 5 * product)
        forms = {
            "": ((tokens, 3, heads, head_dim), (tokens, heads, head_dim), np.cumsum((0, *lengths), dtype=np.int32))
        }
        if len(set(lengths)) == 1:
            dense = (len(lengths), heads, lengths[0], head_dim)
            forms[" dense"] = ((3, *dense), dense, None)
        for form, (qkv, output, offsets) in forms.items():
            inputs = {"qkv": Normal(qkv), "cu_seqlens": offsets, "grad_output": Normal(output)}
            functions = (_attention, _attention_training)
            yield from _pair(("attention", name + form, size, length), inputs, functions, *costs)
    yield from _relative_attention_cases(size, length)


def query_key_value(a: SimpleNamespace) -> tuple:
    """The three views of the fused array."""
    return tuple(a.qkv) if a.cu_seqlens is None else tuple(a.qkv[:, i] for i in range(3))


def _attention(a, backend):
    return (kernels.attention(*query_key_value(a), cu_seqlens=a.cu_seqlens, backend=backend),)


def _attention_training(a, backend):
    inputs, options = query_key_value(a), {"cu_seqlens": a.cu_seqlens, "backend": backend}
    output, lse = kernels.attention(*inputs, return_lse=True, **options)
    grads = kernels.attention_backward(a.grad_output, *inputs, output, lse, **options)
    return output, *grads[:3]


# relative attention: DeBERTa's, with both tables, of as many rows as DeBERTa-v3-base has


TABLE_ROWS = 512


def _relative_attention_cases(size: str, length: str) -> Iterator[Case]:
    heads, hidden = SIZES[size].heads, SIZES[size].hidden
    for name, lengths in SIZES[size].batches[length].items():
        tokens, head_dim = sum(lengths), hidden // heads
        table = (TABLE_ROWS, heads, head_dim)
        inputs = {
            "qkv": Normal((tokens, 3, heads, head_dim)), "position_key": Normal(table), "position_query": Normal(table),
            "distance_rows": np.arange(TABLE_ROWS - 1), "cu_seqlens": np.cumsum((0, *lengths), dtype=np.int32),
            "grad_output": Normal((tokens, heads, head_dim)),
        }  # fmt: skip
        product, tables = 2 * hidden * sum(own * own for own in lengths), 2 * math.prod(table)
        costs = (
            _Cost(4 * tokens * hidden + tables, 4 * product), _Cost(8 * tokens * hidden + 2 * tables, 11 * product),
        )  # fmt: skip
        functions = (_relative_attention, _relative_attention_training)
        yield from _pair(("attention", f"{name} relative", size, length), inputs, functions, *costs)


def _relative_options(a: SimpleNamespace, backend: str) -> dict:
    relative = kernels.RelativePositions(a.distance_rows, a.position_key, a.position_query)
    return {"relative": relative, "cu_seqlens": a.cu_seqlens, "backend": backend}


def _relative_attention(a, backend):
    return (kernels.attention(*query_key_value(a), **_relative_options(a, backend)),)


def _relative_attention_training(a, backend):
    inputs, options = query_key_value(a), _relative_options(a, backend)
    output, lse = kernels.attention(*inputs, **options, return_lse=True)
    grads = kernels.attention_backward(a.grad_output, *inputs, output, lse, **options)
    return output, *grads[:3], grads.relative.position_key, grads.relative.position_query


# rotary: query and key of packed texts, in one (tokens, 2, heads, head_dim) array


def _rotary_cases(size: str, length: str) -> Iterator[Case]:
    heads, hidden = SIZES[size].heads, SIZES[size].hidden
    for name, lengths in SIZES[size].batches[length].items():
        rows = Normal((sum(lengths), 2, heads, hidden // heads))
        cos, sin = kernels.rotary_tables(max(lengths), hidden // heads // 2 * 2)
        inputs = {"input": rows, "cos": cos, "sin": sin, "grad_output": rows}
        inputs["cu_seqlens"] = np.cumsum((0, *lengths), dtype=np.int32)
        cost = _Cost(2 * math.prod(rows.shape) + cos.size + sin.size)
        yield from _pair(("rotary", name, size, length), inputs, (_rotary, _rotary_training), cost, cost)


def _rotary(a, backend):
    return (kernels.rotary(a.input, *_tables(a), cu_seqlens=a.cu_seqlens, backend=backend),)


def _rotary_training(a, backend):
    grad = kernels.rotary_backward(a.grad_output, *_tables(a), cu_seqlens=a.cu_seqlens, backend=backend)
    return *_rotary(a, backend), grad


def _tables(a):
    return tuple(table.astype(working_dtype(a.input.dtype), copy=False) for table in (a.cos, a.sin))


# embedding and cross entropy: both ends of a masked language model


def _embedding_cases(size: str, length: str) -> Iterator[Case]:
    tokens, table = SIZES[size].tokens(length), (SIZES[size].vocabulary, SIZES[size].hidden)
    inputs = {"input": Integers(table[0], (tokens,)), "weight": Normal(table)}
    inputs["grad_output"] = Normal((tokens, table[1]))
    costs = _Cost(2 * tokens * table[1]), _Cost(tokens * table[1] + math.prod(table))
    yield from _pair(("embedding", "words", size, length), inputs, (_embedding, _embedding_training), *costs)


def _embedding(a, backend):
    return (kernels.embedding(a.input, a.weight, backend=backend),)


def _embedding_training(a, backend):
    grad = kernels.embedding_backward(a.grad_output, a.input, a.weight.shape[0], backend=backend)
    return *_embedding(a, backend), grad


def _cross_entropy_cases(size: str, length: str) -> Iterator[Case]:
    logits = (math.ceil(0.15 * SIZES[size].tokens(length)), SIZES[size].vocabulary)  # 15% of the tokens are masked
    inputs = {"input": Normal(logits), "target": Integers(logits[1], logits[:1]), "grad_output": Normal(())}
    functions = (_cross_entropy, _cross_entropy_training)
    costs = _Cost(math.prod(logits)), _Cost(2 * math.prod(logits))
    yield from _pair(("cross_entropy", "masked words", size, length), inputs, functions, *costs)


def _cross_entropy(a, backend):
    return (kernels.cross_entropy(a.input, a.target, backend=backend),)


def _cross_entropy_training(a, backend):
    grad = kernels.cross_entropy_backward(a.grad_output, a.input, a.target, backend=backend)
    return *_cross_entropy(a, backend), grad


OPS = {
    "softmax": _softmax_cases,
    "layer_norm": _layer_norm_cases,
    "rms_norm": _rms_norm_cases,
    "gelu": _gelu_cases,
    "activation": _activation_cases,
    "gated_activation": _gated_activation_cases,
    "linear": _linear_cases,
    "attention": _attention_cases,
    "rotary": _rotary_cases,
    "embedding": _embedding_cases,
    "cross_entropy": _cross_entropy_cases,
}
