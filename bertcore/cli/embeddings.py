"""The embeddings that the options of `bertcore embed` ask for, and how they are written."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from bertcore.cli.common import reading_options
from bertcore.cli.outputs import write_jsonl, write_npy


def encoder_of(folder: Path, args: argparse.Namespace) -> Any:
    """The sentence encoder of a folder, by --dtype and --max-seq-length."""
    from bertcore.tasks.sentence_encoder import SentenceEncoder

    return SentenceEncoder(folder, dtype=args.dtype, max_seq_length=args.max_seq_length)


def encoding_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `SentenceEncoder.encode`, by the command's of the same names."""
    return {name: getattr(args, name) for name in ("prompt", "prompt_name", "normalize")} | reading_options(args)


def write_embeddings(
    output: BinaryIO,
    encoder: Any,
    texts: Iterable[str],
    args: argparse.Namespace,
    *,
    as_npy: bool,
    progress: bool | None = False,
) -> None:
    """Write the embeddings of texts as they come: an array of NumPy's, or JSON lines."""
    rows = encoder.encode_stream(texts, show_progress=progress, **encoding_options(args))
    if as_npy:
        write_npy(output, rows, encoder.embedding_dimension)
    else:
        write_jsonl(output, rows)
