"""The graph executor: on a GPU the passes of a recurring layout are CUDA graphs.

In inference a graph holds the embeddings and the layers. Under a tape the layers are one operation, whose forward and
backward are graphs: embeddings, heads and losses stay outside, operation by operation, since the gradient of a table
sorts ids, which CUDA does not capture. Within the graphs the layers run as they always do, under a tape of their own.

Batches have capacity for more tokens, filled with zeros, even when they are trained operation by operation: sums over
tokens then have one order, so that a run resumed from a checkpoint, after other layouts, has the bits of one that was
never stopped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import warn_caller
from bertcore.execution import eager
from bertcore.execution.eager import Executable
from bertcore.execution.graph_cache import InferenceGraphs, NotCaptured, TrainingGraphs, TrainingPass
from bertcore.kernels.arrays import NativeArray
from bertcore.models.inputs import Bounds, EncoderInput
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.passes import Pass, Seeds, Trace, mixed_seed
from bertcore.tape import OwnGradient, Tape, Tensor, Variable, value_of

MOST_SEEDS = 1024  # of dropout in one pass: three a layer, and one for each adapter
# Tokens times parameters of a pass whose products take a GPU as long as the Python of its step does: 20 ms at 400
# TFLOPS. Beyond it nothing is gained by graphs, and capacity would cost its share.
MOST_WORK = 1 << 40

_HIDDEN = object()  # the key of the layers' input, beside the keys of parameters


class NotCapturedWarning(RuntimeWarning):
    """A model's passes on the GPU run without CUDA graphs, as one of them could not be captured."""


class Graphs:
    """The CUDA graphs of an encoder."""

    def __init__(self) -> None:
        self._inference, self._training = InferenceGraphs(), TrainingGraphs()

    def run(self, run: Pass, encoder: Executable, inputs: EncoderInput) -> Tensor:
        """Return the last hidden state of a batch; passes that cannot be graphs run operation by operation."""
        bounds = _bounds(run, encoder, inputs)
        if bounds is None:
            return eager.run(run, encoder, inputs)
        if run.tape is not None:
            return self._train(run, encoder, inputs, bounds)
        replayed = self._replay(run, encoder, inputs, bounds)
        return eager.run(run, encoder, inputs) if replayed is None else replayed

    def _replay(self, run: Pass, encoder: Executable, inputs: EncoderInput, bounds: Bounds) -> Tensor | None:
        """Return the last hidden state, and keep the states that the trace keeps; None without a graph."""
        trace = run.trace

        def build(integers: NativeArray) -> tuple[tuple[Any, ...], Any]:
            own, before = replace(trace, states=None if trace.states is None else []), encoder.in_use()
            inner = replace(run, trace=own)
            state, context = encoder.adapter.begin(inner, inputs.with_capacity(integers, bounds), encoder.embeddings)
            state = encoder.run_layers(inner, state, context)
            # Another thread may replace parameters meanwhile: keep those from before and from after.
            kept = context.in_use(), before, encoder.in_use()
            return (state,) if own.states is None else tuple(own.states), kept

        settings = trace.layers, trace.is_empty, run.autocast, kernels.is_batch_invariant()
        key = inputs.on_gpu.capacities, bounds, settings
        try:
            results = self._inference.run(encoder.version, key, build, inputs.on_gpu.array, inputs.tokens)
        except NotCaptured as error:
            _warn_not_captured(error)
            return None
        if results is None:
            return None
        if trace.states is not None:
            trace.states.extend(results)
        return results[-1]

    def _train(self, run: Pass, encoder: Executable, inputs: EncoderInput, bounds: Bounds) -> Tensor:
        """Return the last hidden state of a batch under a tape, of layers that may be CUDA graphs."""

        def layers(run: Pass, hidden: Tensor, inputs: EncoderInput) -> tuple[Tensor, Any]:
            inner = replace(run, trace=Trace(layers=run.trace.layers))
            state, context = encoder.adapter.begin(inner, inputs, lambda run, inputs: hidden)
            return encoder.run_layers(inner, state, context), context

        self._inference.keep_only(lambda: encoder.version)  # drop graphs of weights that training replaced
        hidden = encoder.embeddings(run, inputs)
        try:
            output = self._trained(run, encoder, layers, hidden, inputs, bounds)
        except NotCaptured as error:
            _warn_not_captured(error)
            output = None
        if output is not None:
            return output
        state, _ = layers(
            run,
            _with_capacity(run, hidden, capacity=inputs.capacity),
            inputs.with_capacity(inputs.on_gpu.array, bounds),
        )
        return _first_rows(run, state, count=len(value_of(hidden)))

    def _trained(
        self, run: Pass, encoder: Executable, layers: Callable, hidden: Tensor, inputs: EncoderInput, bounds: Bounds
    ) -> Variable | None:
        attributes = [pair for block in dict.fromkeys(_blocks(run, encoder)) for pair in _attributes(block)]
        parameters = dict.fromkeys(item for _, item in attributes if isinstance(item, Parameter))
        if all(parameter.is_frozen for parameter in parameters):
            return None
        read = [*_blocks(run, encoder), *(parameter.read_in_training(run) for parameter in parameters)]
        read += [item for name, item in attributes if not (name.startswith("_") or isinstance(item, Parameter))]
        # Graphs keep what they read, so nothing else has its address; numbers, such as dropout rates, are compared.
        version = tuple(item if type(item) is float else id(item) for item in read)
        has_gradient, seeds = type(hidden) is Variable, run.seeds
        settings = None if seeds is None else seeds.count, run.autocast, kernels.is_batch_invariant()
        settings = *settings, run.trace.layers, encoder.recomputes_layers
        key = inputs.on_gpu.capacities, bounds, has_gradient, settings
        given, sizes = (value_of(hidden), inputs.on_gpu.array), (inputs.capacity, len(inputs.on_gpu.array))
        arrays = [*zip(given, sizes, strict=True), (np.zeros(0, np.uint64), MOST_SEEDS)]
        capture = _capture(run, layers, inputs, bounds, has_gradient, read)
        found = self._training.begin(version, key, capture, arrays)
        return None if found is None else _recorded(run, found, hidden, (*given, _seeds(run, found.kept.seeds)))


