"""All layers of an encoder under a tape as one operation, of which forward and backward are CUDA graphs.

Embeddings, heads and losses stay outside, operation by operation: the gradient of a table sorts ids, which CUDA does
not capture, and what a head makes of the last hidden state is for the head to say. Within the graphs the layers run as
they always do, under a tape of their own; the tape around sees one record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bertcore import kernels
from bertcore.kernels.program import TrainingGraphs
from bertcore.models.inputs import EncoderInput, KnownOnHost
from bertcore.nn.autocast import autocast_dtype
from bertcore.nn.parameter import Parameter
from bertcore.tape import OwnGradient, Tape, Variable, current_tape, unrecorded, value_of

Layers = Callable[[Any, EncoderInput], tuple[Any, Any]]

_HIDDEN = object()  # the key of what the layers are given, beside those of parameters


class TrainedLayers:
    """The graphs of an encoder's layers, for every layout of a batch."""

    def __init__(self) -> None:
        self._graphs = TrainingGraphs()

    def __call__(
        self,
        layers: Layers,
        parameters: Iterable[Parameter],
        hidden: Any,
        inputs: EncoderInput,
        known: KnownOnHost,
        key: Any,
    ) -> Any:
        """The layers' output, a Variable of the tape in force; None where this pass is to run operation by operation.

        Args:
            layers: (the last hidden state, what the layers share) of a hidden state and its batch.
            parameters: all that the layers read.
            hidden: what the first layer is given, (tokens, hidden).
            inputs: the batch.
            known: what the host knows of all batches of this layout.
            key: what else decides what the layers do.

        Raises:
            NotCaptured: where CUDA cannot capture them.
        """
        parameters = list(_with_adapters(parameters))
        if all(parameter.is_frozen for parameter in parameters):
            return None
        read = [parameter.read_in_training() for parameter in parameters]
        version, has_gradient = tuple(map(id, read)), type(hidden) is Variable
        key = key, inputs.on_gpu.rooms, known, has_gradient, autocast_dtype(), kernels.is_batch_invariant()
        if not self._graphs.has_seen(version, key):
            return None
        given = value_of(hidden), inputs.on_gpu.array
        rooms = dict(inputs.on_gpu.rooms)["input_ids"], len(given[1])
        capture = _Capture(layers, inputs, known, has_gradient, read)
        found = self._graphs.pass_of(version, key, capture, list(zip(given, rooms, strict=True)))
        return None if found is None else _recorded(found, hidden, given)


class _Kept:
    """What lives as long as the graphs: what their addresses are of, and what the gradients are of: the hidden state,
    if it has one, then parameters."""

    def __init__(self, has_hidden: bool, *arrays: Any):
        self.has_hidden, self.arrays, self.parameters = has_hidden, arrays, ()


class _Capture:
    """Runs the layers for graphs to be captured."""

    def __init__(self, layers: Layers, inputs: EncoderInput, known: KnownOnHost, has_gradient: bool, read: list[Any]):
        self._layers, self._inputs, self._known = layers, inputs, known
        self._has_gradient, self._read = has_gradient, read

    def __call__(self, hidden: Any, joined: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]], Any]:
        with Tape() as tape:
            first = tape.leaf(_HIDDEN, lambda: hidden) if self._has_gradient else hidden
            state, context = self._layers(first, self._inputs.with_room(joined, self._known))
        kept = _Kept(self._has_gradient, context, self._read)

        def backward(gradient: Any) -> tuple[Any, ...]:
            with unrecorded():
                found = tape.gradients(state, gradient)
            of_hidden = [found.pop(_HIDDEN)] if self._has_gradient else []
            kept.parameters = tuple(found)
            return *of_hidden, *found.values()

        return state.value, backward, kept


def _with_adapters(parameters: Iterable[Parameter]) -> Iterable[Parameter]:
    for parameter in parameters:
        yield parameter
        if parameter.adapter is not None:
            yield from parameter.adapter.parameters()


def _recorded(found: Any, hidden: Any, given: tuple[Any, ...]) -> Variable:
    """The output of a pass by graphs, as an operation of the tape in force."""
    tape = current_tape()
    leaves = [tape.leaf(parameter, lambda: None, form="in graphs") for parameter in found.kept.parameters]

    def pullback(gradient: Any) -> tuple[Any, ...]:
        first, *others = found.backward(gradient)
        if found.kept.has_hidden:
            first = first[: len(gradient)]
        return tuple(map(OwnGradient, (first, *others)))

    inputs = (hidden, *leaves) if found.kept.has_hidden else tuple(leaves)
    return tape.record(found.forward(given), inputs, pullback)
