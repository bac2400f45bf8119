"""The compared libraries. Each loads the checkpoint in its own way and is timed by its own fastest interface."""

import functools
import importlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import machine
from bench.peers.cases import Batch, random_batch
from bench.peers.checkpoint import cached, load_torch
from bertcore import AutoModel, use_backend

OURS = "bertcore"


class Unsupported(Exception):
    """The library does not have this precision on this machine."""


class Session(NamedTuple):
    """A loaded model."""

    bind: Callable[[Batch], Callable[[], Any]]  # a batch into the library's own arrays, once; returns the call to time
    hidden: Callable[[Any], np.ndarray] = np.asarray  # the result's last hidden state, (texts, longest, hidden)
    note: str = ""  # for readers of the figures


class Peer(NamedTuple):
    """A library under the name it has in the results."""

    name: str
    precisions: Sequence[str]  # that it may be able to compute in
    needs: Sequence[str]  # modules that must be installed
    load: Callable[[Path, str, int], Session]  # (folder of the checkpoint, precision, threads); may raise Unsupported


def missing_reason(peer: Peer) -> str | None:
    """Return which modules are missing and how to install them, or None."""
    missing = [name for name in peer.needs if importlib.util.find_spec(name) is None]
    return f'{" and ".join(missing)} not installed: pip install -e ".[bench,parity]"' if missing else None


def all_peers() -> dict[str, Peer]:
    """Return every library by name, ours first."""
    return {peer.name: peer for peer in PEERS}


# ---- bertcore and PyTorch --------------------------------------------------------------------------------------------


def load_ours(folder: Path, precision: str, threads: int) -> Session:
    """Load the model on Numba, with the precision as its dtype."""
    machine.set_threads(threads)
    with use_backend("numba"):
        model = AutoModel.from_pretrained(folder, dtype=precision)

    def bind(batch: Batch) -> Callable[[], np.ndarray]:
        def call() -> np.ndarray:
            with use_backend("numba"):
                return model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state

        return call

    return Session(bind)


def load_pytorch(folder: Path, precision: str, threads: int) -> Session:
    """Load transformers' model with weights and activations in that dtype.

    Attention is scaled_dot_product_attention if transformers has it for the family, as its users get it.
    """
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    module = load_torch(folder, dtype=getattr(torch, precision))
    module.config.use_cache = False  # keys and values for generation
    attention = module.config._attn_implementation

    def bind(batch: Batch) -> Callable[[], Any]:
        tensors = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}

        def call() -> Any:
            with torch.inference_mode():
                return module(**tensors).last_hidden_state

        return call

    note = "" if attention == "sdpa" else f"transformers has no SDPA for it: {attention} attention"
    return Session(bind, hidden=lambda state: state.float().numpy(), note=note)


# ---- ONNX Runtime ----------------------------------------------------------------------------------------------------
#
# int8 is its dynamic quantisation with one weight scale per channel. The model is exported by torch.onnx.export's
# TorchScript exporter with the plain ("eager") attention, whose graph ONNX Runtime optimises best at load: milliseconds
# for 3 layers of BERT-base on 2 threads at 1x16, 1x128, 8x128 were 4.1, 15.4, 116; after
# onnxruntime.transformers.optimizer 4.0, 16.6, 121 (int8: 1.36, 5.9, 44 and 1.37, 6.4, 53). The newer exporter leaves
# an IsNaN and a Where after each softmax of SDPA, and has no fusion that this one lacks.

OUTPUT = "last_hidden_state"


