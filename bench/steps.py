"""The steps of an encoder layer and their limits: python -m bench.steps [--shape S ...] [--precision P ...]

A BERT-base with random weights runs its recorded program, in which compiled code reads the clock between steps: each
step is measured in its place, with its layer's weights not in the caches. Times are per layer: the mean over all
layers, the median over passes. The limit of a step is the longer of two times: its multiply-adds in a register-only
loop (bench/fma.py), and its bytes, with weights read from memory and rows copied within the caches.

Passes are checked first: the same bits with and without the clock, and the first text's hidden states against NumPy in
float32. int8-calibrated has factors of the input's columns, here 1, so its bits equal int8's.
"""

import argparse
import ctypes
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core.cgutils import alloca_once
from numba.extending import intrinsic

from bench import machine
from bench.fma import dot_limit, tile_limit
from bench.measure import settle
from bench.options import at_least, positive
from bench.peers.cases import SHAPES, Batch, random_batch
from bench.peers.compare import TOLERANCES, error_of
from bench.report import Column, table
from bertcore import AutoModel, use_backend
from bertcore.checkpoint import INPUT_SCALE, SCALE
from bertcore.kernels._numba import LEVEL, kernel
from bertcore.kernels._numba.compile.isa import NATIVE, has_pair_dot
from bertcore.kernels._numba.low_precision import QUANTIZED, ROUNDED
from bertcore.kernels.activation_names import ACTIVATIONS, ROUGH_GELU
from bertcore.kernels.linear.cpu.step import has_two_phases
from bertcore.kernels.program import cpu
from bertcore.presets import PRESETS, preset_config

SUFFIX = "-calibrated"
PRECISIONS = "float32", "bfloat16", "int8", "int8" + SUFFIX
WARM = 3  # passes; the third of a shape is the first with a cached program
_BFLOAT16_DOT, _FLOAT_DOT = (ROUNDED, np.uint16, np.float32), (np.float32,) * 3
_INT8_DOT = (QUANTIZED, np.uint16 if has_pair_dot() else np.int8, np.int32)
DOTS = {"float32": _FLOAT_DOT, "uint16": _BFLOAT16_DOT, "int8": _INT8_DOT}  # by dtype of weights
ACTIVATION_NAMES = dict(enumerate(ACTIVATIONS)) | {ROUGH_GELU: "gelu"}
READ = 1 << 28  # bytes, more than any cache
COLUMNS = (
    Column("step", "step"),
    Column("seconds", "ms", ".3f", 1e3),
    Column("share", "share, %", ".1f", 100),
    Column("limit", "limit, ms", ".3f", 1e3),
    Column("of_limit", "of limit, %", ".0f", 100),
)


@intrinsic
def _now(typingctx):
    """Return the nanoseconds of the monotonic clock."""

    def codegen(context, builder, sig, args):
        word, integer = ir.IntType(64), ir.IntType(32)
        read = ir.FunctionType(integer, [integer, ir.PointerType(word)])
        found = alloca_once(builder, word, size=2)
        clock = builder.module.globals.get("clock_gettime") or ir.Function(builder.module, read, "clock_gettime")
        builder.call(clock, [integer(time.CLOCK_MONOTONIC), found])
        seconds, rest = (builder.load(builder.gep(found, [integer(i)])) for i in range(2))
        return builder.add(builder.mul(seconds, word(10**9)), rest)

    return types.int64(), codegen


@kernel(regions=True)
def _run(index, records, memory, storage, attention_storage, relative, times, tasks):
    """Run a program's steps like `cpu._run`; times[i] are before step i, after its rounding, and after the step."""
    for i in range(len(index)):
        count = min(index[i].tasks, tasks)
        times[i, 0] = _now()
        if index[i].kind == cpu._LINEAR and has_two_phases(storage):
            cpu._prepare(index, i, records, storage, count)
        times[i, 1] = _now()
        cpu._perform(index, i, records, memory, storage, attention_storage, relative, count)
        times[i, 2] = _now()


