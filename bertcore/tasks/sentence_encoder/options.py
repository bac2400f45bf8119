"""What one call of a sentence encoder asks for."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count
from bertcore.kernels import checks
from bertcore.tasks.batching import BATCH_TOKENS
from bertcore.tasks.long_texts import Cutting
from bertcore.tasks.merged_windows import MERGES
from bertcore.tasks.quantization import PRECISIONS


@dataclass(frozen=True)
class Options:
    """What a call asks for, checked.

    Attributes:
        prompt: put before each text.
        skipped: how many of the first tokens are not pooled.
        normalize: whether embeddings are scaled to length 1 at the end; None for as published.
        dimensions: how many of the first dimensions are kept; None for all.
        precision, ranges: see `quantize_embeddings`.
        batch_tokens, backend: how they are computed.
        cutting: what happens to texts that are too long.
        merge: what makes one vector of those of a text's windows.
    """

    prompt: str
    skipped: int
    normalize: bool | None
    dimensions: int | None
    precision: str
    ranges: np.ndarray | None
    batch_tokens: int
    backend: str
    cutting: Cutting
    merge: str


def checked_options(
    encoder: Any,
    prompt: str | None = None,
    prompt_name: str | None = None,
    normalize: bool | None = None,
    truncate_dim: int | None = None,
    precision: str = "float32",
    ranges: np.ndarray | None = None,
    task: str | None = None,
    truncation: Any = "warn",
    stride: int | None = None,
    merge: str = "mean",
    batch_tokens: int = BATCH_TOKENS,
) -> Options:
    """The options of a call of `encoder`, a SentenceEncoder; raises as its `encode` does."""
    if task is not None and task != encoder.task:
        has = "no task's adapter" if encoder.task is None else f"the adapter for {encoder.task!r}"
        raise ValueError(
            f"task is {task!r}, but this encoder has {has} in its weights: make another one, "
            f"SentenceEncoder(folder, task={task!r})"
        )
    batch_tokens = check_count("batch_tokens", batch_tokens)
    if normalize is not None and not isinstance(normalize, bool | np.bool_):
        raise TypeError(f"normalize is {normalize!r}, expected True, False or None")
    checks.choice("precision", precision, PRECISIONS)
    checks.choice("merge", merge, MERGES)
    before = encoder.prompt(prompt, prompt_name)
    return Options(
        prompt=before,
        skipped=0 if encoder.settings.include_prompt else _prompt_tokens(encoder, before),
        normalize=None if normalize is None else bool(normalize),
        dimensions=encoder.truncate_dim if truncate_dim is None else checked_dimensions(truncate_dim),
        precision=precision,
        ranges=ranges,
        batch_tokens=batch_tokens,
        backend=kernels.get_backend(),
        cutting=_cutting(encoder, truncation, stride, before),
        merge=merge,
    )


def checked_dimensions(truncate_dim: Any) -> int | None:
    """A positive number of dimensions or None; TypeError or ValueError for anything else."""
    return None if truncate_dim is None else check_count("truncate_dim", truncate_dim)


def _cutting(encoder: Any, truncation: Any, stride: int | None, prompt: str) -> Cutting:
    cutting = Cutting(truncation, encoder.max_seq_length, stride)
    if cutting.reads_all and prompt and not encoder.settings.include_prompt:
        raise ValueError("truncation is 'chunk', and this encoder does not pool its prompt, which one window has")
    if cutting.reads_all and encoder.settings.is_static:
        raise ValueError("truncation is 'chunk', and static embeddings have no windows: max_seq_length can be any")
    return cutting


def _prompt_tokens(encoder: Any, prompt: str) -> int:
    """How many tokens a prompt has, but a special one at its end."""
    if not prompt:
        return 0
    row = encoder.tokenizer(encoder.prepared("", prompt), return_special_tokens_mask=True)
    return len(row["input_ids"]) - row["special_tokens_mask"][-1]