def _bounds(run: Pass, encoder: Executable, inputs: EncoderInput) -> Bounds | None:
    """Return what the host knows of all batches that this pass's graph serves; None if the pass cannot be a graph.

    A graph cannot depend on masks or on a family's own inputs that are read on the host nor, with rotary layers, on
    given positions or on texts that may be long enough to change the angles.
    """
    trace, adapter, tokens = run.trace, encoder.adapter, inputs.capacity
    if inputs.on_gpu is None or not inputs.is_plain or adapter.needs_whole_batch:
        return None
    if any(getattr(layer, "reads_on_host", False) for layer in encoder.layers):
        return None
    if run.tape is None:
        may_be = trace.attentions is None and trace.projections is None and run.seeds is None
    else:
        size = sum(math.prod(parameter.shape) for block in _blocks(run, encoder) for parameter in block.parameters())
        may_be = trace.is_empty and 0 < tokens * size <= MOST_WORK
    rotary = {layer.rotary for layer in encoder.spec.layers} - {None}
    is_same = all(each.scaling != "dynamic" or tokens <= each.trained_length for each in rotary)
    if not may_be or not is_same or (rotary and inputs.position_ids is not None):
        return None
    return inputs.bounds(adapter.reads_on_host(run))


def _blocks(run: Pass, encoder: Executable) -> list[Block]:
    """Return the blocks that run between the embeddings and the last hidden state."""
    norm = [] if encoder.final_norm is None else [encoder.final_norm]
    return [encoder.adapter, *encoder.layers[: run.trace.layers], *norm]


def _warn_not_captured(error: NotCaptured) -> None:
    message = f"a pass cannot be captured as a CUDA graph, so all run operation by operation, slower: {error}"
    warn_caller(message, NotCapturedWarning)


# --- training ---------------------------------------------------------------------------------------------------------


