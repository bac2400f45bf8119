"""bertcore on its Numba backend."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from bench import machine
from bench.peers.cases import Batch
from bench.peers.checkpoint import cached
from bench.peers.libraries import OURS, Peer, Session
from bertcore import AutoModel, use_backend
from bertcore.models.registry import known_families

# DistilBERT's parameters under BERT's names, in this order: "attention.out_lin" contains no earlier name.
_BERT_NAMES = (
    ("transformer.layer.", "encoder.layer."),
    ("sa_layer_norm", "attention.output.LayerNorm"),
    ("output_layer_norm", "output.LayerNorm"),
    ("attention.q_lin", "attention.self.query"),
    ("attention.k_lin", "attention.self.key"),
    ("attention.v_lin", "attention.self.value"),
    ("attention.out_lin", "attention.output.dense"),
    ("ffn.lin1", "intermediate.dense"),
    ("ffn.lin2", "output.dense"),
)
_BERT_KEYS = {
    "num_hidden_layers": "n_layers",
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}


def load(folder: Path, precision: str, threads: int) -> Session:
    """The model on Numba, in the load option of that name."""
    machine.set_threads(threads)
    folder, options, note = _readable(folder)
    with use_backend("numba"):
        model = AutoModel.from_pretrained(folder, dtype=precision, **options)

    def bind(batch: Batch) -> Callable[[], np.ndarray]:
        def call() -> np.ndarray:
            with use_backend("numba"):
                return model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state

        return call

    return Session(bind, note=note)


def _readable(folder: Path) -> tuple[Path, dict, str]:
    """The checkpoint in a family that bertcore knows, with what from_pretrained must be told, and a note."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "distilbert":
        return folder, {}, ""
    if "distilbert" in known_families():
        return folder, {}, ""
    as_bert = cached(folder.parent / "bertcore", functools.partial(save_as_bert, folder, config))
    return as_bert, {"add_pooling_layer": False}, "the same weights as a BERT without token types and pooler"


def save_as_bert(source: Path, config: dict, target: Path) -> None:
    """Write a DistilBERT checkpoint as the BERT that computes the same: its token type embedding is zero."""
    arrays = {_bert_name(name): array for name, array in load_file(source / "model.safetensors").items()}
    arrays["embeddings.token_type_embeddings.weight"] = np.zeros((2, config["dim"]), np.float32)
    save_file(arrays, target / "model.safetensors")
    bert_config = {"model_type": "bert", **{ours: config[theirs] for ours, theirs in _BERT_KEYS.items()}}
    (target / "config.json").write_text(json.dumps(bert_config), encoding="utf-8")


def _bert_name(name: str) -> str:
    for theirs, ours in _BERT_NAMES:
        name = name.replace(theirs, ours)
    return name


PEERS = (Peer(OURS, ("float32", "bfloat16", "int8"), ("numba",), load),)