def traceable(folder: Path, attention: str) -> Any:
    """Return the checkpoint as a module for exporters: ids and mask in, the last hidden state out.

    `attention`: transformers' attn_implementation.
    """
    torch = importlib.import_module("torch")

    class HiddenStates(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = load_torch(folder, attn_implementation=attention)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.module(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    return HiddenStates().eval()


def example() -> tuple[Any, Any]:
    """Return ids and mask of a small ragged batch, as tensors."""
    return tuple(map(importlib.import_module("torch").from_numpy, random_batch((7, 5), vocabulary=90, seed=0)))


def load_onnx(folder: Path, precision: str, threads: int) -> Session:
    """Open a session over the exported model."""
    runtime = importlib.import_module("onnxruntime")
    path = cached(folder.parent / "onnx", lambda target: _export_onnx(folder, target)) / "model.onnx"
    if precision == "int8":
        path = cached(folder.parent / "onnx-int8", lambda target: _quantise_onnx(path, target)) / "model.onnx"
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def bind(batch: Batch) -> Callable[[], Any]:
        inputs = batch._asdict()
        return lambda: session.run([OUTPUT], inputs)[0]

    return Session(bind, note="dynamic quantisation, per channel" if precision == "int8" else "")


def _export_onnx(folder: Path, target: Path) -> None:
    names = list(Batch._fields)
    axes = {name: {0: "texts", 1: "length"} for name in (*names, OUTPUT)}
    named = {"input_names": names, "output_names": [OUTPUT], "dynamic_axes": axes}
    module = traceable(folder, attention="eager")
    importlib.import_module("torch").onnx.export(module, example(), target / "model.onnx", **named, dynamo=False)


def _quantise_onnx(path: Path, target: Path) -> None:
    quantization, model = importlib.import_module("onnxruntime.quantization"), target / "model.onnx"
    quantization.quantize_dynamic(path, model, per_channel=True, weight_type=quantization.QuantType.QInt8)


# ---- OpenVINO --------------------------------------------------------------------------------------------------------
#
# bfloat16 by its inference precision hint, int8 in the two ways that NNCF has without a download. "openvino" is
# nncf.quantize: one scale per activation tensor, found on random texts; its products are int8 for every batch, and it
# is the fastest form. "openvino-dynamic" is nncf.compress_weights: int8 weights per channel; the CPU plugin quantises
# activations in groups as it runs; slower, and nearer to float32. Milliseconds for 3 layers of BERT-base on 2 threads
# at 1x16, 1x128, 8x128: 1.05, 4.8, 33 and 1.4, 7.1, 53. The rest beside int8 is OpenVINO's choice, as for its users.

HINTS = {"float32": "f32", "bfloat16": "bf16"}
CALIBRATION_TEXTS, CALIBRATION_LENGTH = 32, 64


def load_openvino(folder: Path, precision: str, threads: int) -> Session:
    """Compile the model; int8 is calibrated on random texts."""
    path = _converted(folder)
    if precision != "int8":
        return _compile(path, precision, threads)
    vocabulary = json.loads((folder / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    path = cached(folder.parent / "openvino-int8", functools.partial(_quantise, path, vocabulary)) / "model.xml"
    return _compile(path, precision, threads, "nncf.quantize on random texts: static activation scales per tensor")


def load_openvino_dynamic(folder: Path, precision: str, threads: int) -> Session:
    """Compile the model with compressed weights."""
    path = cached(folder.parent / "openvino-dynamic", functools.partial(_compress, _converted(folder))) / "model.xml"
    return _compile(path, precision, threads, "nncf.compress_weights, dynamic quantisation of activations")


def _converted(folder: Path) -> Path:
    def convert(target: Path) -> None:
        model = _openvino().convert_model(traceable(folder, attention="sdpa"), example_input=example())
        _save(model, target)

    return cached(folder.parent / "openvino", convert) / "model.xml"


def _save(model: Any, target: Path) -> None:
    _openvino().save_model(model, target / "model.xml", compress_to_fp16=False)


def _quantise(path: Path, vocabulary: int, target: Path) -> None:
    nncf, model = _nncf(), _openvino().Core().read_model(path)
    texts = [random_batch((CALIBRATION_LENGTH,), vocabulary, seed)._asdict() for seed in range(CALIBRATION_TEXTS)]
    kind = nncf.ModelType.TRANSFORMER
    _save(nncf.quantize(model, nncf.Dataset(texts), model_type=kind, subset_size=CALIBRATION_TEXTS), target)


def _compress(path: Path, target: Path) -> None:
    nncf, model = _nncf(), _openvino().Core().read_model(path)
    _save(nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM), target)


def _openvino() -> Any:
    """Return the module, without its telemetry: it and NNCF would fork processes while others are timed.

    Both do without the package openvino_telemetry if it cannot be imported.
    """
    sys.modules.setdefault("openvino_telemetry", None)
    return importlib.import_module("openvino")


def _nncf() -> Any:
    _openvino()
    nncf = importlib.import_module("nncf")
    nncf.set_log_level(logging.ERROR)
    return nncf


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


# ---- CTranslate2 -----------------------------------------------------------------------------------------------------
#
# int8 has weight scales per channel and activation scales per token. "int8" lets CTranslate2 choose the type of the
# rest; on x86 CPUs int8_float32 is the only one (`ctranslate2.get_supported_compute_types`), hence its best. It strips
# the padding, as bertcore does. On a CPU that is not Intel's it computes in oneDNN and would take AVX2 for its other
# loops; AVX-512 made int8 10 % faster (Intel's MKL, CT2_USE_MKL=1, was 1.6 to 8 times slower).


def load_ctranslate2(folder: Path, precision: str, threads: int) -> Session:
    """Load the converted encoder."""
    _ask_for_avx512()
    translate = importlib.import_module("ctranslate2")
    supported = translate.get_supported_compute_types("cpu")
    if precision not in supported:
        raise Unsupported(f"CTranslate2 computes in {', '.join(sorted(supported))} on this CPU")
    converted = cached(folder.parent / "ctranslate2", functools.partial(_convert_to_ctranslate2, folder))
    encoder = translate.Encoder(str(converted), device="cpu", compute_type=precision, intra_threads=threads)
    view = translate.StorageView.from_array

    def bind(batch: Batch) -> Callable[[], Any]:
        # the views point into these arrays, which must live as long as the call
        ids, lengths = batch.input_ids.astype(np.int32), batch.attention_mask.sum(1).astype(np.int32)
        return lambda: encoder.forward_batch(view(ids), view(lengths)).last_hidden_state

    return Session(bind, note=f"compute type {encoder.compute_type}")


def _ask_for_avx512() -> None:
    """Set the variable that the library reads while it is loaded."""
    from bertcore.kernels._numba import host_features

    if host_features()["avx512f"]:
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")


def _convert_to_ctranslate2(folder: Path, target: Path) -> None:
    converters = importlib.import_module("ctranslate2.converters")
    importlib.import_module("transformers").utils.logging.disable_progress_bar()
    converters.TransformersConverter(str(folder)).convert(str(target), force=True)


_TORCH = ("torch", "transformers")
PEERS = (
    Peer(OURS, ("float32", "bfloat16", "int8"), ("numba",), load_ours),
    Peer("torch", ("float32", "bfloat16"), _TORCH, load_pytorch),
    Peer("onnxruntime", ("float32", "int8"), ("onnxruntime", "onnx", *_TORCH), load_onnx),
    Peer("openvino", ("float32", "bfloat16", "int8"), ("openvino", "nncf", *_TORCH), load_openvino),
    Peer("openvino-dynamic", ("int8",), ("openvino", "nncf", *_TORCH), load_openvino_dynamic),
    Peer("ctranslate2", ("float32", "bfloat16", "int8"), ("ctranslate2", *_TORCH), load_ctranslate2),
)
