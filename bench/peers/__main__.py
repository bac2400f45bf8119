"""The command `python -m bench.peers`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import plot
from bench.peers.cases import MEASURED_MODELS, MODELS, PRECISIONS, SHAPES, Case
from bench.peers.checkpoint import hidden_states_alone, make_checkpoint
from bench.peers.command import add_common, compare_and_report, parse
from bench.peers.compare import OK, Plan, compare, open_sessions
from bench.peers.libraries import OURS, all_peers
from bench.report import Column, table

VERSIONS = ("torch", "transformers", "onnxruntime", "openvino", "nncf", "ctranslate2")
LEGEND = (
    "One column per library: its median, ms. best: the fastest peer; ratio: the median over the rounds of its time\n"
    "over ours in the same round. GFLOP/s and share of the float32 FMA limit (bfloat16, int8 may pass it) are ours,\n"
    "counting real tokens only: 2 x the parameters of linear maps x tokens, and attention."
)


def tables(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a titled table for each model and precision, in the order of the rows."""
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
    """Return the line of one case: medians by library, the best peer and its ratio, our speed."""
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
    """Return each remark once: failures and wrong results with their first case, and notes on a library's figures."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write the CSV and the plot; return 1 if a library failed or was wrong, else 0."""
    return compare_and_report(_parse(arguments), VERSIONS, _compare, _report)


def _report(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [*tables(rows), LEGEND, "\n".join(notes(rows))]


def _compare(options: argparse.Namespace, workdir: Path, plan: Plan) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one case after the other."""
    peers = [peer for name, peer in all_peers().items() if name in options.peers]
    for model in options.model:
        cases = [Case(model, shape) for shape in options.shape]
        folder = make_checkpoint(workdir, model, MODELS[model])
        truth, batches = hidden_states_alone(folder), [case.batch() for case in cases]
        truths = [truth(batch) for batch in batches]
        for precision in options.precision:
            print(f"{model} {precision}: loading", file=sys.stderr, flush=True)
            sessions, failures = open_sessions(peers, precision, folder, plan.threads)
            for case, batch, expected in zip(cases, batches, truths, strict=True):
                yield compare(case, precision, batch, sessions, failures, expected, plan)
                print(f"{model} {precision}: {case.shape} done", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description="Compare whole models with other libraries."
    )
    names = tuple(all_peers())
    _add_choice(parser, "--model", tuple(MODELS), MEASURED_MODELS)
    _add_choice(parser, "--shape", tuple(SHAPES), tuple(SHAPES))
    _add_choice(parser, "--precision", PRECISIONS, PRECISIONS)
    _add_choice(parser, "--peers", names, names)
    full = {"rounds": 15, "seconds": 4.0, "csv": plot.FOLDER / "peers.csv"}
    full |= {"model": MEASURED_MODELS, "shape": tuple(SHAPES)}
    quick = {"rounds": 3, "seconds": 1.0, "csv": None, "model": ("minilm-l6",), "shape": ("1x16", "1x128", "ragged")}
    add_common(parser, full, "MiniLM, 3 batches, 3 rounds")
    return parse(parser, arguments, full, quick)


def _add_choice(parser: argparse.ArgumentParser, name: str, choices: Sequence[str], default: Sequence[str]) -> None:
    text = f"one or more of {', '.join(choices)} (default: {'all' if default == choices else ', '.join(default)})"
    default = None if name in ("--model", "--shape") else default  # which depend on --quick
    parser.add_argument(name, nargs="+", choices=choices, default=default, metavar=name[2:].upper(), help=text)


if __name__ == "__main__":
    sys.exit(main())
