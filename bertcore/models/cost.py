"""The cost of models: sizes and operations computed from a config, and passes measured on this machine.

`figures` computes parameters, FLOPs and memory without arrays. FLOPs are those of the encoder's products (without
poolers, heads, norms and activations), per token:

    2 * W + the sum over layers of 2 * K * (A * (1 + R) + A)

W: the size of the weights of linear layers that a token passes, shared layers as often as it passes them;
K: the average number of tokens that a token attends to: a sequence of `length`, a window, or the tokens before it;
A: the width of queries, keys and values; R: the terms of relative position (two in DeBERTa, one in XLNet).

`pass_costs` measures each model in its own process, to attribute memory to it. The models take turns, so that other
load on the machine affects all of them equally.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore.arguments import DTYPES
from bertcore.kernels.linear.prepared import group_count
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import LayerSpec
from bertcore.system import check_resident_is_reported, resident_megabytes

if TYPE_CHECKING:
    from bertcore.models.model import Model


@dataclass(frozen=True)
class Figures:
    """A model in numbers."""

    family: str  # its model_type
    # of the encoder
    layers: int
    heads: int
    # widths, as `EncoderSpec` has them
    hidden_size: int
    intermediate_size: int
    embedding_size: int
    attention_size: int  # the width of all heads' queries
    # rows of the tables
    vocabulary: int
    token_types: int
    positions: int | None  # the most tokens of a sequence; None without a limit
    # "learned absolute", "sinusoidal", "relative", "rotary", "ALiBi" or "none"; "learned absolute + relative" for both
    position_encoding: str
    parameters: int  # of the base model, with its pooler where the family has one
    embeddings: int  # the parameters in embedding tables
    wide_embeddings: int  # the parameters that the tables would have if they were as wide as the layers
    layer_parameters: int  # the parameters of the layers
    unshared_layer_parameters: int  # the parameters that the layers would have without sharing
    length: int  # the sequence length that the FLOPs are computed for
    weights_passed: int  # W above
    flops_per_token: int  # see above
    # size of the parameters by dtype, in 10^6 bytes: on a CPU, bfloat16 and int8 keep vectors in float32, and int8
    # keeps the tables in bfloat16
    megabytes: Mapping[str, float]
    classes: tuple[str, ...]  # bertcore's model classes for the family


def figures(config: Mapping[str, Any], length: int = 128) -> Figures:
    """Return the figures of a config's model. Raises ValueError if the model cannot be constructed.

    A `length` beyond the model's longest sequence is reduced to that.
    """
    from bertcore.models.architectures import models_of

    models = models_of(config)
    model = models["AutoModel"]
    spec = model.spec
    length = min(length, spec.longest_sequence or length)
    known = list(model.parameters())
    embeddings = sum(_size(parameter) for parameter in known if parameter.uses == {"table"})
    layers = model.encoder.layers
    return Figures(
        family=config["model_type"],
        layers=spec.num_layers,
        heads=spec.num_heads,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.layers[0].intermediate_size,
        embedding_size=spec.embedding_size,
        attention_size=spec.layers[0].attention_size,
        vocabulary=spec.vocab_size,
        token_types=spec.type_vocab_size,
        positions=spec.longest_sequence,
        position_encoding=_position_encoding(model),
        parameters=model.num_parameters(),
        embeddings=embeddings,
        wide_embeddings=embeddings * spec.hidden_size // spec.embedding_size,
        layer_parameters=_sizes(dict.fromkeys(layers)),
        unshared_layer_parameters=_sizes(layers),
        length=length,
        weights_passed=weights_passed(model),
        flops_per_token=flops_per_token(model, length),
        megabytes={dtype: sum(_bytes(each, dtype) for each in known) / 1e6 for dtype in DTYPES if dtype != "float64"},
        classes=tuple(models),
    )


def _position_encoding(model: Model) -> str:
    spec = model.spec
    if any(layer.rotary for layer in spec.layers):
        return "rotary"
    if spec.biases_scores and not spec.max_positions and next(model.encoder.adapter.parameters(), None) is None:
        return "ALiBi"
    table = "sinusoidal" if model.config.get("sinusoidal_pos_embds") else "learned absolute"
    is_relative = spec.biases_scores or any(layer.attention.position_terms for layer in model.encoder.layers)
    return " + ".join([table] * bool(spec.max_positions) + ["relative"] * is_relative) or "none"


def weights_passed(model: Model) -> int:
    """Return the size of the linear weights that each token passes; of experts, only the chosen ones count."""
    blocks, total = [model.encoder.embeddings, *model.encoder.layers], 0
    for parameter in (each for block in blocks for each in block.token_weights()):
        chosen, count = parameter.chosen_of or (1, 1)
        total += _size(parameter) * chosen // count
    return total


def flops_per_token(model: Model, length: int) -> int:
    """Return the FLOPs of the encoder's products for one token of a sequence of `length`, by the formula at the top."""
    attention = sum(
        2 * _keys(layer, length) * layer.attention_size * (2 + block.attention.position_terms)
        for layer, block in zip(model.spec.layers, model.encoder.layers, strict=True)
    )
    return round(2 * weights_passed(model) + attention)