@kernel(parallel=True)
def _move(source, target, moved, tasks):
    """Read `moved` words in total, and copy them if the target is as long as the source."""
    share = source.size // tasks
    for task in prange(tasks):
        total = 0
        for at in range(0, moved // tasks, share):
            for i in range(task * share, task * share + min(share, moved // tasks - at)):
                if target.size > tasks:
                    target[i] = source[i]
                else:
                    total += source[i]
        if target.size == tasks:
            target[task] = total


@functools.cache
def bytes_per_second(nbytes: int, threads: int) -> float:
    """Return the rate of copies that read and write `nbytes` in total or, beyond READ, of reading only."""
    source = np.zeros(nbytes // (8 if nbytes >= READ else 16), np.int64)
    target, best = np.zeros(threads if nbytes >= READ else source.size, np.int64), np.inf
    for _ in range(10):
        start = time.perf_counter()
        _move(source, target, source.size, threads)
        best = min(best, time.perf_counter() - start)
    return nbytes / best


@functools.cache
def products_per_second(dtypes: tuple[type, type, type], threads: int) -> float:
    """Return the limit of products with these dtypes; NaN on levels without an instruction for them."""
    if LEVEL.tiles == NATIVE and dtypes is not _FLOAT_DOT:
        return tile_limit(dtypes[1] is np.int8, threads, 0.3)
    is_known = not LEVEL.tiles and (dtypes[1] is not np.int8 or LEVEL.int8_dot)
    return dot_limit(dtypes, threads, 0.3) if is_known else float("nan")


def layer_steps(index: Any) -> tuple[int, int]:
    """Return the first step of the first layer, a product before its attention, and the number of steps per layer."""
    first, second = np.flatnonzero(index["kind"] == cpu._ATTENTION)[:2]
    return first - 1, second - first


def steps_of(call: Sequence[Any]) -> Iterator[tuple[str, float]]:
    """Yield name and limit in seconds of a layer's steps, each after its rounding, from the arguments of `_run`."""
    index, records, _, storage, attention_storage, *_, threads = call
    first, count = layer_steps(index)
    for kind, record, _ in index[first : first + count]:
        step = records[kind][record]
        rounding, operations, moved, read, dot = ("", 0.0), 0, 0, 0, _FLOAT_DOT
        if kind == cpu._LINEAR:
            rows, width, columns = int(step["rows"]), int(step["in_features"]), int(step["out_features"])
            dot = DOTS[storage.dtype.name]
            if dot[0] is not np.float32:
                nbytes = rows * width * (4 + np.dtype(dot[0]).itemsize)
                rounding = f"rounding {width}", nbytes / bytes_per_second(nbytes, threads)
            activation = "" if step["activation"] < 0 else f" + {ACTIVATION_NAMES[step['activation']]}"
            name = f"product {width} to {columns}{activation}" + (" + residual" if step["residual"] else "")
            operations, read = 2 * rows * width * columns, width * columns * storage.itemsize
        elif kind == cpu._ATTENTION:
            width, dot = int(step["heads"] * step["head_dim"]), DOTS[attention_storage.dtype.name]
            offsets = (ctypes.c_int32 * int(step["sequences"] + 1)).from_address(int(step["cu_seqlens"]))
            name, moved = "attention", 16 * width * offsets[-1]
            operations = int(4 * width * (np.diff(offsets).astype(float) ** 2).sum())
        else:
            name, moved = "rows", int(step["rows"] * step["width"]) * (12 if step["residual"] else 8)
        limits = [moved / bytes_per_second(moved, threads)] if moved else []
        limits += [read / bytes_per_second(READ, threads)] if read else []
        limits += [operations / products_per_second(dot, threads)] if operations else []
        yield from (rounding, (name, max(limits)))


def measured(model: Callable[[], Any], layers: int, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each step of a layer, for the rest and for the total; `model` runs passes through `cpu._run`.

    Raises RuntimeError if the bits of the result differ with the clock.
    """
    plain, spans, whole, names, limits = model(), [], [], [], []

    def timed(index: Any, *others: Any) -> None:  # once for each group of texts
        times = np.zeros((len(index), 3), np.int64)
        _run(index, *others[:-1], times, others[-1])
        first, count = layer_steps(index)
        own_times = np.diff(times[first : first + layers * count], axis=1)
        spans[-1].append(own_times.reshape(layers, -1).mean(axis=0) / 1e9)
        if len(spans) == 1:
            names[:], own = zip(*steps_of((index, *others)), strict=True)
            limits.append(own)

    with mock.patch.object(cpu, "_run", timed):
        for _ in range(rounds + WARM):
            settle()
            spans.append([])
            start = time.perf_counter()
            found = model()
            whole.append(time.perf_counter() - start)
    if not np.array_equal(found, plain):
        raise RuntimeError("the hidden states differ with the clock")
    seconds = np.median(np.array(spans[WARM:]).sum(axis=1), axis=0)
    total, least = float(np.median(whole[WARM:])) / layers, np.array(limits).sum(axis=0)
    rows = [
        {"step": name, "seconds": own, "limit": limit, "of_limit": limit / own}
        for name, own, limit in zip(names, seconds, least, strict=True)
        if name
    ]
    rows.append({"step": "the rest: embeddings, Python", "seconds": total - seconds.sum()})
    whole_row = {"step": "a pass, divided by its layers", "seconds": total, "limit": least.sum()}
    rows.append(whole_row | {"of_limit": least.sum() / total})
    return [{**row, "share": row["seconds"] / total} for row in rows]


def make_model(config: Mapping[str, Any], precision: str) -> Any:
    """Return a model with random weights, the same in all precisions."""
    model = AutoModel.from_config(config, dtype=precision.removesuffix(SUFFIX), seed=0)
    for weight in set(model.token_weights()) if precision.endswith(SUFFIX) else ():
        tensors = dict(weight.tensors())
        scaled = [name for name in tensors if name + SCALE in tensors]
        weight.fill(tensors | {name + INPUT_SCALE: np.ones(weight.shape[1], np.float32) for name in scaled}, "int8")
    return model


def hidden_states(model: Any, batch: Any) -> np.ndarray:
    return model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, measure and print; return 1 if a pass was wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__.partition(":")[0])
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["1x16", "1x128", "8x128", "8x512"])
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--preset", choices=PRESETS, default="bert-base-uncased", metavar="NAME")
    parser.add_argument("--layers", type=at_least(2), default=12, help="2 or more (default: 12)")
    parser.add_argument("--rounds", type=positive, default=9, help="passes (default: 9)")
    parser.add_argument("--threads", type=positive, default=2, help="(default: 2)")
    options = parser.parse_args(arguments)
    machine.set_threads(options.threads)
    print("\n".join(f"{name}: {value}" for name, value in machine.describe().items() if value != ""), flush=True)
    config = preset_config(options.preset) | {"num_hidden_layers": options.layers}
    truth, status = make_model(config, "float32"), 0
    for precision in options.precision:
        model = make_model(config, precision)
        for shape in options.shape:
            lengths = SHAPES[shape]
            batch = random_batch(lengths, config["vocab_size"], len(lengths))
            first = Batch(*(array[:1, : lengths[0]] for array in batch))
            with use_backend("numpy"):
                expected = hidden_states(truth, first)
            with use_backend("numba"):
                error = error_of(hidden_states(model, batch)[:1, : lengths[0]], first, expected[0])
                print(f"\n{shape} {precision}: {error:.2g} from float32 by NumPy", flush=True)
                if error > TOLERANCES[precision.removesuffix(SUFFIX)]:
                    status = 1
                    continue
                rows = measured(functools.partial(hidden_states, model, batch), options.layers, options.rounds)
            print(table(rows, COLUMNS), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
