"""The operations of models as nodes of an ONNX graph (opset 17).

A pass with a `Graph` runs each operation on a small batch and notes its nodes. Activations are (tokens, features) in
the pass and (batch, length, features) in the graph; what depends on no input is a constant.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from bertcore.kernels.arrays import Array

MASKED = np.float32(-1e9)  # added to scores: exp gives 0, and two of them are not inf
END = np.iinfo(np.int64).max


class Symbol:
    """An activation: its values in the pass, and the name of its tensor in the graph."""

    def __init__(self, value: Array, name: str, longest: int | None):
        self.value, self.name = value, name
        self.dtype, self.ndim = value.dtype, value.ndim
        # Tables by distance are made for so many tokens.
        self.shape = (longest or value.shape[0], *value.shape[1:])


NodeInput: TypeAlias = Symbol | str | Array | np.generic  # an activation, a tensor by its name, or a constant


class Graph:
    """Collect the nodes of a pass.

    Attributes:
        helper: onnx.helper.
        nodes, constants: of the graph; constants by name.
        integers: the pass's arrays of integers that follow from the graph's inputs -> their names.
        rotary: the cosines of a pass -> cosines and sines of the longest text.
        longest: the most tokens of a text, or None.
    """

    def __init__(self, onnx: Any, longest: int | None):
        self.helper, self.numpy_helper, self.longest = onnx.helper, onnx.numpy_helper, longest
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.integers: list[tuple[Any, str]] = []
        self.rotary: list[tuple[Any, tuple[Array, Array]]] = []
        self._kept: dict[Any, tuple[Any, str]] = {}

    def call(self, operation: Any, run: Any, arrays: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Run an operation, and note it unless it is a constant; called by `nn.operation.ModelOperation`."""
        values = [array.value if isinstance(array, Symbol) else array for array in arrays]
        forward = operation.forward or (lambda *given, **own: operation.with_pullback(*given, **own)[0])
        output = forward(run, *values, **options)
        rows = options.get("rows")
        is_input = rows is not None and any(rows is array for array, _ in self.integers)
        if not is_input and not any(isinstance(array, Symbol) for array in arrays):
            return output
        name = operation.__name__.removeprefix("_")
        if name not in EMITTERS:
            raise ValueError(f"the operation {name} has no form in ONNX graphs, expected one of {', '.join(EMITTERS)}")
        names = EMITTERS[name](self, *arrays, **options)
        if isinstance(output, tuple):
            return tuple(Symbol(each, to, self.longest) for each, to in zip(output, names, strict=True))
        return Symbol(output, names, self.longest)

    def node(self, kind: str, *inputs: NodeInput, outputs: int = 1, name: str | None = None, **attributes: Any) -> Any:
        """Add a node; inputs are symbols, names or arrays. Return the name of its output, or a list of several."""
        place = len(self.nodes)
        names = [name or f"{kind}_{place}"] if outputs == 1 else [f"{kind}_{place}_{each}" for each in range(outputs)]
        given = [self.named(each) for each in inputs]
        self.nodes.append(self.helper.make_node(kind, given, names, f"{kind}_{place}", **attributes))
        return names[0] if outputs == 1 else names

    def named(self, value: NodeInput) -> str:
        """Return the name of a symbol, or of a constant, which is kept once."""
        if isinstance(value, Symbol | str):
            return value.name if isinstance(value, Symbol) else value
        array = np.asarray(value)

        def keep() -> str:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = self.numpy_helper.from_array(np.ascontiguousarray(array), name)
            return name

        return self.once(
            ("constant", array.tobytes(), array.dtype.str, array.shape) if array.size < 64 else value, keep
        )

    def once(self, key: object, make: Callable[[], str]) -> str:
        """Return what `make` named for this object, or tuple, before."""
        place = key if isinstance(key, tuple) else id(key)
        if place not in self._kept:
            self._kept[place] = (key, make())  # the object stays alive: its id stays its own
        return self._kept[place][1]

    def columns(self, value: NodeInput, first: int, last: int) -> str:
        """Return columns of the last axis."""
        return self.node("Slice", value, *(np.array([each]) for each in (first, last, -1)))

    def positions(self) -> str:
        """Return 0, 1, ... up to the length, (length,)."""

        def make() -> str:
            length = self.node("Gather", self.node("Shape", "input_ids"), np.int64(1))
            return self.node("Range", np.int64(0), length, np.int64(1))

        return self.once(("positions",), make)

    def distances(self) -> str:
        """Return i - j of query i and key j, (length, length)."""

        def make() -> str:
            rows, columns = (self.node("Unsqueeze", self.positions(), np.array([axis])) for axis in (1, 0))
            return self.node("Sub", rows, columns)

        return self.once(("distances",), make)

    def mask(self) -> str:
        """Return what is added to all scores: MASKED for padding, (batch, 1, 1, length)."""

        def make() -> str:
            wide = self.node("Unsqueeze", self.node("Cast", "attention_mask", to=1), np.array([1, 2]))
            return self.node("Mul", self.node("Sub", np.float32(1), wide), MASKED)

        return self.once(("mask",), make)

    def limits(self, is_causal: bool, window: tuple[int, int] | None) -> str | None:
        """Return what is added to the scores of keys too far away, (length, length), or None."""

        def make() -> str:
            bounds = (
                [("Greater", self.distances(), window[0]), ("Less", self.distances(), -window[1])] if window else []
            )
            bounds += [("Less", self.distances(), 0)] if is_causal else []
            far = [self.node(kind, first, np.int64(bound)) for kind, first, bound in bounds]
            outside = far[0]
            for each in far[1:]:
                outside = self.node("Or", outside, each)
            return self.node("Where", outside, MASKED, np.float32(0))

        return self.once(("limits", is_causal, window), make) if is_causal or window else None

    def rows(self, distance_rows: Array) -> str:
        """Return the row of relative tables for each query and key, (length, length)."""

        def make() -> str:
            middle = (len(distance_rows) - 1) // 2
            shifted = self.node("Add", self.distances(), np.int64(middle))
            inside = self.node("Clip", shifted, np.int64(0), np.int64(len(distance_rows) - 1))
            return self.node("Gather", np.asarray(distance_rows, np.int64), inside)

        return self.once(distance_rows, make)