def _keys(layer: LayerSpec, length: int) -> float:
    """Return the average number of tokens that a token attends to in a sequence of `length`."""
    before, after = layer.window or (length, length)
    if layer.is_causal:
        after = 0
    places = np.arange(length)
    return float((np.minimum(places, before) + np.minimum(length - 1 - places, after) + 1).mean())


def _size(parameter: Parameter) -> int:
    return sum(math.prod(shape) for shape in parameter.expected.values())


def _sizes(blocks: Iterable[Block]) -> int:
    return sum(_size(parameter) for block in blocks for parameter in block.parameters())


def _bytes(parameter: Parameter, dtype: str) -> int:
    """Return a parameter's bytes; in low precision on a CPU tables are in bfloat16, vectors in float32."""
    size, found = _size(parameter), 0
    if dtype in ("float32", "float16"):
        return size * (4 if dtype == "float32" else 2)
    if "weight" in parameter.uses:
        rows, columns = parameter.shape
        scales = {"int8": 4 * rows, "int8_weight_only": 2 * rows * group_count(columns)}
        found += 2 * size if dtype == "bfloat16" else size + scales[dtype]
    if parameter.uses != {"weight"}:
        found += 4 * size if parameter.uses == {"vector"} else 2 * size
    return found


ROUNDS = 7
TURN = 0.2  # least seconds for which a model runs in a round
WARM_UP = 2  # the first pass of a model prepares data that later passes use


@dataclass(frozen=True)
class Member:
    """A model to be measured."""

    name: str  # what messages call it
    config: Mapping[str, Any]  # as in config.json
    folder: Path | None = None  # its checkpoint; None for random weights in float32


@dataclass(frozen=True)
class PassCost:
    """The measured cost of a pass."""

    seconds: tuple[float, ...]  # the time of a pass, in each round
    # megabytes (10^6 bytes) of the process after the passes, beyond Python with NumPy: weights, scratch memory,
    # compiled kernels and the compiler's library
    resident: float
    on_disk: float  # megabytes of the weight files; for random weights, their size in float32

    @property
    def latency(self) -> float:
        return statistics.median(self.seconds)


def pass_costs(members: Sequence[Member], batch: int, length: int, *, backend: str = "numba") -> list[PassCost]:
    """Measure a pass of `batch` sequences of `length` random tokens through each model's encoder on this machine.

    All models are loaded at the same time.

    Raises:
        ValueError: if the length is beyond a model's longest sequence.
        OSError: if the system does not report the memory of a process (Linux does).
        RuntimeError: if a model cannot be loaded or a pass fails, with the message.
    """
    check_resident_is_reported()
    on_disk = [_megabytes_on_disk(member, length) for member in members]
    asked = {"batch": batch, "length": length, "backend": backend}
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(warm_worker(member, asked)) for member in members]
        rounds = [[worker.turn() for worker in workers] for _ in range(ROUNDS)]
    turns = zip(*rounds, strict=True)
    return [
        PassCost(tuple(turn["seconds"] for turn in own), own[-1]["resident"], megabytes)
        for own, megabytes in zip(turns, on_disk, strict=True)
    ]


