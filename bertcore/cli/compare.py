"""The command compare: models side by side."""

import csv
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcore.cli.info import LENGTH, QUOTED, described, known_preset
from bertcore.cli.inputs import model_folder
from bertcore.cli.options import Command, File, Positive
from bertcore.cli.outputs import aligned, check_matplotlib, check_picture, write_picture
from bertcore.presets import PRESETS

if TYPE_CHECKING:
    from bertcore.models.cost import Member, PassCost


class Column(NamedTuple):
    """A column: its title, the format of its values, a factor for the unit of the title, and the text for None."""

    title: str
    form: str = ""
    factor: float = 1
    for_none: str = ""

    def text(self, value: Any) -> str:
        return self.for_none if value is None else format(value * self.factor if self.form else value, self.form)


Columns = Mapping[str, Column]
COLUMNS = {
    "name": Column("model"),
    "year": Column("year"),
    "layers": Column("layers", "d"),
    "hidden_size": Column("hidden", "d"),
    "intermediate_size": Column("feed-forward", "d"),
    "heads": Column("heads", "d"),
    "vocabulary": Column("vocabulary", ",d"),
    "position_encoding": Column("positions"),
    "positions": Column("tokens at most", ",d", for_none="no limit"),
    "parameters": Column("parameters, M", ",.1f", 1e-6),
    "embeddings": Column("of them embeddings", ",.1f", 1e-6),
    "flops_per_token": Column("MFLOPs/token", ",.1f", 1e-6),
    "megabytes_float32": Column("MB", ",.1f"),
    "megabytes_int8": Column("MB int8", ",.1f"),
    **{key: Column(title, ".1f") for key, title in QUOTED.items()},
    "objective": Column("objective"),
    "own": Column("key innovation"),
    "category": Column("category"),
    "use": Column("used for"),
    "languages": Column("languages"),
}

