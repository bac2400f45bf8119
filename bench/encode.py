"""From texts to embeddings: film snippets through all-MiniLM-L6-v2 in each library: python -m bench.encode

Every library reads the same texts, tokenizes them itself and returns vectors of length 1. A library that does not sort
gets batches of texts sorted by length, tokenized in one call with the tokenizer of sentence-transformers. "torch" is
sentence-transformers, "fastembed" is FastEmbed with the same ONNX model, in unsorted batches of 256. Vectors are
compared with sentence-transformers' in float32 before anything is timed. Tokens are the same everywhere.
"""

import argparse
import functools
import importlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import plot
from bench.measure import Variant, measure, settled_clock
from bench.options import positive
from bench.peers.cases import MODELS, PRECISIONS, Batch
from bench.peers.checkpoint import cached, quiet
from bench.peers.command import add_common, compare_and_report, parse
from bench.peers.compare import OK, WRONG, Failure, Plan, failure_of, figures_of, open_sessions, row_of
from bench.peers.libraries import OURS, Peer, Session, all_peers, load_onnx
from bench.report import Column, table
from bertcore import SentenceEncoder, use_backend
from bertcore.demo_model import demo_model_folder
from examples.corpora import film_snippets

MODEL, TEXTS = "all-MiniLM-L6-v2", 1500
FASTEMBED_BATCH = 256  # its default
VERSIONS = ("torch", "transformers", "sentence-transformers", "tokenizers", "onnxruntime", "openvino", "nncf",
            "ctranslate2", "fastembed")  # fmt: skip
# Largest allowed mean over the texts of 1 - cosine with sentence-transformers' float32 vectors. A different pooling or
# a forgotten mask costs 0.1 or more; static int8 scales from random texts (OpenVINO) 0.03.
TOLERANCES = {"float32": 1e-5, "bfloat16": 1e-3, "int8": 5e-2}

Encode = Callable[[Sequence[str]], np.ndarray]


@dataclass(frozen=True)
class Case:
    """The texts as a case of `bench.peers.compare`, described by their lengths in tokens."""

    lengths: tuple[int, ...]
    model: str = MODEL
    shape: str = "films"

    @property
    def flops(self) -> int:
        return MODELS["minilm-l6"].flops(self.lengths)


def tokenizer_of(folder: Path) -> Any:
    """Return the library's tokenizer, which returns ids without padding."""
    tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)  # max_seq_length of the model
    return tokenizer