def _activation(graph: Graph, input: NodeInput, *, activation: str) -> str:
    if activation in ("relu", "tanh", "sigmoid"):
        return graph.node(activation.capitalize(), input)
    if activation == "silu":
        return graph.node("Mul", input, graph.node("Sigmoid", input))
    half, one = np.float32(0.5), np.float32(1)
    if activation == "gelu":
        inner = graph.node("Erf", graph.node("Div", input, np.float32(np.sqrt(2))))
    elif activation == "gelu_tanh":
        cubed = graph.node("Mul", graph.node("Pow", input, np.float32(3)), np.float32(0.044715))
        total = graph.node("Mul", graph.node("Add", input, cubed), np.float32(np.sqrt(2 / np.pi)))
        inner = graph.node("Tanh", total)
    else:
        raise ValueError(f"activation is {activation!r}, which has no form in ONNX graphs here")
    return graph.node("Mul", graph.node("Mul", input, graph.node("Add", inner, one)), half)


def _linear(graph: Graph, input: NodeInput, weight: Any, bias: NodeInput | None, residual: NodeInput | None = None, *,
            activation: str | None = None) -> str:  # fmt: skip
    matrix = weight.array if hasattr(weight, "in_features") else weight

    def keep() -> str:
        return graph.named(np.ascontiguousarray(np.asarray(matrix, np.float32).T))

    output = graph.node("MatMul", input, graph.once(weight, keep))
    if bias is not None:
        output = graph.node("Add", output, bias)
    if activation is not None:
        output = _activation(graph, output, activation=activation)
    return output if residual is None else graph.node("Add", output, residual)


def _total(graph: Graph, input: NodeInput, residual: NodeInput | None) -> NodeInput:
    return input if residual is None else graph.node("Add", input, residual)


