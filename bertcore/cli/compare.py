"""Compare models side by side: parameters, FLOPs, memory, and what was published of them.

NAMES are presets, folders of models or their ids on the Hugging Face hub, as for `bertcore info`; by default all
presets. MNLI-m (accuracy) and GLUE dev (mean of eight tasks) are what each model's authors report, not measured here;
`bertcore info NAME` tells where they stand.

--training tells what training them takes on this machine, memory and time, before you spend it: some steps of two and
of four of their layers are measured (in seconds to minutes), and a further layer takes as much as these differ by,
each. Memory is the most that the process takes beyond Python with NumPy."""

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertcore.cli.common import CommandError, positive
from bertcore.cli.info import QUOTED, add_length_argument, described
from bertcore.cli.outputs import output_stream
from bertcore.cli.tables import aligned
from bertcore.models.figures import Figures, figures

HELP = "compare models side by side, as a table or a plot"
EXAMPLES = """\
examples:
  bertcore compare
  bertcore compare bert-base-uncased albert-base-v2 my-model/ --length 512
  bertcore compare --csv > family.csv
  bertcore compare mini-bert distilbert-base-uncased --training --batch 32 --length 128
  bertcore compare --plot family.png"""


class Column(NamedTuple):
    """A column of the table: its title, how its value is written, and a factor for the unit of the title."""

    title: str
    form: str = ""
    factor: float = 1

    def text(self, value: Any) -> str:
        if value is None:
            return ""
        return format(value * self.factor, self.form) if self.form else str(value)


Columns = Mapping[str, Column]
COLUMNS = {
    "name": Column("model"),
    "year": Column("year"),
    "layers": Column("layers", "d"),
    "hidden_size": Column("hidden", "d"),
    "heads": Column("heads", "d"),
    "vocabulary": Column("vocabulary", ",d"),
    "parameters": Column("parameters, M", ",.1f", 1e-6),
    "embeddings": Column("of them embeddings", ",.1f", 1e-6),
    "flops_per_token": Column("MFLOPs/token", ",.1f", 1e-6),
    "megabytes_float32": Column("MB", ",.1f"),
    "megabytes_int8": Column("MB int8", ",.1f"),
    **{key: Column(title, ".1f") for key, title in QUOTED.items()},
    "objective": Column("objective"),
}