def _megabytes_on_disk(member: Member, length: int) -> float:
    from bertcore.checkpoint import naming_config, open_checkpoint
    from bertcore.models.auto import AutoModel

    with naming_config(member.name):
        model = AutoModel.class_for_config(member.config)(member.config)
    longest = model.spec.longest_sequence
    if longest is not None and length > longest:
        raise ValueError(f"length is {length}, expected at most {longest}, the limit of {member.name}")
    if member.folder is None:
        return model.num_parameters() * 4 / 1e6
    files = {info.file for info in open_checkpoint(member.folder).info.values()}
    return sum(file.stat().st_size for file in files) / 1e6


@contextlib.contextmanager
def warm_worker(member: Member, asked: Mapping[str, Any]) -> Iterator[_Worker]:
    """Start a process with the model and let it make its first passes.

    A process that compiled kernels also holds the compiler (100 MB and more), so it is replaced by a new one.
    """
    folder = member.folder and str(member.folder)
    asked = {**asked, "config": dict(member.config), "folder": folder}
    for is_last in (False, True):
        with started_worker(member.name) as worker:
            if not worker.ask(asked)["compiled"] or is_last:
                yield worker
                return


@contextlib.contextmanager
def started_worker(name: str) -> Iterator[_Worker]:
    context = multiprocessing.get_context("spawn")  # the process begins without this one's memory
    with ProcessPoolExecutor(1, context) as executor:
        yield _Worker(name, executor)


@dataclass(frozen=True)
class _Worker:
    """A process with one model, which runs a pass on request."""

    name: str
    executor: ProcessPoolExecutor

    def turn(self) -> dict[str, float]:
        """Return the seconds of a pass, and the resident memory after it."""
        return self.ask(None)

    def ask(self, what: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the process's answer. Raises RuntimeError if it fails."""
        try:
            return self.executor.submit(_answer, what).result()
        except Exception as error:
            raise RuntimeError(f"{self.name} cannot be measured: {type(error).__name__}: {error}") from error


_passes: Iterator[Any] = iter(())  # in a worker's process, and its resident megabytes before the first
_before = 0.0


def _answer(what: Mapping[str, Any] | None) -> dict[str, Any]:
    """Answer in a worker's process: the first request names a model, each later one asks for one turn."""
    global _passes, _before
    if what is not None:
        _before, _passes = resident_megabytes(), timed_passes(**what)
        return {"compiled": next(_passes)}
    return {"seconds": next(_passes), "resident": resident_megabytes() - _before}


def timed_passes(config: Mapping[str, Any], folder: str | None, batch: int, length: int, backend: str) -> Iterator[Any]:
    """Yield whether the first passes compiled kernels, then the seconds of a pass, for ever."""
    from bertcore import kernels
    from bertcore.models.auto import AutoModel

    counted: contextlib.AbstractContextManager[list[str]] = contextlib.nullcontext([])
    if backend == "numba":
        from bertcore.kernels._numba.compile.cache import compilations

        counted = compilations()
    with kernels.use_backend(backend):
        with counted as compiled:
            model = AutoModel.from_pretrained(folder) if folder else AutoModel.from_config(config)
            ids = np.random.default_rng(0).integers(0, model.spec.vocab_size, (batch, length))
            for _ in range(WARM_UP):
                _pass(model, ids)
        yield bool(compiled)
        while True:
            yield _seconds(model, ids)


def _seconds(model: Model[Any], ids: np.ndarray) -> float:
    _pass(model, ids)  # other models have filled the caches, and the threads sleep
    count, started = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - started < TURN:
        _pass(model, ids)
        count += 1
    return (time.perf_counter() - started) / count


def _pass(model: Model[Any], ids: np.ndarray) -> np.ndarray:
    from bertcore import kernels

    return kernels.to_host(model(ids).last_hidden_state)  # waits for a GPU
