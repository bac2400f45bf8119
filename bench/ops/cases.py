"""The table of cases of `python -m bench.ops`, `pytest bench/ops` and the tests.

A case is one use of the public functions of bertcore.kernels at a size that models have, called as operations.py does:
"forward" as in inference, "forward+backward" as in training. Its inputs are the public arguments by name (with `qkv`,
the fused array that query, key and value are views of) and `grad_output`. They are made once, in float32, and brought
to a backend and a dtype outside of what is timed; for the forward the weights are prepared there, too (training changes
them at every step).

The bytes of a case are those it must read or write: inputs once, outputs once. The backward reads the gradient of the
output and its contract's arguments, and writes the gradients. Integer ids and offsets are left out. Cases limited by
arithmetic (linear, attention) have FLOPs: 2 per multiply-add of their products. Attention has two products forward and
five backward (one computes the scores again); relative attention has one more forward for each table, and three
backward. All other cases are memory-bound.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bench.ops import operations
from bench.texts import ragged_lengths
from bertcore import kernels

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

    elements and flops are what it moves and computes; `prepared` names the inputs that are given to it as prepared
    weights.
    """

    op: str
    name: str
    size: str
    length: str
    direction: str
    inputs: dict[str, Any]  # Normal, Integers, arrays and constants by name
    elements: int
    flops: int | None = None
    prepared: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.op}-{self.name}-{self.size}-{self.length}-{self.direction}".replace(" ", "_")

    @property
    def folder(self) -> str:
        """The folder of kernels/ that implements it."""
        return operations.folder(self.op)

    @property
    def needs(self) -> tuple[str, ...]:
        """The functions that an implementation must have."""
        prepare = ("prepare_weight",) if self.prepared else ()
        backward = (f"{self.folder}_backward",) if self.direction == TRAINING else ()
        return (self.folder, *prepare, *backward)

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


def _pair(label: tuple[str, ...], inputs: dict, forward: _Cost, backward: _Cost) -> Iterator[Case]:
    """The forward and the forward+backward case of (op, name, size, length)."""
    without_gradient = {name: it for name, it in inputs.items() if name != "grad_output"}
    yield Case(*label, FORWARD, without_gradient, *forward)
    flops = None if forward.flops is None else forward.flops + backward.flops
    yield Case(*label, TRAINING, inputs, forward.elements + backward.elements, flops)


# softmax: the attention scores of a batch


def _softmax_cases(size: str, length: str) -> Iterator[Case]:
    for name, lengths in SIZES[size].batches[length].items():
        if len(set(lengths)) == 1:
            shape = (len(lengths), SIZES[size].heads, lengths[0], lengths[0])
            inputs = {"input": Normal(shape), "dim": -1, "grad_output": Normal(shape)}
            count = math.prod(shape)
            yield from _pair(("softmax", name, size, length), inputs, _Cost(2 * count), _Cost(3 * count))


# operations on rows: the norms of hidden states, the inside of the feed-forward, dropout with the residual that follows


ROWS, COLUMN = "rows", "column"  # stand for random inputs of the shape of the rows, and of one number for each column


class _OnRows(NamedTuple):
    """A case of rows as wide as `width` of a Size; costs are the numbers moved for each element and each column."""

    name: str
    width: str
    inputs: dict[str, Any]
    forward: tuple[int, int]
    backward: tuple[int, int]


_NORM = {"input": ROWS, "weight": COLUMN, "bias": COLUMN}
_DROPPED = {"input": ROWS, "residual": ROWS, "p": 0.1, "seed": 1}
_GELU = {"input": ROWS, "bias": COLUMN}
_ON_ROWS = {
    "layer_norm": [
        _OnRows("plain", "hidden", _NORM | {"residual": None}, (2, 2), (3, 3)),
        _OnRows("residual", "hidden", _NORM | {"residual": ROWS}, (3, 2), (4, 3)),
    ],
    "rms_norm": [_OnRows("plain", "hidden", {"input": ROWS, "weight": COLUMN}, (2, 1), (3, 2))],
    "affine": [_OnRows("residual", "hidden", _NORM | {"residual": ROWS}, (3, 2), (4, 3))],  # MobileBERT's norms
    "gelu": [
        _OnRows("erf", "intermediate", _GELU | {"approximate": "none"}, (2, 1), (3, 2)),
        _OnRows("tanh", "intermediate", _GELU | {"approximate": "tanh"}, (2, 1), (3, 2)),
    ],
    "activation": [
        _OnRows(kind, "intermediate", {"input": ROWS, "activation": kind}, (2, 0), (3, 0))
        for kind in ("relu", "tanh", "silu")
    ],
    "dropout": [_OnRows("residual", "hidden", _DROPPED, (3, 0), (5, 0))],
    "dropout_layer_norm": [_OnRows("plain", "hidden", _DROPPED | _NORM, (3, 2), (5, 3))],
}


def _cases_on_rows(op: str, size: str, length: str) -> Iterator[Case]:
    for case in _ON_ROWS[op]:
        width = getattr(SIZES[size], case.width)
        made = {ROWS: Normal((SIZES[size].tokens(length), width)), COLUMN: Normal((width,))}
        inputs = {name: made.get(it, it) if isinstance(it, str) else it for name, it in case.inputs.items()}
        count = math.prod(made[ROWS].shape)
        costs = (_Cost(of_rows * count + of_columns * width) for of_rows, of_columns in (case.forward, case.backward))
        yield from _pair((op, case.name, size, length), inputs | {"grad_output": made[ROWS]}, *costs)


