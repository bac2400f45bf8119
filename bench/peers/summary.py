"""What is printed: one table per model and precision, and what could not be measured."""

from collections.abc import Sequence
from typing import Any

from bench.peers.compare import OK
from bench.peers.libraries import OURS
from bench.report import Column, table

LEGEND = (
    "One column per library: its median, ms. best: the fastest peer; ratio: the median over the rounds of its time\n"
    "over ours in the same round. GFLOP/s and share of the float32 FMA limit (bfloat16, int8 may pass it) are ours,\n"
    "counting real tokens only: 2 x the parameters of linear maps x tokens, and attention."
)


def tables(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A titled table for each model and precision, in the order of the rows."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["precision"]), []).append(row)
    return [f"{model} {precision}\n{_table(group)}" for (model, precision), group in groups.items()]


def _table(rows: Sequence[dict[str, Any]]) -> str:
    libraries = list(dict.fromkeys(row["library"] for row in sorted(rows, key=lambda row: row["library"] != OURS)))
    columns = [
        Column("shape", "shape"),
        *(Column(library, library, ".2f", 1e3) for library in libraries),
        Column("best", "best"),
        Column("ratio", "ratio", ".2f"),
        Column("gflop_per_s", "GFLOP/s", ".0f"),
        Column("share_of_fma_limit", "% of FMA limit", ".0f", 100),
    ]
    shapes = dict.fromkeys(row["shape"] for row in rows)
    return table([summarised([row for row in rows if row["shape"] == shape]) for shape in shapes], columns)


def summarised(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The line of one case: medians by library, the best peer and its ratio, our speed."""
    by_library = {row["library"]: row for row in rows if row["status"] == OK}
    best = next((row for row in by_library.values() if row["is_best_peer"]), {})
    ours = by_library.get(OURS, {})
    return {
        "shape": rows[0]["shape"],
        **{library: row["median_s"] for library, row in by_library.items()},
        "best": best.get("library"),
        "ratio": best.get("time_vs_ours"),
        "gflop_per_s": ours.get("gflop_per_s"),
        "share_of_fma_limit": ours.get("share_of_fma_limit"),
    }


def notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Each remark once: what could not run or was wrong and where first, and what a library's figures stand for."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row["note"]:
            key = (row["library"], row["precision"], row["status"], row["note"])
            found.setdefault(key, []).append(f"{row['model']} {row['shape']}")
    return [
        f"{library} {precision}: {note}"
        if status == OK
        else f"{library} {precision} {status} in {len(where)} cases, the first being {where[0]}: {note}"
        for (library, precision, status, note), where in found.items()
    ]