class _SeedsOnGPU(Seeds):
    """Seeds for a captured pass, in GPU memory at `array`; the same draw of each pass has the same place."""

    def __init__(self, array: NativeArray, count: int):
        self.count, self._array, self._path = count, array, ()
        self._places: dict[tuple[int, ...], int] = {}  # of each draw; a path of numbers leads to it

    def draw(self) -> NativeArray:
        self.count += 1
        place = self._places.setdefault((*self._path, self.count), len(self._places))
        if place == len(self._array):
            raise NotCaptured(f"it draws more than {place} seeds of dropout")
        return self._array[place : place + 1]

    def of_site(self, number: int) -> _SeedsOnGPU:
        site = _SeedsOnGPU(self._array, 0)
        site._path, site._places = (*self._path, -1 - number), self._places
        return site

    def numbers(self, seed: int) -> list[int]:
        """Return the seeds that follow from `seed`, in the order of their places."""
        return [functools.reduce(mixed_seed, path, seed) for path in self._places]


def _seeds(run: Pass, drawn: _SeedsOnGPU | None) -> NativeArray:
    """Return the seeds of this pass, in the places of those that were `drawn` for the graphs."""
    if drawn is None:
        return np.zeros(0, np.uint64)
    seeds = np.zeros(MOST_SEEDS, np.uint64)
    numbers = drawn.numbers(run.seeds.seed)
    seeds[: len(numbers)], run.seeds.count = numbers, drawn.count
    return run.to_backend(seeds)


def _capture(
    run: Pass, layers: Callable, inputs: EncoderInput, bounds: Bounds, has_gradient: bool, read: list[Any]
) -> Callable[..., tuple[Any, Callable[[Any], tuple[Any, ...]], Any]]:
    """Return a function that runs the layers so that graphs can be captured."""
    around = run.seeds

    def capture(hidden: Tensor, integers: Any, seeds: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]], Any]:
        tape, drawn = Tape(), None if around is None else _SeedsOnGPU(seeds, around.count)
        first = tape.leaf(_HIDDEN, hidden) if has_gradient else hidden
        state, context = layers(replace(run, tape=tape, seeds=drawn), first, inputs.with_capacity(integers, bounds))
        if type(state) is not Variable or state is first:
            raise NotCaptured("nothing that its layers read has a gradient")
        # Objects that live as long as the graphs: the arrays that they read, the seeds, the owners of the gradients.
        kept = SimpleNamespace(has_hidden=has_gradient, seeds=drawn, read=(context, read), parameters=())

        def backward(gradient: NativeArray) -> tuple[Any, ...]:
            found = tape.gradients(state, gradient)
            of_hidden = [found.pop(_HIDDEN)] if has_gradient else []
            kept.parameters = tuple(found)
            return *of_hidden, *found.values()

        return state.value, backward, kept

    return capture


def _recorded(run: Pass, found: TrainingPass, hidden: Tensor, given: tuple[Any, ...]) -> Variable:
    """Return the output of a pass by graphs, as an operation of the tape."""
    tape = run.tape
    leaves = [tape.leaf(parameter, None, form="in graphs") for parameter in found.kept.parameters]

    def pullback(gradient: NativeArray) -> tuple[Any, ...]:
        first, *others = found.backward(gradient)
        if found.kept.has_hidden:
            first = first[: len(gradient)]
        return tuple(map(OwnGradient, (first, *others)))

    inputs = (hidden, *leaves) if found.kept.has_hidden else tuple(leaves)
    return tape.record(found.forward(given), inputs, pullback)


@operation()
def _with_capacity(run: Pass, hidden: Tensor, *, capacity: int) -> Tensor:
    return _padded(hidden, capacity), lambda gradient: (gradient[: len(hidden)],)


@operation()
def _first_rows(run: Pass, state: Tensor, *, count: int) -> Tensor:
    return state[:count], lambda gradient: (_padded(gradient, len(state)),)


def _padded(rows: NativeArray, capacity: int) -> NativeArray:
    padded = kernels.array_module(rows).zeros((capacity, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return padded


def _attributes(block: Block) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of the block and of its parameters' adapters."""
    for name, item in block.attributes():
        yield name, item
        if isinstance(item, Parameter) and item.adapter is not None:
            yield from _attributes(item.adapter)
