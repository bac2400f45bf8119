"""Time and memory by length, batch, threads and texts, against linear growth: python -m bench.growth [--page]

Each point is measured in its own process: seconds, the median of some passes, and the peak resident MB (VmHWM) beyond
the loaded and warm model. "texts" are written through `encode_stream` into a memory-mapped .npy file, whose pages the
system also counts as resident: there only anonymous memory counts (RssAnon). The command draws growth.svg and prints a
table; with --page it writes both to docs/.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import machine
from bench.memory import resident
from bench.options import positive
from bench.report import Column, table
from bench.texts import short_texts
from bertcore import AutoModel, SentenceEncoder
from bertcore.demo_model import demo_model_folder

DOCS = Path(__file__).parents[1] / "docs"
PASSES = 3
SAMPLED = 100  # texts between two readings of memory


class Axis(NamedTuple):
    """A quantity that grows."""

    title: str  # of the plot
    values: Sequence[int]  # the points
    quick: Sequence[int]  # fewer, for --quick
    prepare: Callable[[int], Callable[[], Any]]  # value -> the call to measure; it is called once before
    # the time at `value` with linear growth, relative to the first point
    line: Callable[[int, int], float] = lambda value, first: value / first


def _ids(texts: int, length: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(1000, 20000, (texts, length)))


def _length(tokens: int) -> Callable[[], Any]:
    model = AutoModel.from_config("modernbert-base")
    model.encode_packed(_ids(1, 128))
    return lambda: model.encode_packed(_ids(1, tokens))


def _batch(texts: int) -> Callable[[], Any]:
    model = AutoModel.from_config("minilm-l6-h384", add_pooling_layer=False)
    model.encode_packed(_ids(1, 128))
    return lambda: model.encode_packed(_ids(texts, 128))


def _threads(count: int) -> Callable[[], Any]:
    machine.set_threads(count)
    return _batch(64)


def _texts(count: int) -> Callable[[], Any]:
    encoder = SentenceEncoder(demo_model_folder())
    list(encoder.encode_stream(short_texts(256)))

    def write() -> float:
        most = 0.0
        with tempfile.TemporaryDirectory() as folder:
            shape = count, encoder.embedding_dimension
            rows = np.lib.format.open_memmap(f"{folder}/rows.npy", "w+", np.float32, shape)
            for number, row in enumerate(encoder.encode_stream(short_texts(count))):
                rows[number] = row
                if number % SAMPLED == 0:
                    most = max(most, resident("RssAnon"))
        return most

    return write


AXES = {
    "length": Axis("ModernBERT-base, one text: tokens", [2**n for n in range(7, 14)], (128, 256), _length),
    "batch": Axis("MiniLM, texts of 128 tokens", [2**n for n in range(9)], (1, 2, 4), _batch),
    "threads": Axis("MiniLM, 64 x 128: threads", (1, 2, 4), (1, 2), _threads, lambda value, first: first / value),
    "texts": Axis("MiniLM, short texts into a file", [10**n for n in range(3, 7)], (100, 1000), _texts),
}


def point(axis: str, value: int) -> dict[str, float]:
    """Return the seconds and MB of a point, measured in this process."""
    call = AXES[axis].prepare(value)
    before = resident("RssAnon" if axis == "texts" else "VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    seconds, most = [], None
    for _ in range(1 if axis == "texts" and value > 10_000 else PASSES):
        start = time.perf_counter()
        most = call()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds), "mb": (most if axis == "texts" else resident("VmHWM")) - before}


def measured(axis: str, quick: bool, cores: int, most: int = 10**6) -> list[dict[str, Any]]:
    """Return a row for each point of an axis, each measured in a new process."""
    rows: list[dict[str, Any]] = []
    for value in AXES[axis].quick if quick else AXES[axis].values:
        if value > (cores if axis == "threads" else most):
            continue
        command = [sys.executable, "-m", "bench.growth", "--axes", axis, "--point", str(value)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        first = rows[0] if rows else found | {"value": value}
        line = first["seconds"] * AXES[axis].line(value, first["value"])
        rows.append({"axis": axis, "value": value, **found, "of_line": found["seconds"] / line, "line": line})
        print(f"{axis} {value}: {found['seconds']:.3g} s, {found['mb']:.0f} MB", file=sys.stderr, flush=True)
    return rows


def draw(rows: Sequence[dict[str, Any]], target: Path) -> None:
    """Plot seconds and MB over each axis, and the straight line through the first point's seconds."""
    from bertcore.drawing import BLUE, GREY, ORANGE, new_figure, save_figure, style

    axes = list(dict.fromkeys(row["axis"] for row in rows))
    with style():
        figure = new_figure(3.4 * len(axes), 5.2)
        panels = figure.subplots(2, len(axes), squeeze=False, sharex="col")
        for (upper, lower), axis in zip(panels.T, axes, strict=True):
            own = [row for row in rows if row["axis"] == axis]
            values = [row["value"] for row in own]
            upper.plot(values, [row["line"] for row in own], "--", color=GREY, label="straight line")
            upper.plot(values, [row["seconds"] for row in own], "o-", color=BLUE, label="measured")
            lower.plot(values, [row["mb"] for row in own], "o-", color=ORANGE)
            upper.set(title=AXES[axis].title, xscale="log", yscale="log")
            shown = values[:: 1 + len(values) // 5]
            lower.set_xticks(shown, [f"{value:,}" for value in shown])
            lower.xaxis.set_minor_formatter("")
            upper.yaxis.set_major_formatter("{x:g}")
            seconds = [row["seconds"] for row in own]
            upper.yaxis.set_minor_formatter("{x:g}" if max(seconds) < 10 * min(seconds) else "")
            lower.set(ylim=(0, 1.1 * max(max(row["mb"] for row in own), 1)))
        panels[0][0].set_ylabel("seconds")
        panels[1][0].set_ylabel("MB beyond the model")
        panels[0][0].legend()
        save_figure(figure, target)


def written(rows: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    """Return the page's text."""
    lines = [
        "| over | value | seconds | relative to the line | MB beyond the model |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        numbers = f"{row['seconds']:.3g} | {row['of_line']:.2f} | {row['mb']:.0f}"
        lines.append(f"| {AXES[row['axis']].title} | {row['value']:,} | {numbers} |")
    date, cpu, threads = about["date"][:10], about["cpu"], about["threads"]
    return f"""# Growth

How time and memory grow with the length of a text, the number of texts in a batch, the number of threads and the number
of texts in a file: {cpu}, {threads} threads, {date}, float32
(`python -m bench.growth --page`). The straight line is linear growth from the first point. A file of any size
needs the memory of only a few batches.

![Seconds and memory over length, batch, threads and texts](images/growth.svg)

{chr(10).join(lines)}

Attention makes time grow faster than the line with long texts: in ModernBERT every third layer attends to the whole
text, the others to a window. Fixed costs are a larger share of small batches, so larger ones lie below the line.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__.partition(":")[0])
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES), help="default: all")
    parser.add_argument("--quick", action="store_true", help="a quick check: two or three points each")
    parser.add_argument("--most", type=positive, default=10**6, help="leave out points beyond it (default: a million)")
    parser.add_argument("--out", type=Path, default=Path("growth.svg"), help="the plot's file (default: growth.svg)")
    parser.add_argument("--page", action="store_true", help="write docs/growth.md and docs/images/growth.svg")
    parser.add_argument("--point", type=positive, help="measure one point of the first of --axes, in this process")
    options = parser.parse_args(arguments)
    if options.point is not None:
        print(json.dumps(point(options.axes[0], options.point)))
        return
    about = machine.describe()
    rows = [row for axis in options.axes for row in measured(axis, options.quick, about["cores"], options.most)]
    columns = Column("axis", "over"), Column("value", "value", ","), Column("seconds", "seconds", ".4g")
    print(table(rows, [*columns, Column("of_line", "of the line", ".2f"), Column("mb", "MB", ".0f")]))
    draw(rows, DOCS / "images" / "growth.svg" if options.page else options.out)
    if options.page:
        (DOCS / "growth.md").write_text(written(rows, about), encoding="utf-8")


if __name__ == "__main__":
    main()
