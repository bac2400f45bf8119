"""PyTorch through transformers: float32 or bfloat16 weights and activations.

Attention is scaled_dot_product_attention where transformers has it for the family, as its users get it.
"""

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
    module = load_torch(folder, dtype=getattr(torch, precision))
    module.config.use_cache = False  # keys and values for the next words of a text, which nobody asks for here
    attention = module.config._attn_implementation

    def bind(batch: Batch) -> Callable[[], Any]:
        tensors = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}

        def call() -> Any:
            with torch.inference_mode():
                return module(**tensors).last_hidden_state

        return call

    note = "" if attention == "sdpa" else f"transformers has no SDPA for it: {attention} attention"
    return Session(bind, hidden=lambda state: state.float().numpy(), note=note)


PEERS = (Peer("torch", ("float32", "bfloat16"), ("torch", "transformers"), load),)
