"""Start-up times, each in its own process: python -m bench.startup [--rounds N]

Import of bertcore against Python with NumPy, in turns; and the time from the start of a process to the first embedding
of all-MiniLM-L6-v2, with compiled kernels in the cache and with an empty cache. The embedding is checked first.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from bench.options import positive
from bertcore.demo_model import demo_model_folder

EMBED = """
import numpy, sys
from bertcore import SentenceEncoder
vector = SentenceEncoder(sys.argv[1]).encode("The cat sits on the mat.")
assert vector.shape == (384,) and abs(float(vector @ vector) - 1) < 1e-5, vector
"""


def seconds(code: str, *arguments: str, **environment: str) -> float:
    """Return the seconds that a new Python process takes to run `code`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], env={**os.environ, **environment}, check=True)
    return time.perf_counter() - start


def import_seconds(rounds: int) -> tuple[float, float]:
    """Return the medians of Python with NumPy and of Python with NumPy and bertcore, in turns."""
    pairs = [(seconds("import numpy"), seconds("import numpy, bertcore")) for _ in range(rounds)]
    return tuple(statistics.median(column) for column in zip(*pairs, strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.startup", description=__doc__.partition(":")[0])
    parser.add_argument("--rounds", type=positive, default=11, help="processes for each median (default: 11)")
    rounds = parser.parse_args().rounds
    folder = str(demo_model_folder())
    with tempfile.TemporaryDirectory() as cache:
        cold = seconds(EMBED, folder, BERTCORE_CACHE_DIR=cache)
        warm = statistics.median(seconds(EMBED, folder, BERTCORE_CACHE_DIR=cache) for _ in range(rounds))
    numpy_alone, with_bertcore = import_seconds(rounds)
    print(f"import numpy                  {numpy_alone:7.3f} s")
    print(f"import numpy, bertcore        {with_bertcore:7.3f} s, {with_bertcore - numpy_alone:.3f} s more")
    print(f"first embedding, warm cache   {warm:7.3f} s (median of {rounds} processes)")
    print(f"first embedding, empty cache  {cold:7.3f} s (one process)")


if __name__ == "__main__":
    main()
