"""The command `python -m bench.peers`."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import plot, summary
from bench.peers.cases import MEASURED_MODELS, MODELS, PRECISIONS, SHAPES, Batch, Case
from bench.peers.checkpoint import hidden_states_alone, make_checkpoint
from bench.peers.command import compare_and_report
from bench.peers.compare import Plan, compare_model
from bench.peers.libraries import all_peers
from bench.peers.options import add_common, parse

VERSIONS = ("torch", "transformers", "onnxruntime", "openvino", "nncf", "ctranslate2")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write the CSV and the plot; 1 if a library failed or was wrong, else 0."""
    return compare_and_report(_parse(arguments), VERSIONS, _compare, _told, plot.main)


def _told(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [*summary.tables(rows), summary.LEGEND, "\n".join(summary.notes(rows))]


def _compare(options: argparse.Namespace, workdir: Path, plan: Plan) -> Iterator[list[dict[str, Any]]]:
    """The rows of one case after the other."""
    peers = [peer for name, peer in all_peers().items() if name in options.peers]
    for model in options.model:
        cases = [Case(model, shape) for shape in options.shape]
        folder = make_checkpoint(workdir, model, MODELS[model])
        truth = _remembered(hidden_states_alone(folder))
        for precision in options.precision:
            print(f"{model} {precision}: loading", file=sys.stderr, flush=True)
            for compared in compare_model(cases, precision, peers, folder, truth, plan):
                yield compared
                print(f"{model} {precision}: {compared[0]['shape']} done", file=sys.stderr, flush=True)


def _remembered(truth: Callable[[Batch], np.ndarray]) -> Callable[[Case, Batch], np.ndarray]:
    """The truth of each case is computed once for all precisions."""
    found: dict[Case, np.ndarray] = {}

    def remember(case: Case, batch: Batch) -> np.ndarray:
        if case not in found:
            found[case] = truth(batch)
        return found[case]

    return remember


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description="Compare whole models with other libraries."
    )
    names = tuple(all_peers())
    _add_choice(parser, "--model", tuple(MODELS), MEASURED_MODELS)
    _add_choice(parser, "--shape", tuple(SHAPES), tuple(SHAPES))
    _add_choice(parser, "--precision", PRECISIONS, PRECISIONS)
    _add_choice(parser, "--peers", names, names)
    full = {
        "rounds": 15,
        "seconds": 4.0,
        "csv": plot.FOLDER / "peers.csv",
        "model": MEASURED_MODELS,
        "shape": tuple(SHAPES),
    }
    quick = {
        "rounds": 3,
        "seconds": 1.0,
        "csv": None,
        "model": ("minilm-l6",),
        "shape": ("1x16", "1x128", "ragged"),
    }
    add_common(parser, full, "MiniLM, 3 batches, 3 rounds")
    return parse(parser, arguments, full, quick)


def _add_choice(parser: argparse.ArgumentParser, name: str, choices: Sequence[str], default: Sequence[str]) -> None:
    text = f"one or more of {', '.join(choices)} (default: {'all' if default == choices else ', '.join(default)})"
    is_quick_dependent = name in ("--model", "--shape")
    parser.add_argument(
        name,
        nargs="+",
        choices=choices,
        default=None if is_quick_dependent else default,
        metavar=name[2:].upper(),
        help=text,
    )


if __name__ == "__main__":
    sys.exit(main())