def _layer_norm(graph: Graph, input: NodeInput, weight: NodeInput, bias: NodeInput | None = None,
                residual: NodeInput | None = None, *, eps: float) -> str:  # fmt: skip
    parts = [weight] if bias is None else [weight, bias]
    return graph.node("LayerNormalization", _total(graph, input, residual), *parts, axis=-1, epsilon=eps)


def _rms_norm(
    graph: Graph, input: NodeInput, weight: NodeInput, residual: NodeInput | None = None, *, eps: float
) -> str:
    total = _total(graph, input, residual)
    mean = graph.node("ReduceMean", graph.node("Mul", total, total), axes=[-1])
    root = graph.node("Sqrt", graph.node("Add", mean, np.float32(eps)))
    return graph.node("Mul", graph.node("Div", total, root), weight)


def _affine(
    graph: Graph, input: NodeInput, weight: NodeInput, bias: NodeInput, residual: NodeInput | None = None
) -> str:
    return graph.node("Add", graph.node("Mul", _total(graph, input, residual), weight), bias)


def _gated_activation(graph: Graph, input: Symbol, *, activation: str, gate: str) -> str:
    width = input.shape[-1] // 2
    halves = [graph.columns(input, first, first + width) for first in (0, width)]
    gated, plain = halves if gate == "first" else halves[::-1]
    return graph.node("Mul", _activation(graph, gated, activation=activation), plain)


def _take_rows(graph: Graph, table: Array, *, rows: Array, padding_row: int | None = None) -> str:
    names = [name for array, name in graph.integers if array is rows]
    if not names:
        raise ValueError("rows are not among the inputs of the graph")
    return graph.node("Gather", table, names[0])


def _take_neighbours(graph: Graph, array: NodeInput, *, cu_seqlens: Array, distances: Sequence[int]) -> str:
    most = max(map(abs, distances))
    seen = graph.node("Unsqueeze", graph.node("Cast", "attention_mask", to=1), np.array([2]))
    padded = graph.node("Pad", graph.node("Mul", array, seen), np.array([0, most, 0, 0, most, 0]))
    parts = []
    for distance in distances:
        first, behind = most + distance, most - distance
        bounds = (np.array([each]) for each in (first, -behind if behind else END, 1))
        parts.append(graph.node("Slice", padded, *bounds))
    return graph.node("Concat", *parts, axis=-1)


def _rotary(
    graph: Graph, joined: Symbol, *, heads: int, head_dim: int, cos: Array, interleaved: bool = False, **_: Any
) -> str:
    tables = next((tables for given, tables in graph.rotary if given is cos), None)
    if tables is None or (interleaved and 2 * tables[0].shape[1] < head_dim):
        raise ValueError("rotary positions of this kind have no form in ONNX graphs here")
    width, half = heads * head_dim, tables[0].shape[1]
    new_axes = np.array([1, 3] if interleaved else [1])

    def made(table: Array) -> str:
        return graph.once(
            table, lambda: graph.node("Unsqueeze", graph.node("Gather", table, graph.positions()), new_axes)
        )

    cosines, sines = map(made, tables)
    split = [0, 0, heads, half, 2] if interleaved else [0, 0, heads, head_dim]
    by_head = graph.node("Reshape", graph.columns(joined, 0, width), np.array(split))
    part = 1 if interleaved else half
    first, second = graph.columns(by_head, 0, part), graph.columns(by_head, part, 2 * part)
    turned = [
        graph.node("Sub", graph.node("Mul", first, cosines), graph.node("Mul", second, sines)),
        graph.node("Add", graph.node("Mul", second, cosines), graph.node("Mul", first, sines)),
    ]
    if 2 * half < head_dim:
        turned.append(graph.columns(by_head, 2 * half, head_dim))
    flat = graph.node("Reshape", graph.node("Concat", *turned, axis=-1), np.array([0, 0, width]))
    if joined.shape[-1] == width:
        return flat
    return graph.node("Concat", flat, graph.columns(joined, width, joined.shape[-1]), axis=-1)