_MEGABYTES, _RATE = ",.0f", ",.0f"
TRAINING_COLUMNS = {
    "name": Column("model"),
    "weights": Column("weights, MB", _MEGABYTES),
    "gradients": Column("gradients", _MEGABYTES),
    "moments": Column("AdamW", _MEGABYTES),
    "activations": Column("kept for the backward", _MEGABYTES),
    "peak": Column("peak", _MEGABYTES),
    "tokens_per_second": Column("tokens/s", _RATE),
    "checkpointed_activations": Column("layers run again: kept", _MEGABYTES),
    "checkpointed_peak": Column("peak", _MEGABYTES),
    "checkpointed_tokens_per_second": Column("tokens/s", _RATE),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("names", metavar="NAMES", nargs="*", help="presets, folders or ids (default: all presets)")
    add_length_argument(parser)
    parser.add_argument("--training", action="store_true", help="what training them takes here; see above")
    parser.add_argument("--batch", type=positive, metavar="N", help="sequences of a step, for --training (default: 32)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print comma-separated values, in units of one")
    form.add_argument("--json", action="store_true", help="print one JSON array")
    parser.add_argument("--plot", metavar="FILE.png", help="plot parameters, FLOPs and MNLI-m (needs matplotlib)")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    from bertcore.presets import PRESETS

    if args.training:
        _compare_training(args)
        return
    if args.batch:
        raise CommandError("--batch is for --training")
    if args.plot:
        _check_plot(args.plot)
    rows = [row(name, *described(name), length=args.length) for name in args.names or PRESETS]
    note = f"FLOPs in a sequence of {args.length} tokens, or the model's longest; `bertcore info --help` tells how"
    _print(rows, COLUMNS, args, note)
    if args.plot:
        plot(rows, args.plot)


def _compare_training(args: argparse.Namespace) -> None:
    from bertcore.kernels import get_num_threads
    from bertcore.training.cost import training_cost

    if not args.names or args.plot:
        what = "--plot does not go with --training" if args.plot else "--training needs NAMES: each takes its time"
        raise CommandError(what)
    batch, rows = args.batch or 32, []
    for name in args.names:
        cost = training_cost(described(name)[0], batch, args.length)
        again = {f"checkpointed_{key}": value for key, value in vars(cost.checkpointed).items()}
        known = {"name": name, **vars(cost), **vars(cost.kept), **again}
        rows.append({key: known[key] for key in TRAINING_COLUMNS})
    threads = get_num_threads()
    note = f"steps of {batch} sequences of {args.length} tokens, on {threads} thread{'s' * (threads > 1)}"
    _print(rows, TRAINING_COLUMNS, args, note)


def _print(rows: Sequence[Mapping[str, Any]], columns: Columns, args: argparse.Namespace, note: str) -> None:
    """The models as --csv, --json, or a table with a note below it."""
    if args.csv:
        writer = csv.DictWriter(sys.stdout, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif args.json:
        print(json.dumps(rows, ensure_ascii=False))
    else:
        print(table(rows, columns))
        print(f"\n{note}")


def row(name: str, config: Mapping[str, Any], facts: Mapping[str, Any], *, length: int) -> dict[str, Any]:
    """The values of COLUMNS for one model; None for what is not known of it."""
    found: Figures = figures(config, length)
    sizes = {f"megabytes_{dtype}": size for dtype, size in found.megabytes.items()}
    known = {"name": name, **vars(found), **sizes, **facts}
    return {key: known.get(key) for key in COLUMNS}


def table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """The models under each other."""
    cells = [[column.text(each[key]) for key, column in columns.items()] for each in rows]
    titles = [column.title for column in columns.values()]
    return aligned(titles, cells, right=[bool(column.form) for column in columns.values()])


def _check_plot(path: str) -> None:
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib, which is not installed: pip install matplotlib")
    if Path(path).suffix.lower() != ".png":
        raise CommandError(f"--plot is {path}, expected a file named *.png")


def plot(rows: Sequence[Mapping[str, Any]], path: str) -> None:
    """A line for each model: its parameters (embeddings apart), FLOPs per token, and MNLI-m where it is known."""
    import importlib

    importlib.import_module("matplotlib").use("Agg")
    pyplot = importlib.import_module("matplotlib.pyplot")
    size = (13, 1.5 + 0.24 * len(rows))
    figure, (sizes, work, mnli) = pyplot.subplots(1, 3, figsize=size, sharey=True, width_ratios=(2, 2, 1))
    names = [f"{index}" for index in range(len(rows))]  # a model may be named twice
    tables = [each["embeddings"] / 1e6 for each in rows]
    others = [(each["parameters"] - each["embeddings"]) / 1e6 for each in rows]
    sizes.barh(names, others, color="tab:blue", label="layers")
    sizes.barh(names, tables, left=others, color="tab:cyan", label="embeddings")
    sizes.set_xlabel("parameters, millions")
    sizes.legend(frameon=False)
    work.barh(names, [each["flops_per_token"] / 1e6 for each in rows], color="tab:orange")
    work.set(xlabel="FLOPs per token, millions", xscale="log")
    known = [(name, each["mnli_m"]) for name, each in zip(names, rows, strict=True) if each["mnli_m"] is not None]
    mnli.plot([value for _, value in known], [name for name, _ in known], "o", color="tab:green")
    mnli.set(xlabel="MNLI-m, %, as published", xlim=(80, 93))
    sizes.set_yticks(range(len(rows)), [each["name"] for each in rows], fontsize=8)
    sizes.invert_yaxis()
    for panel in (sizes, work, mnli):
        panel.grid(visible=True, alpha=0.25)
        panel.margins(y=0.01)
    figure.tight_layout()
    with output_stream(path, seekable=True) as stream:
        figure.savefig(stream, format="png", dpi=120)
    pyplot.close(figure)
