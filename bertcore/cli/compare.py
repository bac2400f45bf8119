"""Compare models side by side: parameters, FLOPs, memory, and what was published of them.

NAMES are presets, folders of models or their ids on the Hugging Face hub, as for `bertcore info`; by default all
presets. MNLI-m (accuracy) and GLUE dev (mean of eight tasks) are what each model's authors report, not measured here;
`bertcore info NAME` tells where they stand.

--training tells what training them takes on this machine, memory and time, before you spend it: some steps of two and
of four of their layers are measured (in seconds to minutes), and a further layer takes as much as these differ by,
each. Memory is the most that the process takes beyond Python with NumPy.

--measure tells what a pass takes on this machine. The models, each in a process of its own, pass in turns; latency is
the median of the rounds, with the fastest and the slowest beside it. Presets have random weights, and so have folders
without any; ids on the hub are fetched. Memory is what is resident beyond Python with NumPy; on disk are the files of
the weights, or what random ones would take in float32."""

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcore.cli.common import CommandError, chosen_backend, model_folder, positive
from bertcore.cli.info import QUOTED, add_length_argument, described, known_preset
from bertcore.cli.machine import cpu_model
from bertcore.cli.outputs import output_stream
from bertcore.cli.tables import aligned
from bertcore.kernels import get_backend, get_num_threads
from bertcore.models.figures import Figures, figures

if TYPE_CHECKING:
    from bertcore.models.cost import Member, PassCost