def sorted_batches(rows: Sequence[Sequence[int]], size: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yield batches of `size` rows of similar lengths, the longest first, padded, and the rows' numbers."""
    order = np.argsort([-len(row) for row in rows], kind="stable")
    for numbers in np.split(order, range(size, len(order), size)):
        ids = np.zeros((len(numbers), len(rows[numbers[0]])), np.int64)
        mask = np.zeros_like(ids)
        for line, number in enumerate(numbers):
            ids[line, : len(rows[number])] = rows[number]
            mask[line, : len(rows[number])] = 1
        yield numbers, Batch(ids, mask)


def pooled(states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the means of the tokens' hidden states, scaled to length 1, (texts, hidden)."""
    states = np.asarray(states, np.float32)
    means = np.einsum("tlh,tl->th", states, mask.astype(np.float32)) / mask.sum(1, keepdims=True, dtype=np.float32)
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def in_sorted_batches(session: Session, tokenizer: Any, size: int, texts: Sequence[str]) -> np.ndarray:
    """Return the vectors of texts from a library that computes hidden states of padded batches."""
    rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    vectors = None
    for numbers, batch in sorted_batches(rows, size):
        found = pooled(session.hidden(session.bind(batch)()), batch.attention_mask)
        vectors = np.empty((len(rows), found.shape[1]), np.float32) if vectors is None else vectors
        vectors[numbers] = found
    return vectors


def ours(folder: Path, precision: str) -> Encode:
    """Return our encoder on Numba."""
    with use_backend("numba"):
        encoder = SentenceEncoder(folder, dtype=precision)

    def encode(texts: Sequence[str]) -> np.ndarray:
        with use_backend("numba"):
            return encoder.encode(texts)

    return encode


def by_sentence_transformers(folder: Path, precision: str, threads: int, size: int) -> Encode:
    """Return sentence-transformers on PyTorch, which sorts all texts by their numbers of characters."""
    torch, library = (importlib.import_module(name) for name in ("torch", "sentence_transformers"))
    torch.set_num_threads(threads)
    with quiet():
        options = {"dtype": getattr(torch, precision)}
        encoder = library.SentenceTransformer(str(folder), device="cpu", model_kwargs=options)

    def encode(texts: Sequence[str]) -> np.ndarray:
        tensor = encoder.encode(texts, batch_size=size, convert_to_tensor=True, show_progress_bar=False)
        return tensor.float().numpy()

    return encode


def by_fastembed(checkpoint: Path, precision: str, threads: int) -> Encode:
    """Return FastEmbed with ONNX Runtime's model and the published tokenizer's files."""
    load_onnx(checkpoint, precision, threads)  # exports it if needed
    source = checkpoint.parent / ("onnx-int8" if precision == "int8" else "onnx")
    for file in checkpoint.glob("*.json"):
        shutil.copyfile(file, source / file.name)
    embedding = importlib.import_module("fastembed").TextEmbedding
    model = embedding(f"sentence-transformers/{MODEL}", specific_model_path=str(source), threads=threads)
    return lambda texts: np.array(list(model.embed(texts, batch_size=FASTEMBED_BATCH)))


def encoders(
    folder: Path, checkpoint: Path, precision: str, peers: Sequence[str], threads: int, size: int
) -> tuple[dict[str, Encode], dict[str, Failure], dict[str, str]]:
    """Return the function of each library in this precision, the failures of the others, and notes, by name."""
    known = {peer.name: peer for peer in all_peers().values() if peer.name in peers}
    own = {
        OURS: lambda: ours(folder, precision),
        "torch": lambda: by_sentence_transformers(folder, precision, threads, size),
        "fastembed": lambda: by_fastembed(checkpoint, precision, threads),
    }
    found, failures = {}, {}
    for name, load in own.items():
        precisions = known[name].precisions if name in known else ("float32", "int8")
        if name in peers and precision in precisions:
            try:
                found[name] = load()
            except Exception as error:  # a failing library must not discard the results of others
                failures[name] = failure_of(error)
    others: list[Peer] = [peer for name, peer in known.items() if name not in own]
    sessions, failed = open_sessions(others, precision, checkpoint, threads)
    tokenizer = tokenizer_of(folder)
    for name, session in sessions.items():
        found[name] = functools.partial(in_sorted_batches, session, tokenizer, size)
    return found, failures | failed, {name: session.note for name, session in sessions.items()}


def _compare(options: argparse.Namespace, workdir: Path, plan: Plan) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one precision after the other."""
    texts = [text for text, _ in film_snippets()[: options.texts]]
    folder = demo_model_folder()
    checkpoint = cached(workdir / MODEL / "transformers", functools.partial(_copy, folder))
    truth = by_sentence_transformers(folder, "float32", plan.threads, options.batch)(texts)
    case = Case(tuple(len(encoding) for encoding in tokenizer_of(folder).encode_batch(texts)))
    for precision in options.precision:
        print(f"{precision}: loading", file=sys.stderr, flush=True)
        found, failures, notes = encoders(folder, checkpoint, precision, options.peers, plan.threads, options.batch)
        yield compare_encoders(case, precision, texts, truth, found, failures, notes, plan)


def compare_encoders(
    case: Case,
    precision: str,
    texts: Sequence[str],
    truth: np.ndarray,
    found: Mapping[str, Encode],
    failures: dict[str, Failure],
    notes: Mapping[str, str],
    plan: Plan,
) -> list[dict[str, Any]]:
    """Return a row for each library: checked against the vectors `truth` (texts, dim), and timed in turns."""
    errors: dict[str, float] = {}
    for name, encode in found.items():
        try:
            errors[name] = float(1 - np.einsum("th,th->t", encode(texts), truth).mean())
        except Exception as error:
            failures[name] = failure_of(error)
            continue
        if not errors[name] <= TOLERANCES[precision]:
            failures[name] = Failure(WRONG, f"1 - cosine is {errors[name]:.2g}", errors[name])
    calls = {
        name: Variant(functools.partial(encode, texts), settled_clock)
        for name, encode in found.items()
        if name not in failures
    }
    times = measure(calls, plan.rounds, plan.seconds)
    rows = [
        row_of(case, precision, name, OK, notes.get(name, ""), errors[name], **figures_of(case, name, times, plan))
        for name in times
    ]
    return rows + [row_of(case, precision, name, *failure) for name, failure in failures.items()]


def _copy(source: Path, target: Path) -> None:
    for file in source.iterdir():
        if file.is_file():
            shutil.copyfile(file, target / file.name)


def _report(rows: Sequence[dict[str, Any]]) -> list[str]:
    columns = (
        Column("precision", "precision"),
        Column("library", "library"),
        Column("median_s", "seconds", ".3f"),
        Column("tokens_per_s", "tokens/s", ",.0f"),
        Column("time_vs_ours", "time/ours", ".2f"),
        Column("error", "1 - cosine", ".1e"),
        Column("note", "note"),
    )
    lines = [row | {"tokens_per_s": row["median_s"] and row["tokens"] / row["median_s"]} for row in rows]
    return [table(lines, columns)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write the CSV and the plot; return 1 if a library failed or was wrong, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.encode", description=__doc__.partition(":")[0])
    names = (*all_peers(), "fastembed")
    several = {"nargs": "+", "metavar": "NAME"}
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS, help="default: all", **several)
    parser.add_argument("--peers", choices=names, default=names, help="default: all", **several)
    parser.add_argument("--texts", type=positive, help=f"number of texts (default: {TEXTS})")
    parser.add_argument("--batch", type=positive, default=32, help="texts in a batch, for those that pad (default: 32)")
    full = {"rounds": 9, "seconds": 60.0, "csv": plot.FOLDER / "encode.csv", "texts": TEXTS}
    add_common(parser, full, "100 texts, 3 rounds")
    quick = {"rounds": 3, "seconds": 1.0, "csv": None, "texts": 100}
    return compare_and_report(parse(parser, arguments, full, quick), VERSIONS, _compare, _report)


if __name__ == "__main__":
    sys.exit(main())