def _gated_activation_cases(size: str, length: str) -> Iterator[Case]:
    rows, width = SIZES[size].tokens(length), SIZES[size].intermediate
    inputs = {"input": Normal((rows, 2 * width)), "activation": "gelu", "grad_output": Normal((rows, width))}
    costs = _Cost(3 * rows * width), _Cost(5 * rows * width)
    yield from _pair(("gated_activation", "gelu", size, length), inputs, *costs)


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
    forward, training = _pair(("linear", name, size, length), inputs, *costs)
    yield replace(forward, prepared=("weight",))
    yield training


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
            yield from _pair(("attention", name + form, size, length), inputs, *costs)
    yield from _relative_attention_cases(size, length)


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
        yield from _pair(("attention", f"{name} relative", size, length), inputs, *costs)


# rotary: query and key of packed texts, in one (tokens, 2, heads, head_dim) array


def _rotary_cases(size: str, length: str) -> Iterator[Case]:
    heads, hidden = SIZES[size].heads, SIZES[size].hidden
    for name, lengths in SIZES[size].batches[length].items():
        rows = Normal((sum(lengths), 2, heads, hidden // heads))
        cos, sin = kernels.rotary_tables(max(lengths), hidden // heads // 2 * 2)
        inputs = {"input": rows, "cos": cos, "sin": sin, "grad_output": rows}
        inputs["cu_seqlens"] = np.cumsum((0, *lengths), dtype=np.int32)
        cost = _Cost(2 * math.prod(rows.shape) + cos.size + sin.size)
        yield from _pair(("rotary", name, size, length), inputs, cost, cost)


# pooling: the mean of each text


def _pooling_cases(size: str, length: str) -> Iterator[Case]:
    hidden = SIZES[size].hidden
    for name, lengths in SIZES[size].batches[length].items():
        tokens, texts = sum(lengths), len(lengths)
        inputs = {"input": Normal((tokens, hidden)), "cu_seqlens": np.cumsum((0, *lengths), dtype=np.int32)}
        inputs["grad_output"] = Normal((texts, hidden))
        cost = _Cost((tokens + texts) * hidden)
        yield from _pair(("pooling", name, size, length), inputs, cost, cost)


def _maxsim_cases(size: str, length: str) -> Iterator[Case]:
    """32 tokens a query and 128 numbers a vector, as ColBERT has them; and one query with a thousand documents."""
    dim, batches = 128, {name: (32, lengths) for name, lengths in SIZES[size].batches[length].items()}
    if (size, length) == ("base", "long"):
        batches["1000x300"] = 1, (300,) * 1000
    for name, (queries, lengths) in batches.items():
        tokens, documents = sum(lengths), len(lengths)
        inputs = {"query": Normal((queries, 32, dim)), "document": Normal((tokens, dim))}
        inputs["cu_seqlens"] = np.cumsum((0, *lengths), dtype=np.int32)
        inputs["grad_output"] = Normal((queries, documents))
        elements, scores = (queries * 32 + tokens) * dim, queries * documents
        forward = _Cost(elements + scores, 2 * queries * 32 * tokens * dim)
        backward = _Cost(2 * elements + scores, 4 * queries * 32 * documents * dim)
        yield from _pair(("maxsim", name, size, length), inputs, forward, backward)


def _lstm_cases(size: str, length: str) -> Iterator[Case]:
    """In both directions, with as many states as the text has features, as GLiNER has it."""
    hidden = SIZES[size].hidden // 2
    for name, lengths in SIZES[size].batches[length].items():
        tokens = sum(lengths)
        inputs = {"input": Normal((tokens, 8 * hidden))}
        inputs["weight"] = Normal((2, 4 * hidden, hidden), 1 / math.sqrt(hidden))
        inputs["cu_seqlens"] = np.cumsum((0, *lengths), dtype=np.int32)
        inputs["grad_output"] = Normal((tokens, 2 * hidden))
        elements, flops = 10 * tokens * hidden + 8 * hidden**2, 16 * tokens * hidden**2
        yield from _pair(("lstm", name, size, length), inputs, _Cost(elements, flops), _Cost(2 * elements, 2 * flops))


# embedding and cross entropy: both ends of a masked language model


def _embedding_cases(size: str, length: str) -> Iterator[Case]:
    tokens, table = SIZES[size].tokens(length), (SIZES[size].vocabulary, SIZES[size].hidden)
    inputs = {"input": Integers(table[0], (tokens,)), "weight": Normal(table)}
    inputs["grad_output"] = Normal((tokens, table[1]))
    costs = _Cost(2 * tokens * table[1]), _Cost(tokens * table[1] + math.prod(table))
    yield from _pair(("embedding", "words", size, length), inputs, *costs)


def _cross_entropy_cases(size: str, length: str) -> Iterator[Case]:
    logits = (math.ceil(0.15 * SIZES[size].tokens(length)), SIZES[size].vocabulary)  # 15% of the tokens are masked
    inputs = {"input": Normal(logits), "target": Integers(logits[1], logits[:1]), "grad_output": Normal(())}
    costs = _Cost(math.prod(logits)), _Cost(2 * math.prod(logits))
    yield from _pair(("cross_entropy", "masked words", size, length), inputs, *costs)


OPS = {
    "softmax": _softmax_cases,
    **{op: partial(_cases_on_rows, op) for op in ("layer_norm", "rms_norm", "affine", "gelu", "activation")},
    "gated_activation": _gated_activation_cases,
    **{op: partial(_cases_on_rows, op) for op in ("dropout", "dropout_layer_norm")},
    "linear": _linear_cases,
    "attention": _attention_cases,
    "rotary": _rotary_cases,
    "pooling": _pooling_cases,
    "maxsim": _maxsim_cases,
    "lstm": _lstm_cases,
    "embedding": _embedding_cases,
    "cross_entropy": _cross_entropy_cases,
}
