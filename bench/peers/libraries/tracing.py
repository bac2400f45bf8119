"""The checkpoint as a PyTorch module that exporters can trace: ids and mask in, the last hidden state out."""

import importlib
from pathlib import Path
from typing import Any

from bench.peers.cases import random_batch
from bench.peers.checkpoint import load_torch


def traceable(folder: Path, attention: str) -> Any:
    """The module, computing attention as transformers' attn_implementation of that name."""
    torch = importlib.import_module("torch")

    class HiddenStates(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = load_torch(folder, attn_implementation=attention)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.module(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    return HiddenStates().eval()


def example() -> tuple[Any, Any]:
    """Ids and mask of a small ragged batch, as tensors."""
    return tuple(map(importlib.import_module("torch").from_numpy, random_batch((7, 5), vocabulary=90, seed=0)))
