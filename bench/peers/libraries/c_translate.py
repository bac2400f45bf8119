"""CTranslate2: float32, and int8 with weight scales per channel and activation scales per token.

"int8" lets CTranslate2 choose what it computes the rest in; on x86 CPUs int8_float32 is all there is
(`ctranslate2.get_supported_compute_types`), so that this is its best compute type as well. It strips the padding, as
bertcore does. On a CPU that is not Intel's it computes in oneDNN and would take AVX2 for its other loops: AVX-512 is
asked for where there is one (measured: 10% faster in int8; Intel's MKL, CT2_USE_MKL=1, was 1.6 to 8 times slower here).
"""

import functools
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.cases import Batch
from bench.peers.checkpoint import cached
from bench.peers.libraries import Peer, Session, Unsupported


def load(folder: Path, precision: str, threads: int) -> Session:
    """The converted encoder."""
    _ask_for_avx512()
    translate = importlib.import_module("ctranslate2")
    supported = translate.get_supported_compute_types("cpu")
    if precision not in supported:
        raise Unsupported(f"CTranslate2 computes in {', '.join(sorted(supported))} on this CPU")
    converted = cached(folder.parent / "ctranslate2", functools.partial(_convert, folder))
    encoder = translate.Encoder(str(converted), device="cpu", compute_type=precision, intra_threads=threads)
    view = translate.StorageView.from_array

    def bind(batch: Batch) -> Callable[[], Any]:
        # the arrays are views' memory: they must live as long as the call
        ids, lengths = batch.input_ids.astype(np.int32), batch.attention_mask.sum(1).astype(np.int32)
        return lambda: encoder.forward_batch(view(ids), view(lengths)).last_hidden_state

    return Session(bind, note=f"compute type {encoder.compute_type}")


def _ask_for_avx512() -> None:
    """Read by the library when it is loaded."""
    from bertcore.kernels._numba import host_features

    if host_features()["avx512f"]:
        os.environ.setdefault("CT2_FORCE_CPU_ISA", "AVX512")


def _convert(folder: Path, target: Path) -> None:
    converters = importlib.import_module("ctranslate2.converters")
    importlib.import_module("transformers").utils.logging.disable_progress_bar()
    converters.TransformersConverter(str(folder)).convert(str(target), force=True)


PEERS = (Peer("ctranslate2", ("float32", "bfloat16", "int8"), ("ctranslate2", "torch", "transformers"), load),)