def _heads(graph: Graph, projected: tuple[Symbol, ...], counts: tuple[int, ...]) -> tuple[list[str], int]:
    """Return query, key and value, (batch, heads, length, head_dim) each, and head_dim."""
    size = sum(array.shape[-1] for array in projected) // sum(counts)
    found: list[str] = []
    for array in projected:
        first = 0
        while first < array.shape[-1]:
            count = counts[len(found)]
            whole = count * size == array.shape[-1]
            part = array if whole else graph.columns(array, first, first + count * size)
            split = graph.node("Reshape", part, np.array([0, 0, count, size]))
            first += count * size
            repeats = counts[0] // count
            if repeats > 1:  # groups of queries share keys and values
                wide = graph.node("Concat", *repeats * [graph.node("Unsqueeze", split, np.array([3]))], axis=3)
                split = graph.node("Reshape", wide, np.array([0, 0, counts[0], size]))
            found.append(graph.node("Transpose", split, perm=[0, 2, 1, 3]))
    return found, size


def _self_attention(graph: Graph, *arrays: object, heads: tuple[int, int], relative: Any = None, **options: Any) -> str:
    projected = tuple(array for array in arrays if isinstance(array, Symbol))
    (query, key, value), size = _heads(graph, projected, (heads[0], heads[1], heads[1]))
    scores = graph.node("MatMul", query, graph.node("Transpose", key, perm=[0, 1, 3, 2]))
    bias = None
    if relative is not None:
        if relative.segment_ids is not None or relative.query_for_position is not None:
            raise ValueError("segments and queries of positions have no form in ONNX graphs here")
        scores, bias = _relative(graph, scores, query, key, relative)
    scale = options.get("scale")
    scores = graph.node("Mul", scores, np.float32(size**-0.5 if scale is None else scale))
    limits = graph.limits(options.get("is_causal", False), options.get("window"))
    for each in (bias, limits, graph.mask()):
        scores = scores if each is None else graph.node("Add", scores, each)
    attended = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), value)
    back = graph.node("Transpose", attended, perm=[0, 2, 1, 3])
    return graph.node("Reshape", back, np.array([0, 0, heads[0] * size]))


def _relative(graph: Graph, scores: str, query: str, key: str, relative: Any) -> tuple[str, str | None]:
    """Return the scores with the terms of relative position, and the bias that is added after the scale, or None."""
    rows, shape = graph.rows(relative.distance_rows), graph.node("Shape", scores)
    for table, content, is_key in ((relative.position_key, query, False), (relative.position_query, key, True)):
        if table is None:
            continue
        by_row = graph.node("MatMul", content, np.ascontiguousarray(np.asarray(table, np.float32).transpose(1, 2, 0)))
        index = graph.node("Transpose", rows, perm=[1, 0]) if is_key else rows
        taken = graph.node("GatherElements", by_row, graph.node("Expand", index, shape), axis=3)
        scores = graph.node("Add", scores, graph.node("Transpose", taken, perm=[0, 1, 3, 2]) if is_key else taken)
    if (table := relative.position_bias) is None:
        return scores, None

    def make() -> str:
        return graph.node("Transpose", graph.node("Gather", np.asarray(table, np.float32), rows), perm=[2, 0, 1])

    return scores, graph.once(("bias", id(table)), make)


EMITTERS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "affine": _affine,
    "activation": _activation,
    "gated_activation": _gated_activation,
    "add": lambda graph, left, right: graph.node("Add", left, right),
    "scale": lambda graph, array, *, factor: graph.node("Mul", array, np.float32(factor)),
    "take_rows": _take_rows,
    "take_neighbours": _take_neighbours,
    "slice_columns": lambda graph, array, *, first, last: graph.columns(array, first, last),
    "concatenate": lambda graph, *arrays, axis: graph.node("Concat", *arrays, axis=-1),
    # Rows in another number: those of a text stay together.
    "reshape": lambda graph, array, *, shape: graph.node("Reshape", array, np.array([0, -1, *shape[1:]])),
    "rotary": _rotary,
    "self_attention": _self_attention,
}
