"""Writing the folder of a sentence encoder, as SentenceEncoder and sentence-transformers read it."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertcore.checkpoint.files import replace_files
from bertcore.tasks.folder import MODULES_NAME, SETTINGS_NAME, TRANSFORMER_NAMES
from bertcore.tasks.sentence_encoder.pooling import POOLING
from bertcore.tasks.sentence_encoder.settings import POOLING_FLAGS

MODULES = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}


def save_sentence_encoder(
    folder: str | os.PathLike,
    model: Any,
    tokenizer: Any,
    *,
    pooling: str | Sequence[str] = "mean",
    normalize: bool = False,
    max_seq_length: int | None = None,
    do_lower_case: bool = False,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
) -> None:
    """Write a model, its tokenizer, and how texts become embeddings (modules.json, 1_Pooling/config.json, ...).

    Args:
        folder: is made when it is not there; other files in it stay.
        model: an AutoModel, as an objective of sentence embeddings trains it.
        tokenizer: the texts'.
        pooling: one or several of "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean" and "lasttoken".
        normalize: whether embeddings are scaled to length 1.
        max_seq_length: where texts are cut, in tokens; None leaves it to tokenizer and model.
        do_lower_case: whether texts are lower-cased before they are tokenized.
        prompts, default_prompt_name: texts to put before an input, by name, and the name of the usual one.

    Raises:
        ValueError: for a pooling that is not known, or a default prompt that is none of the prompts.
        OSError: naming the file that cannot be written.
    """
    modes, prompts = [pooling] if isinstance(pooling, str) else list(pooling), dict(prompts or {})
    unknown = [mode for mode in modes if mode not in POOLING]
    if unknown or not modes:
        raise ValueError(f"pooling is {pooling!r}, expected one or several of {', '.join(POOLING)}")
    if default_prompt_name is not None and default_prompt_name not in prompts:
        raise ValueError(f"default_prompt_name is {default_prompt_name!r}, prompts has {', '.join(prompts) or 'none'}")
    kinds = list(MODULES.items())[: 3 if normalize else 2]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    flags = {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    folder = Path(folder)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path, _ in kinds[1:]:
        (folder / path).mkdir(exist_ok=True)
    _write(folder / "1_Pooling", {"config.json": {"word_embedding_dimension": model.spec.hidden_size, **flags}})
    texts = {"max_seq_length": max_seq_length, "do_lower_case": do_lower_case}
    named = {"prompts": prompts, "default_prompt_name": default_prompt_name}
    _write(folder, {MODULES_NAME: modules, TRANSFORMER_NAMES[0]: texts, SETTINGS_NAME: named})


def _write(folder: Path, contents: Mapping[str, Any]) -> None:
    def writer(value: Any) -> Any:
        return lambda file: file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

    replace_files(folder, {name: writer(value) for name, value in contents.items()})