HELP = "compare models side by side, as a table or a plot"
EXAMPLES = """\
examples:
  bertcore compare
  bertcore compare bert-base-uncased albert-base-v2 my-model/ --length 512
  bertcore compare --csv > family.csv
  bertcore compare mini-bert distilbert-base-uncased --training --batch 32 --length 128
  bertcore compare demo demo-int8/ --measure --batch 8 --length 64
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

_MILLISECONDS = ",.2f"
MEASURED_COLUMNS = {
    "name": Column("model"),
    "weights": Column("weights"),
    "parameters": Column("parameters, M", ",.1f", 1e-6),
    "latency": Column("latency, ms", _MILLISECONDS, 1e3),
    "fastest": Column("fastest", _MILLISECONDS, 1e3),
    "slowest": Column("slowest", _MILLISECONDS, 1e3),
    "tokens_per_second": Column("tokens/s", _RATE),
    "resident": Column("resident, MB", _MEGABYTES),
    "on_disk": Column("on disk, MB", ",.1f"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("names", metavar="NAMES", nargs="*", help="presets, folders or ids (default: all presets)")
    add_length_argument(parser)
    measurement = parser.add_mutually_exclusive_group()
    measurement.add_argument("--training", action="store_true", help="what training them takes here; see above")
    measurement.add_argument("--measure", action="store_true", help="what a pass takes here; see above")
    parser.add_argument(
        "--batch", type=positive, metavar="N",
        help="sequences of a step (--training, default: 32) or of a pass (--measure, default: 1)",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print comma-separated values, in units of one")
    form.add_argument("--json", action="store_true", help="print one JSON array")
    parser.add_argument("--plot", metavar="FILE.png", help="plot parameters, FLOPs and MNLI-m (needs matplotlib)")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    from bertcore.presets import PRESETS

    if args.training or args.measure:
        _check_measurement(args)
        (_compare_training if args.training else _compare_passes)(args)
        return
    if args.batch:
        raise CommandError("--batch is for --training and --measure")
    if args.plot:
        _check_plot(args.plot)
    rows = [row(name, *described(name), length=args.length) for name in args.names or PRESETS]
    note = f"FLOPs in a sequence of {args.length} tokens, or the model's longest; `bertcore info --help` tells how"
    _print(rows, COLUMNS, args, note)
    if args.plot:
        plot(rows, args.plot)


def _check_measurement(args: argparse.Namespace) -> None:
    option = "--training" if args.training else "--measure"
    if not args.names:
        raise CommandError(f"{option} needs NAMES: each takes its time")
    if args.plot:
        raise CommandError(f"--plot does not go with {option}")


def _compare_training(args: argparse.Namespace) -> None:
    from bertcore.checkpoint import naming_config
    from bertcore.training.cost import training_cost

    batch, rows = args.batch or 32, []
    for name in args.names:
        config, _ = described(name)
        with naming_config(name):
            cost = training_cost(config, batch, args.length)
        again = {f"checkpointed_{key}": value for key, value in vars(cost.checkpointed).items()}
        known = {"name": name, **vars(cost), **vars(cost.kept), **again}
        rows.append({key: known[key] for key in TRAINING_COLUMNS})
    steps = f"steps of {_counted(batch, 'sequence')} of {_counted(args.length, 'token')}"
    note = f"{steps}, on {_counted(get_num_threads(), 'thread')}"
    _print(rows, TRAINING_COLUMNS, args, note)


def _compare_passes(args: argparse.Namespace) -> None:
    from bertcore.models.cost import ROUNDS, pass_costs

    batch, members = args.batch or 1, [_member(name) for name in args.names]
    with chosen_backend(args):
        costs, machine = pass_costs(members, batch, args.length, backend=get_backend()), _machine()
    rows = [_measured(member, cost, batch * args.length) | machine for member, cost in zip(members, costs, strict=True)]
    passes = f"passes of {_counted(batch, 'sequence')} of {_counted(args.length, 'token')}, {ROUNDS} rounds in turns"
    note = f"{passes}\n{machine['cpu']}, {_counted(machine['threads'], 'thread')}, {machine['backend']}"
    _print(rows, MEASURED_COLUMNS, args, f"{note} for {machine['level']}" if machine["level"] else note)


def _member(name: str) -> "Member":
    """What is measured of a name: its checkpoint, or random weights where only a config is known."""
    from bertcore.checkpoint import read_config
    from bertcore.checkpoint.weights import WEIGHTS_NAMES
    from bertcore.models.cost import Member
    from bertcore.tasks.sentence_encoder.settings import read_settings

    known = known_preset(name)
    if known is not None:
        return Member(name, known.config)
    folder = read_settings(model_folder(name)).model_folder
    has_weights = any((folder / file).is_file() for file in WEIGHTS_NAMES)
    return Member(name, read_config(folder), folder if has_weights else None)


def _measured(member: "Member", cost: "PassCost", tokens: int) -> dict[str, Any]:
    """The values of MEASURED_COLUMNS for a model that passes so many tokens."""
    return {
        "name": member.name,
        "weights": "random" if member.folder is None else "loaded",
        "parameters": figures(member.config).parameters,
        "latency": cost.latency,
        "fastest": min(cost.seconds),
        "slowest": max(cost.seconds),
        "tokens_per_second": tokens / cost.latency,
        "resident": cost.resident,
        "on_disk": cost.on_disk,
    }


def _machine() -> dict[str, Any]:
    """What computes here; the level of instructions where kernels are compiled for one."""
    level = ""
    if get_backend() == "numba":
        from bertcore.kernels._numba import LEVEL

        level = LEVEL.name
    return {"cpu": cpu_model(), "threads": get_num_threads(), "backend": get_backend(), "level": level}


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _print(rows: Sequence[Mapping[str, Any]], columns: Columns, args: argparse.Namespace, note: str) -> None:
    """The models as --csv, --json, or a table with a note below it."""
    if args.csv:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    elif args.json:
        print(json.dumps(rows, ensure_ascii=False))
    else:
        print(table(rows, columns))
        print(f"\n{note}")


def row(name: str, config: Mapping[str, Any], facts: Mapping[str, Any], *, length: int) -> dict[str, Any]:
    """The values of COLUMNS for one model; None for what is not known of it."""
    from bertcore.checkpoint import naming_config

    with naming_config(name):
        found: Figures = figures(config, length)
    sizes = {f"megabytes_{dtype}": size for dtype, size in found.megabytes.items()}
    known = {"name": name, **vars(found), **sizes, **facts}
    return {key: known.get(key) for key in COLUMNS}


def table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    """The models under each other."""
    cells = [[column.text(each[key]) for key, column in columns.items()] for each in rows]
    titles = [column.title for column in columns.values()]
    return aligned(cells, titles, right=[bool(column.form) for column in columns.values()])


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
