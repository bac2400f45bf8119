"""A pass through a model: the settings that it depends on, including mixed precision and loss options.

The public settings (`use_backend`, `autocast`, a tape, `Model.train`) are read once, where a model is called. From then
on they are a `Pass`, the first argument, `run`, of every block, parameter read and operation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import Array, NativeArray
from bertcore.tape import Tape, Tensor, current_tape, within

Place = tuple[str, int, str | None]
AUTOCAST = "bfloat16", "float16"
_MASK = 2**64 - 1


@dataclass
class ClassOptions:
    """Options of losses that compare classes with their scores, within `use_class_options`: as for `cross_entropy`.

    Weights are in host memory; `were_used` is set by a loss that had such labels.
    """

    label_smoothing: float = 0.0
    class_weights: np.ndarray | None = None
    were_used: bool = False

    def weights_for(self, logits: NativeArray, to_backend: Callable[[Any], Any]) -> NativeArray | None:
        """Return the weights in the dtype and the memory of `logits`, (rows, classes); None if there are none."""
        self.were_used = True
        if self.class_weights is None:
            return None
        if self.class_weights.shape != logits.shape[1:]:
            raise ValueError(f"class_weights has shape {self.class_weights.shape}, expected ({logits.shape[1]},)")
        return to_backend(self.class_weights.astype(logits.dtype))


_dtype: ContextVar[str | None] = ContextVar("bertcore_autocast", default=None)
_options: ContextVar[ClassOptions | None] = ContextVar("bertcore_class_options", default=None)
_loss_factors: ContextVar[tuple[float, ...]] = ContextVar("bertcore_loss_factors", default=())
_scores: ContextVar[list[Any] | None] = ContextVar("bertcore_scores", default=None)
_losses: ContextVar[list[Any] | None] = ContextVar("bertcore_losses", default=None)


def autocast(dtype: str) -> AbstractContextManager[None]:
    """Compute in 16 bits with a model in float32 within a `with` block, for this thread or task alone.

        with autocast("bfloat16"):
            out, grads = value_and_grad(model)(**batch)

    The parameters and their gradients stay float32 (Kalamkar et al. 2019, arXiv:1905.12322). On the CPU, only
    "bfloat16" is possible: both factors of each product with the weight of a linear layer are rounded, forward and
    backward, and their products summed in float32; all else is float32. It is faster on a CPU that multiplies bfloat16
    faster than float32; on others the backend numba rounds only the weights. On a GPU all parameters are rounded, and
    activations and their gradients are of `dtype`; sums of products, norms, softmaxes and losses are float32. Gradients
    in "float16" may vanish: see `TrainingArguments(fp16=True)`.

    Raises:
        ValueError: for another dtype; from a model's call, for "float16" on the CPU.
    """
    if dtype not in AUTOCAST:
        raise ValueError(f"dtype is {dtype!r}, expected {' or '.join(map(repr, AUTOCAST))}")
    return within(_dtype, dtype)


def use_class_options(options: ClassOptions) -> AbstractContextManager[ClassOptions]:
    """Return a block in which models' losses follow `options`."""
    return within(_options, options)


def use_loss_factors(factors: tuple[float, ...]) -> AbstractContextManager[tuple[float, ...]]:
    """Return a block in which a loss that is a sum multiplies its summands by these; a factor of 0 leaves one out."""
    return within(_loss_factors, factors)


def kept_scores() -> AbstractContextManager[list[Any]]:
    """Return a block that keeps the scores of labelled tokens, (labels, words), in a list, for losses on them."""
    return within(_scores, [])


def kept_losses() -> AbstractContextManager[list[Any]]:
    """Return a block that keeps the summands of losses that are sums, before they are added up, in a list."""
    return within(_losses, [])


