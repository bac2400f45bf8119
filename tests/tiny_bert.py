"""Folders of tiny random BERT models, written by bertcore itself, for tests of what stands above the models."""

import json
from pathlib import Path

import numpy as np

from bertcore import AutoModel, AutoModelForMaskedLM

WORDS = ["the", "cat", "sat", "on", "an", "mat", "paris", "is", "capital", "of", "france", "Upper", "."]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]

# Odd on purpose: three heads, widths that are no multiple of eight.
# The vocabulary is rounded up, as it often is.
CONFIG = {
    "model_type": "bert", "vocab_size": len(VOCABULARY) + 5, "hidden_size": 39, "num_hidden_layers": 2,
    "num_attention_heads": 3, "intermediate_size": 53, "max_position_embeddings": 40, "initializer_range": 0.3,
}  # fmt: skip
WIDTH = CONFIG["hidden_size"]


def save_tiny_bert(folder: Path, *, head: bool = False, lower_case: bool = True) -> Path:
    """A model, with the masked-LM head or with the pooler, and its vocab.txt."""
    model_class = AutoModelForMaskedLM if head else AutoModel
    model_class.from_config(CONFIG, seed=7).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": lower_case})
    return folder


def save_tiny_encoder(folder: Path, pooling: dict | None = None, *, normalize: bool = False, **options) -> Path:
    """The same as a sentence encoder: with modules.json and the given pooling config."""
    save_tiny_bert(folder, **options)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"} | ({"2_Normalize": "Normalize"} if normalize else {})
    write_modules(folder, {path: f"sentence_transformers.models.{kind}" for path, kind in kinds.items()})
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **(pooling or {})})
    return folder


def write_modules(folder: Path, modules: dict[str, str]) -> None:
    """modules.json with a module's path -> type."""
    entries = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules.items())]
    write_json(folder / "modules.json", entries)


def write_json(file: Path, value) -> None:
    """`value` as JSON, its folder made where needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value), encoding="utf-8")


def random_texts(count: int, *, longest: int = 12, seed: int = 0) -> list[str]:
    """Texts of 0 to `longest` words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(0, longest + 1))) for _ in range(count)]
