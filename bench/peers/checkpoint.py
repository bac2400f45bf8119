"""One checkpoint with random weights per model, saved by transformers, from which all libraries get their weights.

A library's converted form is cached beside it, so that a second run with the same --workdir starts quickly. Use a new
folder after an update of a library.
"""

import contextlib
import functools
import importlib
import io
import json
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.cases import Batch, Size

SEED = 0


def cached(folder: Path, make: Callable[[Path], Any]) -> Path:
    """Return `folder`, filled by make(folder) if it does not exist; it is never left half-filled."""
    if not folder.exists():
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was interrupted
        unfinished.mkdir(parents=True)
        with quiet():
            make(unfinished)
        unfinished.rename(folder)
    return folder


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence converters' progress bars and advice within the block; errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    sink = io.StringIO()
    try:
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def make_checkpoint(workdir: Path, model: str, size: Size) -> Path:
    """Return the checkpoint's folder: config.json, model.safetensors and a vocabulary, which CTranslate2 needs."""
    return cached(workdir / model / "transformers", functools.partial(_save, size))


def random_checkpoint(workdir: Path, name: str, config: Mapping[str, Any]) -> Path:
    """Return the folder of the checkpoint of a published config: config.json and model.safetensors."""
    return cached(workdir / name / "transformers", functools.partial(_save_config, config))


def load_torch(folder: Path, **options: Any) -> Any:
    """Return the checkpoint as a PyTorch module in inference mode."""
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    with quiet():
        return transformers.AutoModel.from_pretrained(folder, **options).eval()


def hidden_states_alone(folder: Path) -> Callable[[Batch], np.ndarray]:
    """Return the truth as a function: a batch's hidden states on its real tokens, by PyTorch in float32.

    Each text is computed by itself, without padding and mask, so that wrong masking in a library is found.
    """
    torch, module = importlib.import_module("torch"), load_torch(folder)

    def truth(batch: Batch) -> np.ndarray:
        texts = (torch.from_numpy(ids[real])[None] for ids, real in zip(batch.input_ids, batch.is_real, strict=True))
        with torch.inference_mode():
            return np.concatenate([module(input_ids=ids).last_hidden_state[0].numpy() for ids in texts])

    return truth


def _save(size: Size, folder: Path) -> None:
    _save_random(_config(importlib.import_module("transformers"), size), folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"word{index}" for index in range(len(words), size.vocabulary)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}), encoding="utf-8")


def _save_config(config: Mapping[str, Any], folder: Path) -> None:
    _save_random(importlib.import_module("transformers").AutoConfig.for_model(**config), folder)


def _save_random(config: Any, folder: Path) -> None:
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        transformers.AutoModel.from_config(config).save_pretrained(folder)


def _config(transformers: Any, size: Size) -> Any:
    common = {"vocab_size": size.vocabulary, "max_position_embeddings": 512}
    if size.family == "distilbert":
        return transformers.DistilBertConfig(
            n_layers=size.layers, dim=size.hidden, n_heads=size.heads, hidden_dim=size.intermediate, **common
        )
    return transformers.BertConfig(
        num_hidden_layers=size.layers,
        hidden_size=size.hidden,
        num_attention_heads=size.heads,
        intermediate_size=size.intermediate,
        position_embedding_type="absolute",  # transformers 5 no longer writes it, CTranslate2 4.8 asks for it
        **common,
    )
