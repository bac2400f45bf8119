"""All layers of an encoder under a tape on a GPU: one operation, of which forward and backward are CUDA graphs.

Embeddings, heads and losses stay outside, operation by operation: the gradient of a table sorts ids, which CUDA does
not capture, and what a head makes of the last hidden state is for the head to say. Within the graphs the layers run as
they always do, under a tape of their own; the tape around sees one record.

Batches have room for more tokens, of zeros, and those that are computed operation by operation have it, too: sums over
tokens have one order then, so that a run that goes on from a checkpoint, where other layouts came before, has the bits
of one that was never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.program import NotCaptured, TrainingGraphs
from bertcore.models.inputs import EncoderInput, KnownOnHost
from bertcore.nn.autocast import autocast_dtype
from bertcore.nn.dropout import SeedsOnGPU, current_seeds, drawn_from
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.tape import OwnGradient, Tape, Variable, current_tape, unrecorded, value_of

MOST_SEEDS = 1024  # of dropout in one pass: three a layer, and one for each adapter
# Tokens times parameters of a pass whose products take a GPU as long as the Python of its step does: 20 ms at 400
# TFLOPS. Beyond it nothing is gained by graphs, and room would cost its share.
MOST_WORK = 1 << 40

Layers = Callable[[Any, EncoderInput], tuple[Any, Any]]

_HIDDEN = object()  # the key of what the layers are given, beside those of parameters


class TrainedLayers:
    """The layers of an encoder under a tape, and their graphs for every layout of a batch."""

    def __init__(self) -> None:
        self._graphs = TrainingGraphs()

    def __call__(
        self,
        layers: Layers,
        blocks: Sequence[Block],
        hidden: Any,
        inputs: EncoderInput,
        known: KnownOnHost,
        key: Any,
    ) -> Any:
        """The layers' output by graphs, a Variable of the tape in force; None where there are none for this pass.

        Args:
            layers: (the last hidden state, what the layers share) of a hidden state and its batch.
            blocks: all that the layers are made of.
            hidden: what the first layer is given, (tokens, hidden).
            inputs: the batch.
            known: what the host knows of all batches of this layout.
            key: what else decides what the layers do.

        Raises:
            NotCaptured: where CUDA cannot capture them.
        """
        attributes = [pair for block in dict.fromkeys(blocks) for pair in _attributes(block)]
        parameters = dict.fromkeys(item for _, item in attributes if isinstance(item, Parameter))
        if all(parameter.is_frozen for parameter in parameters):
            return None
        read = [*blocks, *(parameter.read_in_training() for parameter in parameters)]
        read += [item for name, item in attributes if not (name.startswith("_") or isinstance(item, Parameter))]
        # Graphs keep what they read, so that nothing else has its address; numbers, as rates of dropout, may be equal.
        version = tuple(item if type(item) is float else id(item) for item in read)
        has_gradient, seeds = type(hidden) is Variable, current_seeds()
        settings = None if seeds is None else seeds.count, autocast_dtype(), kernels.is_batch_invariant()
        key = key, inputs.on_gpu.rooms, known, has_gradient, settings
        given, rooms = (value_of(hidden), inputs.on_gpu.array), (inputs.room, len(inputs.on_gpu.array))
        arrays = [*zip(given, rooms, strict=True), (np.zeros(0, np.uint64), MOST_SEEDS)]
        capture = _Capture(layers, inputs, known, has_gradient, read)
        found = self._graphs.begin(version, key, capture, arrays)
        return None if found is None else _recorded(found, hidden, (*given, _seeds(found.kept.seeds)))


def is_worth_graphs(blocks: Sequence[Block], inputs: EncoderInput) -> bool:
    """Whether Python may take as long for the layers as the GPU does."""
    size = sum(math.prod(parameter.shape) for block in blocks for parameter in block.parameters())
    return 0 < inputs.room * size <= MOST_WORK


def with_room(layers: Layers, hidden: Any, inputs: EncoderInput, known: KnownOnHost) -> Any:
    """What the graphs compute, operation by operation, with the same bits."""
    state, _ = layers(_with_room(hidden, room=inputs.room), inputs.with_room(inputs.on_gpu.array, known))
    return _first_rows(state, count=len(value_of(hidden)))


@operation()
def _with_room(hidden: Any, *, room: int) -> Any:
    return _padded(hidden, room), lambda gradient: (gradient[: len(hidden)],)


@operation()
def _first_rows(state: Any, *, count: int) -> Any:
    return state[:count], lambda gradient: (_padded(gradient, len(state)),)


def _padded(rows: Any, room: int) -> Any:
    padded = kernels.array_module(rows).zeros((room, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _attributes(block: Block) -> Iterator[tuple[str, Any]]:
    """Those of the block and of its parameters' adapters."""
    for name, item in block.attributes():
        yield name, item
        if isinstance(item, Parameter) and item.adapter is not None:
            yield from _attributes(item.adapter)


class _Kept:
    """What lives as long as the graphs: what their addresses are of, where seeds were drawn from, and what has the
    gradients: the hidden state, if it has one, then parameters."""

    def __init__(self, has_hidden: bool, seeds: SeedsOnGPU | None, *arrays: Any):
        self.has_hidden, self.seeds, self.arrays, self.parameters = has_hidden, seeds, arrays, ()


class _Capture:
    """Runs the layers for graphs to be captured."""

    def __init__(self, layers: Layers, inputs: EncoderInput, known: KnownOnHost, has_gradient: bool, read: list[Any]):
        self._layers, self._inputs, self._known = layers, inputs, known
        self._has_gradient, self._read = has_gradient, read

    def __call__(self, hidden: Any, joined: Any, seeds: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]], Any]:
        around = current_seeds()
        drawn = None if around is None else SeedsOnGPU(seeds, around.count)
        with Tape() as tape, drawn_from(drawn):
            first = tape.leaf(_HIDDEN, lambda: hidden) if self._has_gradient else hidden
            state, context = self._layers(first, self._inputs.with_room(joined, self._known))
        if type(state) is not Variable or state is first:
            raise NotCaptured("nothing that its layers read has a gradient")
        kept = _Kept(self._has_gradient, drawn, context, self._read)

        def backward(gradient: Any) -> tuple[Any, ...]:
            with unrecorded():
                found = tape.gradients(state, gradient)
            of_hidden = [found.pop(_HIDDEN)] if self._has_gradient else []
            kept.parameters = tuple(found)
            return *of_hidden, *found.values()

        return state.value, backward, kept


def _seeds(drawn: SeedsOnGPU | None) -> Any:
    """The seeds of this pass, in the places of those that were `drawn` for the graphs; as if they were drawn now."""
    if drawn is None:
        return np.zeros(0, np.uint64)
    around, seeds = current_seeds(), np.zeros(MOST_SEEDS, np.uint64)
    numbers = drawn.numbers(around.seed)
    seeds[: len(numbers)], around.count = numbers, drawn.count
    return kernels.to_backend(seeds)


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
