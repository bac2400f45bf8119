"""Build a large index of real sentences, and compare its precisions: size, memory, seconds, recall.

    python examples/large_index.py [--texts 50000] [--model demo] [--out vectors] [--json FILE]

Embedding a million sentences with all-MiniLM-L6-v2 takes about an hour on two cores, once: the float32 index in the
folder --out is reused if it has as many texts. The queries are short package descriptions, which are not in the corpus.
Recall is the share of the ten nearest texts in float32 that an index finds. Each index is opened and searched in its
own process; its memory excludes mapped files, whose pages the system may drop.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from corpora import package_descriptions, sentences
from runs import count, shown

from bertcore import SentenceEncoder, VectorIndex
from bertcore.demo_model import demo_model_folder

TOP, QUERIES, SINGLE = 10, 1000, 50
FORMS = {  # precision, rescore_precision
    "float32": ("float32", None), "float16": ("float16", None), "int8": ("int8", None),
    "int8, rescored by float16": ("int8", "float16"), "binary, rescored by int8": ("binary", "int8"),
    "binary, rescored by float16": ("binary", "float16"), "binary alone": ("binary", None),
}  # fmt: skip


def embedded(folder: Path, encoder: SentenceEncoder, texts: int) -> tuple[VectorIndex, float]:
    """Return the float32 index of this many sentences, and the seconds it took, 0 if it existed."""
    if folder.exists():
        index = VectorIndex(folder)
        if len(index) == texts:
            return index, 0.0
        shutil.rmtree(folder)
    kept = list(islice(sentences(), texts))
    started = time.perf_counter()
    index = VectorIndex.build(folder, encoder.encode_document_stream(kept, truncation=True), texts=kept)
    return index, time.perf_counter() - started


def memory_in_mib() -> float:
    """Return the memory of this process without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def searched(folder: Path, queries: np.ndarray) -> dict[str, Any]:
    """Open an index, and return its results, its memory, and the seconds of one query and of many."""
    before = memory_in_mib()
    index = VectorIndex(folder)
    index.search(queries[:2], TOP)  # compiles, and reads the files once
    started = time.perf_counter()
    found = index.search(queries, TOP)
    many = time.perf_counter() - started
    singles = []
    for query in queries[:SINGLE]:
        started = time.perf_counter()
        index.search(query, TOP)
        singles.append(time.perf_counter() - started)
    ids = [[entry["corpus_id"] for entry in entries] for entries in found]
    figures = {"ms for one query": 1000 * float(np.median(singles)), "queries a second": len(queries) / many}
    return {"ids": ids, "MiB of memory": memory_in_mib() - before, **figures}


def compared(index: VectorIndex, queries: np.ndarray, out: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name and the measurements of each form of an index; folders are removed once measured."""
    expected: list[list[int]] | None = None
    for name, (precision, rescore_precision) in FORMS.items():
        folder, seconds = index.folder, 0.0
        if precision != "float32":
            shutil.rmtree(folder := out / "form", ignore_errors=True)
            started, rows = time.perf_counter(), (block for _, block in index.vectors())
            VectorIndex.build(folder, rows, precision=precision, rescore_precision=rescore_precision)
            seconds = time.perf_counter() - started
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found = process.submit(searched, folder, queries).result()
        ids = found.pop("ids")
        expected = ids if expected is None else expected
        recall = np.mean([len({*some} & {*right}) / len(right) for some, right in zip(ids, expected, strict=True)])
        arrays = [file for file in folder.rglob("*.npy") if not file.stem.endswith(("texts", "offsets"))]
        size = sum(file.stat().st_size for file in arrays) / 2**20
        yield name, {"recall": float(recall), "MiB on disk": size, "s to build": seconds, **found}
    shutil.rmtree(out / "form", ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=count, default=50_000, help="the number of texts (default: %(default)s)")
    parser.add_argument("--model", help="folder of a sentence encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--out", default=Path("vectors"), type=Path, help="folder of the indices (default: vectors)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each form")
    given = parser.parse_args()
    encoder = SentenceEncoder(given.model or demo_model_folder())
    given.out.mkdir(parents=True, exist_ok=True)
    index, seconds = embedded(given.out / "float32", encoder, given.texts)
    print(f"{len(index):,} texts embedded in {seconds:.0f} s, {index.dimension} dimensions", flush=True)
    short = [short for _, short, _ in package_descriptions()]
    chosen = np.random.default_rng(0).permutation(len(short))[:QUERIES]
    queries = encoder.encode_query([short[i] for i in chosen])
    for name, figures in compared(index, queries, given.out):
        print(f"{name}: " + ", ".join(f"{key} {shown(value)}" for key, value in figures.items()), flush=True)
        if given.json is not None:
            with given.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": name, "texts": len(index), "embedded in s": seconds, **figures}) + "\n")


if __name__ == "__main__":
    main()
