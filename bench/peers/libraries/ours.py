"""bertcore on its Numba backend."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench import machine
from bench.peers.cases import Batch
from bench.peers.libraries import OURS, Peer, Session
from bertcore import AutoModel, use_backend


def load(folder: Path, precision: str, threads: int) -> Session:
    """The model on Numba, in the load option of that name."""
    machine.set_threads(threads)
    with use_backend("numba"):
        model = AutoModel.from_pretrained(folder, dtype=precision)

    def bind(batch: Batch) -> Callable[[], np.ndarray]:
        def call() -> np.ndarray:
            with use_backend("numba"):
                return model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state

        return call

    return Session(bind)


PEERS = (Peer(OURS, ("float32", "bfloat16", "int8"), ("numba",), load),)
