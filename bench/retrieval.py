"""Static embeddings and searches of codes, with their peers: python -m bench.retrieval [static] [bits] [int8]

static: film snippets through all-MiniLM-L6-v2, distilled to 256 dimensions, in bertcore and in model2vec. bits, int8:
the ten nearest of random codes, all compared, in bertcore's `nearest_codes`, usearch and FAISS. Results are compared
first, then calls are timed in turns.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.measure import Variant, measure
from bench.options import positive
from bertcore import SentenceEncoder, kernels
from bertcore.demo_model import demo_model_folder
from bertcore.tasks.static import distill_static
from examples.corpora import film_snippets

TOP, OURS = 10, "bertcore"


def static(given: argparse.Namespace, folder: str) -> None:
    """Distil, compare the vectors, and print the texts of a second."""
    from model2vec import StaticModel

    started = time.perf_counter()
    distill_static(demo_model_folder(), folder, quantize_to="float32")
    print(f"static: distilled in {time.perf_counter() - started:.0f} s")
    texts = [text for text, _ in film_snippets()[: given.texts]]
    ours, peer = SentenceEncoder(folder, unknown="drop"), StaticModel.from_pretrained(folder)
    calls = {OURS: lambda: ours.encode(texts), "model2vec": lambda: peer.encode(texts)}
    apart = float(np.abs(calls[OURS]() - calls["model2vec"]()).max())
    if not apart < 1e-6:
        raise SystemExit(f"static: vectors are {apart:.1e} apart, not timed")
    _print_times(f"static, {len(texts)} texts", calls, len(texts), "texts", given.rounds)


def codes(kind: str, given: argparse.Namespace) -> None:
    """Compare the scores of the nearest codes, and print the queries of a second, for one and for several queries."""
    import faiss  # before usearch: see docs/plugins.md
    from usearch.index import MetricKind, search

    faiss.omp_set_num_threads(given.threads)
    rng, is_bits = np.random.default_rng(0), kind == "bits"
    shape, dtype, low = ((given.width // 8,), np.uint8, 0) if is_bits else ((given.width,), np.int8, -127)
    corpus, queries = (rng.integers(low, low + 255, (rows, *shape), dtype) for rows in (given.rows, given.queries))
    if is_bits:
        index = faiss.IndexBinaryFlat(given.width)
        index.add(corpus)
    else:
        index = faiss.IndexScalarQuantizer(
            given.width, faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_INNER_PRODUCT
        )
        index.add(corpus.astype(np.float32))
    options: dict[str, Any] = {"metric": MetricKind.Hamming if is_bits else MetricKind.IP, "exact": True}
    options |= {"threads": given.threads} | ({"dtype": "b1"} if is_bits else {})
    for some in (queries[:1], queries):
        floats = some if is_bits else some.astype(np.float32)
        calls = {
            OURS: lambda some=some: kernels.nearest_codes(some, corpus, TOP).scores,
            "usearch": lambda some=some: search(corpus, some, TOP, **options).distances.reshape(len(some), -1),
            "faiss": lambda floats=floats: index.search(floats, TOP)[0],
        }
        found = {name: np.float64(call()) for name, call in calls.items()}
        found["usearch"] = found["usearch"] if is_bits else 1 - found["usearch"]  # its distance
        for name, scores in found.items():
            if not np.array_equal(scores, found[OURS]):
                raise SystemExit(f"{kind}: the scores of {name} differ, not timed")
        _print_times(f"{kind}, {len(some)} x {given.rows} of {given.width}", calls, len(some), "queries", given.rounds)


def _print_times(case: str, calls: dict[str, Callable[[], Any]], count: int, what: str, rounds: int) -> None:
    times = measure({name: Variant(call) for name, call in calls.items()}, rounds, 30.0)
    for name, each in times.items():
        rate, ratio = count / each.median, each.ratio(times[OURS])
        print(f"{case:32} {name:10} {rate:12.0f} {what} a second, {ratio:5.2f} times our time", flush=True)


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.retrieval", description=__doc__.partition(":")[0])
    parser.add_argument("cases", nargs="*", metavar="static|bits|int8", help="default: all three")
    defaults = {"texts": 10_000, "rows": 1_000_000, "queries": 100, "width": 384, "rounds": 15}
    for name, default in (*defaults.items(), ("threads", kernels.get_num_threads())):
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"(default: {default})")
    given = parser.parse_args()
    kernels.set_num_threads(given.threads)
    for case in given.cases or ("static", "bits", "int8"):
        if case not in ("static", "bits", "int8") or given.width % 8:
            parser.error(f"{case!r} with --width {given.width}, expected static, bits or int8 and a multiple of 8")
        if case == "static":
            with tempfile.TemporaryDirectory() as folder:
                static(given, folder)
        else:
            codes(case, given)


if __name__ == "__main__":
    main()