_MEGABYTES, _RATE = ",.0f", ",.0f"
TRAINING_COLUMNS = {
    "name": Column("model"),
    "weights": Column("weights, MB", _MEGABYTES),
    "gradients": Column("gradients", _MEGABYTES),
    "moments": Column("AdamW", _MEGABYTES),
    "activations": Column("activations", _MEGABYTES),
    "peak": Column("peak", _MEGABYTES),
    "tokens_per_second": Column("tokens/s", _RATE),
    "checkpointed_activations": Column("checkpointed activations", _MEGABYTES),
    "checkpointed_peak": Column("checkpointed peak", _MEGABYTES),
    "checkpointed_tokens_per_second": Column("checkpointed tokens/s", _RATE),
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


class Compare(Command):
    """Compare models side by side: parameters, FLOPs, memory, and their published figures.

    NAMES are presets, folders of models or their ids on the Hugging Face hub, as for `bertcore info`; by default all
    presets. MNLI-m (accuracy) and GLUE dev (mean of eight tasks) are reported by each model's authors, not measured
    here; --json, --csv and `bertcore info NAME` name the source.

    --training estimates the memory and time of training on this machine: some steps of two and of four layers are
    measured (in seconds to minutes), and their difference is the cost of each further layer. Memory is the peak of the
    process beyond Python with NumPy.

    --measure measures a pass on this machine. The models, each in its own process, run in turns; latency is the median
    of the rounds, with the fastest and the slowest beside it. Presets, and folders without weights, have random
    weights; ids on the hub are fetched. Memory is what is resident beyond Python with NumPy; on disk are the files of
    the weights, or the size of random ones in float32.

    Examples:
        bertcore compare bert-base-uncased albert-base-v2 my-model/ --length 512
        bertcore compare mini-bert distilbert-base-uncased --training --batch 32 --length 128
        bertcore compare demo demo-int8/ --measure --batch 8 --length 64
        bertcore compare --plot family.png

    Attributes:
        names: presets, folders or ids (default: all presets).
        length: tokens of a sequence.
        training: estimate the cost of training here; see above.
        measure: measure passes here; see above.
        batch: sequences of a step (--training, default: 32) or of a pass (--measure, default: 1).
        csv: print comma-separated values, in units of one.
        json: print one JSON array.
        plot: draw parameters, FLOPs and MNLI-m, or what --training or --measure measures, to a file named *.png or
            *.svg (needs matplotlib).
        log: draw dots on logarithmic axes instead of bars (--plot).
    """

    positions = ("names",)
    apart = ("training measure", "csv json")
    needs = ("batch training measure", "training names", "measure names", "log plot")

    names: tuple[File, ...] = ()
    length: Positive = LENGTH
    training: bool = False
    measure: bool = False
    batch: Positive | None = None
    csv: bool = False
    json: bool = False
    plot: File | None = None
    log: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plot:
            check_picture("--plot", self.plot)

    def run(self) -> None:
        if self.plot:
            check_matplotlib("--plot")
        if self.training or self.measure:
            (self._compare_training if self.training else self._compare_passes)()
            return
        rows = [row(name, *described(name), length=self.length) for name in self.names or PRESETS]
        note = f"FLOPs in a sequence of {self.length} tokens, or the model's longest; see `bertcore info --help`"
        self._print(rows, COLUMNS, note)

    @property
    def _what(self) -> str:
        return f"{_counted(self.batch or (32 if self.training else 1), 'sequence')} of {_counted(self.length, 'token')}"

    def _compare_training(self) -> None:
        from bertcore.checkpoint import naming_config
        from bertcore.kernels import get_num_threads
        from bertcore.training.cost import training_cost

        rows = []
        for name in self.names:
            config, _ = described(name)
            with naming_config(name):
                cost = training_cost(config, self.batch or 32, self.length)
            again = {f"checkpointed_{key}": value for key, value in vars(cost.checkpointed).items()}
            known = {"name": name, **vars(cost), **vars(cost.kept), **again}
            rows.append({key: known[key] for key in TRAINING_COLUMNS})
        self._print(rows, TRAINING_COLUMNS, f"steps of {self._what}, on {_counted(get_num_threads(), 'thread')}")

    def _compare_passes(self) -> None:
        from bertcore.cli.doctor import cpu_model
        from bertcore.kernels import get_backend, get_num_threads
        from bertcore.models.cost import ROUNDS, pass_costs

        batch, members = self.batch or 1, [_member(name) for name in self.names]
        with self.chosen_backend():
            costs, backend = pass_costs(members, batch, self.length, backend=get_backend()), get_backend()
            machine = {"cpu": cpu_model(), "threads": get_num_threads(), "backend": backend, "level": ""}
        if backend == "numba":
            machine["level"] = importlib.import_module("bertcore.kernels._numba").LEVEL.name
        pairs, tokens = zip(members, costs, strict=True), batch * self.length
        rows = [_measured(member, cost, tokens) | machine for member, cost in pairs]
        note = f"passes of {self._what}, {ROUNDS} rounds in turns\n"
        note += f"{machine['cpu']}, {_counted(machine['threads'], 'thread')}, {machine['backend']}"
        self._print(rows, MEASURED_COLUMNS, f"{note} for {machine['level']}" if machine["level"] else note)

    def _print(self, rows: Sequence[Mapping[str, Any]], columns: Columns, note: str) -> None:
        if self.csv:
            writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        elif self.json:
            print(json.dumps(rows, ensure_ascii=False))
        else:
            print(f"{table(rows, columns)}\n\n{note}")
        if self.plot:
            from bertcore.plots.models import MEASURED, SIZES, TRAINED, models_side_by_side

            panels = TRAINED if self.training else MEASURED if self.measure else SIZES
            write_picture(self.plot, models_side_by_side(rows, panels, log=self.log))


def _member(name: str) -> "Member":
    """Return the model to measure: a checkpoint, or random weights if only a config is known."""
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
    from bertcore.models.cost import figures

    weights = "random" if member.folder is None else "loaded"
    found = {"name": member.name, "weights": weights, "parameters": figures(member.config).parameters}
    found |= {"latency": cost.latency, "fastest": min(cost.seconds), "slowest": max(cost.seconds)}
    return found | {"tokens_per_second": tokens / cost.latency, "resident": cost.resident, "on_disk": cost.on_disk}


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def row(name: str, config: Mapping[str, Any], facts: Mapping[str, Any], *, length: int) -> dict[str, Any]:
    """Return the values of COLUMNS for one model, and the sources of quoted ones; None for unknown values."""
    from bertcore.checkpoint import naming_config
    from bertcore.models.cost import figures

    with naming_config(name):
        found = figures(config, length)
    sizes = {f"megabytes_{dtype}": size for dtype, size in found.megabytes.items()}
    known = {"name": name, **vars(found), **sizes, **facts}
    sources = {f"{key}_source": facts.get("sources", {}).get(key) for key in QUOTED}
    return {key: known.get(key) for key in COLUMNS} | sources


def table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> str:
    cells = [[column.text(each[key]) for key, column in columns.items()] for each in rows]
    shown = columns.values()
    return aligned(cells, [column.title for column in shown], right=[bool(column.form) for column in shown])