def mixed_seed(seed: int, number: int) -> int:
    """Return a seed for each number, unlike the ones from other seeds: SplitMix64's finaliser (Steele et al. 2014)."""
    mixed = (seed + number * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


class Seeds:
    """The seeds of a pass's dropout, which follow from one seed of 64 bits; `count` of them were drawn.

    A layer has a sequence of its own (`Pass.at_site`), so that, run again for the backward (`tape.checkpoint`), it
    draws the same seeds.
    """

    def __init__(self, seed: int):
        self.seed, self.count = seed, 0

    def draw(self) -> int | NativeArray:
        """Return the next seed."""
        self.count += 1
        return mixed_seed(self.seed, self.count)

    def of_site(self, number: int) -> Seeds:
        """Return the seeds of the site of this number, from the first one on."""
        return Seeds(mixed_seed(self.seed, -1 - number))


@dataclass
class Trace:
    """The values that one pass keeps of its layers and heads; None for values not kept."""

    states: list | None = None  # the input of each layer and the output of the last
    attentions: list | None = None  # each layer's probabilities
    shows_states: bool = False  # whether the caller asked for the states (an adapter may need them for itself)
    projections: list | None = None  # each layer's (query, key, value)
    # the numbers of the layers, from 1 on, whose projections the caller asked for; None for all
    shown_projections: Collection[int] | None = None
    layers: int | None = None  # how many layers run, for a model that continues from there on its own; None for all
    scores: list | None = None  # scores of labelled tokens, (labels, words), of language models
    losses: list | None = None  # the summands of the loss

    @classmethod
    def asked(cls, hidden_states: bool, attentions: bool, projections: bool | Collection[int]) -> Trace:
        """Return the trace that a caller asked for."""
        states, probabilities = [] if hidden_states else None, [] if attentions else None
        shown = None if isinstance(projections, bool) else projections
        return cls(states, probabilities, hidden_states, [] if projections else None, shown)

    @property
    def is_empty(self) -> bool:
        """True if nothing is kept of the layers."""
        return self.states is None and self.attentions is None and self.projections is None


class Cache(Protocol):
    """The keys and values of a generation, as a layer uses them: `models.generation.KeyValueCache`."""

    def attend(
        self, run: Pass, layer: int, qkv: Tensor, *, num_heads: int, scale: float | None, compute_dtype: str | None
    ) -> Tensor:
        """Keep the layer's new keys and values, and return the attention of the new tokens to all so far."""


class Graph(Protocol):
    """A graph that operations add themselves to instead of computing: `formats.onnx_operations.Graph`."""

    def call(self, operation: Any, run: Pass, arrays: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
        """Return the operation's output."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Everything that one pass depends on besides its inputs."""

    backend: str  # "numpy", "numba" or "cupy"
    gpu: int = 0  # the number of the GPU that computes; 0 on the CPU
    on_gpu: bool = False  # whether arrays are in the memory of a GPU
    autocast: str | None = None  # the dtype of `autocast`
    tape: Tape | None = None  # the tape that records the pass
    seeds: Seeds | None = None  # the source of dropout's seeds; None if nothing is dropped
    trace: Trace = field(default_factory=Trace)  # the values that the pass keeps
    cache: Cache | None = None  # keys and values of a generation
    class_options: ClassOptions | None = None  # how losses compare labels that are classes
    loss_factors: tuple[float, ...] = ()  # the factors on the summands of a loss; () for 1
    is_deferred: bool = False  # whether operations may be given Deferred arrays, by a program that is being recorded
    graph: Graph | None = None  # of another runtime, that the operations are added to (is_deferred is then True)
    place: Place = field(init=False)  # (backend, gpu, autocast); what is prepared from parameters is kept per place
    is_inference: bool = field(init=False)  # whether neither a tape records nor anything is dropped

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", (self.backend, self.gpu, self.autocast))
        object.__setattr__(self, "is_inference", self.tape is None and self.seeds is None)

    @classmethod
    def begin(cls, like: Array | None = None, *, trace: Trace | None = None, seeds: Seeds | None = None) -> Pass:
        """Return the pass that the settings in force ask for; nothing else reads them.

        The backend "auto" follows the memory of `like`; host memory by default. Raises BackendUnavailable if the
        backend in force cannot run here.
        """
        is_cupy = like is not None and kernels.array_module(like) is not np
        backend = kernels.resolve_backend(None, on_gpu=is_cupy)
        on_gpu = backend == "cupy" and kernels.uses_gpu(backend)
        trace = Trace() if trace is None else trace
        trace.scores, trace.losses = _scores.get(), _losses.get()
        gpu = kernels.current_gpu() if backend == "cupy" else 0
        options = {"class_options": _options.get(), "loss_factors": _loss_factors.get()}
        return cls(backend, gpu, on_gpu, _dtype.get(), current_tape(), trace=trace, seeds=seeds, **options)

    def to_backend(self, array: Any) -> NativeArray:
        """Return a NumPy array in the memory of the backend."""
        return kernels.to_backend(array, self.backend) if self.on_gpu else array

    def at_site(self, number: int) -> Pass:
        """Return the pass whose seeds depend on this number and the seed alone, however many others were drawn."""
        return self if self.seeds is None else replace(self, seeds=self.seeds.of_site(number))
