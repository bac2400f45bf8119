"""A handful of timings on the GPU: operations of BERT-base's size and the whole model, by CUDA events."""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.measure import GpuClock, Times, Variant, measure
from bench.ops import calls
from bench.ops.cases import FORWARD, Case, cases
from bertcore import use_backend
from bertcore.models.auto import AutoModel
from bertcore.presets import preset_config
from tests.kernels.arrays import DTYPES
from tests.tiny_families import tiny_config

OPERATIONS = ("softmax", "layer_norm", "gelu", "linear", "attention")
MODEL = "bert-base-uncased"
ROUNDS = 9


def operation_timings(size: str, dtype: str, seconds: float) -> Iterator[dict[str, Any]]:
    """One row for each forward case of a size (see bench.ops) with long texts."""
    for case in cases(size):
        if case.op in OPERATIONS and (case.length, case.direction) == ("long", FORWARD):
            call = calls.bind(case, calls.make_inputs(case, DTYPES[dtype]), "cupy")
            yield {"name": f"{case.op} {case.name}", "dtype": dtype, **_figures(case, dtype, _times(call, seconds))}


def model_timing(batch: int, length: int, dtype: str, seconds: float, is_tiny: bool = False) -> dict[str, Any]:
    """The row of a whole forward pass of BERT-base, ids in host memory."""
    config = tiny_config(MODEL) if is_tiny else preset_config(MODEL)
    model = AutoModel.from_config(config, dtype=dtype)
    ids = np.random.default_rng(0).integers(0, config["vocab_size"], (batch, length))
    with use_backend("cupy"):
        times = _times(lambda: model(input_ids=ids), seconds)
    return {"name": f"BERT-base {batch}x{length}", "dtype": dtype, "median_s": times.median, "spread": times.spread}


def _times(call: Any, seconds: float) -> Times:
    clock = GpuClock(importlib.import_module("cupy"))
    return measure({"cupy": Variant(call, clock)}, ROUNDS, seconds)["cupy"]


def _figures(case: Case, dtype: str, times: Times) -> dict[str, Any]:
    moved = case.elements * DTYPES[dtype].itemsize
    return {
        "median_s": times.median,
        "spread": times.spread,
        "gb_per_s": moved / times.median / 1e9,
        "tflop_per_s": None if case.flops is None else case.flops / times.median / 1e12,
    }
