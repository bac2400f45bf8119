"""Installed size and memory: python -m bench.footprint [--texts N]

The size of the distributions that `pip install bertcore` installs; the memory of encoding 550 short texts with
all-MiniLM-L6-v2, and of `bertcore embed` over 1,000,000 short texts.
"""

import argparse
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import bertcore
from bench.memory import resident
from bench.options import positive
from bench.texts import short_texts
from bertcore import kernels
from bertcore.demo_model import demo_model_folder

SHORT = 550
SHARES = (0.1, 0.5, 1.0)  # of the texts after which memory is read
CHUNK = 1 << 20  # most bytes of output between two readings

ENCODE = """
import sys
from pathlib import Path
import numpy
from bench.memory import resident
from bench.texts import short_texts
texts, before = list(short_texts(int(sys.argv[2]))), resident()
from bertcore import SentenceEncoder
encoder = SentenceEncoder(sys.argv[1])
loaded = resident()
encoder.encode(texts[0])
warm = resident()
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
vectors = encoder.encode(texts)
assert vectors.shape == (len(texts), encoder.embedding_dimension) and numpy.isfinite(vectors).all()
print(before, loaded, warm, resident("VmHWM"))
"""


def needed(name: str, found: dict[str, metadata.Distribution]) -> None:
    """Add the distribution and all its requirements without extras to `found`."""
    from packaging.requirements import Requirement

    distribution = metadata.distribution(name)
    if distribution.name in found:
        return
    found[distribution.name] = distribution
    for line in distribution.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            needed(requirement.name, found)


def installed() -> dict[str, tuple[float, float]]:
    """Return MB of (files, compiled Python) by distribution; ours are counted in their source folders."""
    found: dict[str, metadata.Distribution] = {}
    needed("bertcore", found)
    sizes = {}
    for name, distribution in found.items():
        if name == "bertcore":
            folders = {Path(bertcore.__file__).parent, Path(kernels.__file__).parent}
            files = {file.resolve() for folder in folders for file in folder.rglob("*")}
        else:
            files = {Path(str(file.locate())) for file in distribution.files or []}
        sizes[name] = (_megabytes(files, False), _megabytes(files, True))
    return dict(sorted(sizes.items(), key=lambda item: -item[1][0]))


def _megabytes(files: set[Path], is_compiled: bool) -> float:
    return sum(file.stat().st_size for file in files if file.is_file() and (file.suffix == ".pyc") == is_compiled) / 1e6


def memory_of_texts(folder: Path, count: int = SHORT) -> tuple[float, ...]:
    """Return MB of a new process: Python with NumPy, with the model, after one text, peak during `count` texts."""
    command = [sys.executable, "-c", ENCODE, str(folder), str(count)]
    return tuple(map(float, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()))


def memory_of_embed(folder: Path, count: int) -> Iterator[tuple[float, float]]:
    """Yield (share of the texts done by `bertcore embed`, its MB at that point) for each of SHARES."""
    command = [sys.executable, "-m", "bertcore", "embed", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        writer = threading.Thread(target=_write, args=(process.stdin, count))
        writer.start()
        done, shares, last = 0, list(SHARES), 0.0
        while chunk := process.stdout.read1(CHUNK):
            done += chunk.count(b"\n")
            with contextlib.suppress(OSError, KeyError):  # the process has ended: keep the last value
                last = resident(process=process.pid)
            while shares and done >= shares[0] * count:
                yield shares.pop(0), last
        writer.join()
    if process.returncode or done != count:
        raise RuntimeError(f"bertcore embed ended with {process.returncode} after {done} of {count} texts")


def _write(stream, count: int) -> None:
    with stream:
        for text in short_texts(count):
            stream.write(text.encode() + b"\n")


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.footprint", description=__doc__.partition(":")[0])
    parser.add_argument("--texts", type=positive, default=1_000_000, help="through bertcore embed (default: 1000000)")
    count = parser.parse_args(arguments).texts
    sizes = installed()
    for name, (files, compiled) in sizes.items():
        if files + compiled >= 1:
            print(f"{name:18} {files:6.1f} MB, compiled Python {compiled:5.1f} MB")
    files, compiled = (sum(column) for column in zip(*sizes.values(), strict=True))
    print(f"{'installed':18} {files:6.1f} MB, compiled Python {compiled:5.1f} MB, without extras")
    folder = demo_model_folder()
    memory_of_texts(folder)  # compiles the kernels that are not in the cache, which takes 160 MB
    before, loaded, warm, peak = memory_of_texts(folder)
    print(f"Python with NumPy {before:.0f} MB, with the model {loaded:.0f}, after one text {warm:.0f}")
    print(f"{SHORT} short texts: {peak:.0f} MB at most, {peak - loaded:.0f} above the loaded model", flush=True)
    for share, megabytes in memory_of_embed(folder, count):
        print(f"bertcore embed: {megabytes:.0f} MB after {share:.0%} of {count:,} texts", flush=True)


if __name__ == "__main__":
    main()
