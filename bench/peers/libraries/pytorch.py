"""PyTorch through transformers: scaled_dot_product_attention, float32 or bfloat16 weights and activations."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers.cases import Batch
from bench.peers.checkpoint import load_torch
from bench.peers.libraries import Peer, Session


def load(folder: Path, precision: str, threads: int) -> Session:
    """The transformers model in that dtype."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    module = load_torch(folder, dtype=getattr(torch, precision), attn_implementation="sdpa")

    def bind(batch: Batch) -> Callable[[], Any]:
        tensors = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}

        def call() -> Any:
            with torch.inference_mode():
                return module(**tensors).last_hidden_state

        return call

    return Session(bind, hidden=lambda state: state.float().numpy())


PEERS = (Peer("torch", ("float32", "bfloat16"), ("torch", "transformers"), load),)
