"""Members of the family at base size, against transformers on PyTorch and our BERT-base: python -m bench.models

Presets with random weights, and the batches, checks and clock of bench.peers.
"""

import argparse
import functools
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import plot
from bench.measure import Variant, settled_clock
from bench.peers.cases import PRECISIONS, SHAPES, Batch, random_batch
from bench.peers.checkpoint import hidden_states_alone, random_checkpoint
from bench.peers.command import add_common, compare_and_report, parse
from bench.peers.compare import OK, Plan, compare, open_sessions
from bench.peers.libraries import OURS, Session, all_peers
from bench.report import Column, table
from bertcore.models.auto import AutoModel
from bertcore.models.cost import flops_per_token
from bertcore.models.registry import known_families
from bertcore.presets import PRESETS, preset_config
from tests.tiny_families import tiny_config

BERT = "bert-base-uncased"
MEMBERS = (
    BERT, "minilm-l6-h384", "distilbert-base-uncased", "roberta-base", "albert-base-v2", "electra-base-discriminator",
    "mobilebert-uncased", "deberta-base", "deberta-v3-base", "xlnet-base-cased", "luke-base", "gpt2",
)  # fmt: skip
NO_PEER = ("transfo-xl",)  # families that transformers no longer has
LIBRARIES = (OURS, "torch")
BESIDE = "our_bert"
LEGEND = (
    "ms: medians. torch/ours: time of transformers on PyTorch divided by ours. ours/BERT: ours divided by that of our\n"
    "BERT-base. Both are medians of ratios within a round; all take turns. GFLOP/s are ours."
)
TABLE = (
    Column("model", "model"),
    Column("shape", "shape"),
    Column("precision", "precision"),
    Column(OURS, "ours, ms", ".2f", 1e3),
    Column("torch", "torch, ms", ".2f", 1e3),
    Column("ratio", "torch/ours", ".2f"),
    Column("beside", "ours/BERT", ".2f"),
    Column("gflop_per_s", "GFLOP/s", ".0f"),
    Column("note", "note"),
)


def comparable() -> list[str]:
    """Return the presets whose family bertcore and transformers have."""
    families = set(known_families()) - set(NO_PEER)
    return [name for name, preset in PRESETS.items() if preset.config["model_type"] in families]


@dataclass(frozen=True)
class Case:
    """A member on one batch, as a case of `bench.peers.compare`; `quick` chooses its small model."""

    model: str
    shape: str
    quick: bool = False

    @property
    def config(self) -> Mapping[str, Any]:
        return config_of(self.model, self.quick)

    @property
    def lengths(self) -> tuple[int, ...]:
        return SHAPES[self.shape]

    @functools.cached_property
    def flops(self) -> int:
        """The FLOPs of the products in the encoder, on real tokens."""
        model = AutoModel(self.config)
        return sum(length * flops_per_token(model, length) for length in self.lengths)

    def batch(self) -> Batch:
        """Return random ids, the same in every run."""
        seed, padding = zlib.crc32(self.shape.encode()), self.config.get("pad_token_id") or 0
        return random_batch(self.lengths, self.config["vocab_size"], seed, padding)


def config_of(model: str, quick: bool) -> dict[str, Any]:
    """Return the config of a preset, or of its small model."""
    return tiny_config(model) if quick else preset_config(model)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write the CSV and the plot; return 1 if a model failed or was wrong, else 0."""
    return compare_and_report(_parse(arguments), ("torch", "transformers"), _compare, _report)


def _report(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [table(summarised(rows), TABLE), LEGEND]


def _compare(options: argparse.Namespace, workdir: Path, plan: Plan) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each case: ours, PyTorch, and our BERT-base."""
    bert = random_checkpoint(workdir, BERT, config_of(BERT, options.quick))
    for precision in options.precision:
        sessions, failures = open_sessions([all_peers()[OURS]], precision, bert, plan.threads)
        if failures:
            raise RuntimeError(f"{BERT} in {precision}: {failures[OURS].note}")
        for model in options.models:
            print(f"{model} {precision}: loading", file=sys.stderr, flush=True)
            cases = [Case(model, shape, options.quick) for shape in options.shapes]
            yield from _compare_member(cases, precision, workdir, plan, sessions[OURS])


def _compare_member(
    cases: Sequence[Case], precision: str, workdir: Path, plan: Plan, bert: Session
) -> Iterator[list[dict[str, Any]]]:
    folder = random_checkpoint(workdir, cases[0].model, cases[0].config)
    truth, peers = hidden_states_alone(folder), [all_peers()[name] for name in LIBRARIES]
    sessions, failures = open_sessions(peers, precision, folder, plan.threads)
    for case in cases:
        batch = case.batch()
        beside = {BESIDE: Variant(bert.bind(Case(BERT, case.shape, case.quick).batch()), settled_clock)}
        yield compare(case, precision, batch, sessions, failures, truth(batch), plan, beside)
        print(f"{case.model} {precision}: {case.shape} done", file=sys.stderr, flush=True)


def summarised(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a line for each model, batch and precision."""
    groups: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["shape"], row["precision"]), {})[row["library"]] = row
    return [
        {"model": model, "shape": shape, "precision": precision, **_line(found)}
        for (model, shape, precision), found in groups.items()
    ]


def _line(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    medians = {library: row["median_s"] for library, row in found.items()}
    ours, torch = found.get(OURS, {}), found.get("torch", {})
    notes = (f"{row['library']}{'' if row['status'] == OK else ' ' + row['status']}: {row['note']}" for row in
             found.values() if row["note"])  # fmt: skip
    return medians | {
        "ratio": torch.get("time_vs_ours"),
        "beside": ours.get(f"time_vs_{BESIDE}"),
        "gflop_per_s": ours.get("gflop_per_s"),
        "note": "; ".join(notes),
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.models", description="Compare the members of the family with transformers on PyTorch."
    )
    members = {"choices": comparable(), "default": list(MEMBERS), "metavar": "PRESET"}
    parser.add_argument("--models", nargs="+", **members, help=f"default: {', '.join(MEMBERS)}")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, help=f"of {', '.join(SHAPES)} (default: 8x128)")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["float32"], help="default: float32")
    full = {"rounds": 15, "seconds": 10.0, "csv": plot.FOLDER / "models.csv", "shapes": ["8x128"]}
    quick = {"rounds": 3, "seconds": 0.5, "csv": None, "shapes": ["1x16", "ragged"]}
    add_common(parser, full, "small models, 1x16 and ragged, 3 rounds")
    return parse(parser, arguments, full, quick)


if __name__ == "__main__":
    sys.exit(main())
