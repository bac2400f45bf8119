"""OpenVINO: float32, bfloat16 by its inference precision hint, and int8 in two ways that NNCF has without a download.

"openvino" int8 is nncf.quantize: one scale per activation tensor, found on random texts; its products are int8 whatever
the batch, and it is the fastest form. "openvino-dynamic" is nncf.compress_weights: int8 weights per channel, to which
the CPU plugin quantises activations in groups as it runs; slower, and nearer to float32. Measured on 3 layers of
BERT-base, 2 threads, ms at 1x16, 1x128, 8x128: 1.05, 4.8, 33 and 1.4, 7.1, 53 (with dynamic quantisation switched off
3.3, 15, 112, which is float32's time: the compressed form does compute in int8).
"""

import functools
import importlib
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers.cases import Batch, random_batch
from bench.peers.checkpoint import cached
from bench.peers.libraries import Peer, Session, Unsupported
from bench.peers.libraries.tracing import example, traceable

# What is not int8 beside int8 is left to OpenVINO, as its users have it: it takes bf16 where the CPU multiplies that.
HINTS = {"float32": "f32", "bfloat16": "bf16"}
CALIBRATION_TEXTS, CALIBRATION_LENGTH = 32, 64


def load(folder: Path, precision: str, threads: int) -> Session:
    """The compiled model; int8 calibrated on random texts."""
    path = _converted(folder)
    if precision != "int8":
        return _compile(path, precision, threads)
    vocabulary = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    path = cached(folder.parent / "openvino-int8", functools.partial(_quantise, path, vocabulary)) / "model.xml"
    return _compile(path, precision, threads, "nncf.quantize on random texts: static activation scales per tensor")


def load_dynamic(folder: Path, precision: str, threads: int) -> Session:
    """The compiled model with compressed weights."""
    path = cached(folder.parent / "openvino-dynamic", functools.partial(_compress, _converted(folder))) / "model.xml"
    return _compile(path, precision, threads, "nncf.compress_weights, dynamic quantisation of activations")


def _converted(folder: Path) -> Path:
    return cached(folder.parent / "openvino", functools.partial(_convert, folder)) / "model.xml"


def _convert(folder: Path, target: Path) -> None:
    openvino = _openvino()
    model = openvino.convert_model(traceable(folder, attention="sdpa"), example_input=example())
    openvino.save_model(model, target / "model.xml", compress_to_fp16=False)


def _quantise(path: Path, vocabulary: int, target: Path) -> None:
    openvino, nncf = _with_nncf()
    model = openvino.Core().read_model(path)
    texts = [random_batch((CALIBRATION_LENGTH,), vocabulary, seed)._asdict() for seed in range(CALIBRATION_TEXTS)]
    model = nncf.quantize(
        model, nncf.Dataset(texts), model_type=nncf.ModelType.TRANSFORMER, subset_size=CALIBRATION_TEXTS
    )
    openvino.save_model(model, target / "model.xml", compress_to_fp16=False)


def _compress(path: Path, target: Path) -> None:
    openvino, nncf = _with_nncf()
    model = nncf.compress_weights(openvino.Core().read_model(path), mode=nncf.CompressWeightsMode.INT8_SYM)
    openvino.save_model(model, target / "model.xml", compress_to_fp16=False)


def _openvino() -> Any:
    """The module, without its telemetry: it and NNCF would fork processes that report their use while others are timed.

    Both do without the package openvino_telemetry where it cannot be imported.
    """
    sys.modules.setdefault("openvino_telemetry", None)
    return importlib.import_module("openvino")


def _with_nncf() -> tuple[Any, Any]:
    openvino, nncf = _openvino(), importlib.import_module("nncf")
    nncf.set_log_level(logging.ERROR)
    return openvino, nncf


def _compile(path: Path, precision: str, threads: int, note: str = "") -> Session:
    hint = HINTS.get(precision)
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if hint is not None:
        settings["INFERENCE_PRECISION_HINT"] = hint
    compiled = _openvino().Core().compile_model(path, "CPU", settings)
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if hint not in (None, used):
        raise Unsupported(f"OpenVINO computes in {used} on this CPU, not in {hint}")
    if hint is None:
        note = f"{note}; the rest in {used}"
    request = compiled.create_infer_request()

    def bind(batch: Batch) -> Callable[[], Any]:
        inputs = batch._asdict()
        return lambda: request.infer(inputs, share_inputs=True, share_outputs=True)[0]

    return Session(bind, note=note)


PEERS = (
    Peer("openvino", ("float32", "bfloat16", "int8"), ("openvino", "nncf", "torch", "transformers"), load),
    Peer("openvino-dynamic", ("int8",), ("openvino", "nncf", "torch", "transformers"), load_dynamic),
)
