"""ONNX Runtime: float32, and int8 by its dynamic quantisation with one weight scale per channel.

The model is exported by torch.onnx.export's TorchScript exporter with the plain ("eager") attention, whose graph ONNX
Runtime optimises best at load. Measured on 3 layers of BERT-base, 2 threads, ms at 1x16, 1x128, 8x128: this 4.1, 15.4,
116; after onnxruntime.transformers.optimizer 4.0, 16.6, 121 (int8: 1.36, 5.9, 44 and 1.37, 6.4, 53). The newer exporter
leaves an IsNaN and a Where after each softmax of SDPA, and has no fusion that this one lacks.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers.cases import Batch
from bench.peers.checkpoint import cached
from bench.peers.libraries import Peer, Session
from bench.peers.libraries.tracing import example, traceable

OUTPUT = "last_hidden_state"


def load(folder: Path, precision: str, threads: int) -> Session:
    """A session over the exported model."""
    runtime = importlib.import_module("onnxruntime")
    path = cached(folder.parent / "onnx", lambda target: _export(folder, target)) / "model.onnx"
    if precision == "int8":
        path = cached(folder.parent / "onnx-int8", lambda target: _quantise(path, target)) / "model.onnx"
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def bind(batch: Batch) -> Callable[[], Any]:
        inputs = batch._asdict()
        return lambda: session.run([OUTPUT], inputs)[0]

    return Session(bind, note="dynamic quantisation, per channel" if precision == "int8" else "")


def _export(folder: Path, target: Path) -> None:
    names = list(Batch._fields)
    axes = {0: "texts", 1: "length"}
    importlib.import_module("torch").onnx.export(
        traceable(folder, attention="eager"),
        example(),
        target / "model.onnx",
        input_names=names,
        output_names=[OUTPUT],
        dynamic_axes=dict.fromkeys([*names, OUTPUT], axes),
        dynamo=False,
    )


def _quantise(path: Path, target: Path) -> None:
    quantization = importlib.import_module("onnxruntime.quantization")
    quantization.quantize_dynamic(
        path, target / "model.onnx", per_channel=True, weight_type=quantization.QuantType.QInt8
    )


PEERS = (Peer("onnxruntime", ("float32", "int8"), ("onnxruntime", "onnx", "torch", "transformers"), load),)
