"""The commands info and compare: the sizes of a model, the list of presets, and models side by side."""

import csv
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcore.arguments import printable
from bertcore.cli.inputs import aligned, check_matplotlib, check_picture, model_folder, write_picture
from bertcore.cli.options import Command, File, Positive, opt
from bertcore.presets import PRESETS, Preset, preset

if TYPE_CHECKING:
    from bertcore.models.cost import Figures, Member, PassCost

LENGTH = 128  # tokens of a sequence, by default
QUOTED = {"mnli_m": "MNLI-m", "glue_dev": "GLUE dev"}  # published figures, and their titles
LABELS = 8  # that are printed


class Info(Command):
    """Print the sizes of a model: parameters, FLOPs, memory, and its published facts.

    NAME is a preset, a config file (.json), the folder of a model, a .gguf file, or an id on the Hugging Face hub, from
    which only the config is read. Without NAME the presets are listed; `AutoModel.from_config(NAME)` creates a new
    model from a preset.

    FLOPs are those of the products in the encoder, for each token of a sequence of --length: twice the weights that the
    token passes, and for each layer 4 x the tokens it sees x the width of attention (6 x in XLNet, 8 x in DeBERTa,
    whose scores have terms of position).

    Examples:
        bertcore info
        bertcore info deberta-v3-base
        bertcore info my-model/ --length 512 --json
    """

    positions = ("name",)

    name: File | None = opt("a preset, config file, model's folder or id (default: list the presets)")
    length: Positive = opt("tokens of a sequence, for FLOPs", LENGTH)
    json: bool = opt("print one JSON object", False)

    def run(self) -> None:
        if self.name is None:
            titles = {"name": "preset", "year": "year", "family": "family", "objective": "objective", "own": "its own"}
            keys, known = ("name", "hub_id", "year", "objective", "own"), PRESETS.values()
            found = [{key: getattr(it, key) for key in keys} | {"family": it.config["model_type"]} for it in known]
            rows = [[str(each[key]) for key in titles] for each in found]
            print(json.dumps({"presets": found}) if self.json else aligned(rows, [*titles.values()]))
            return
        from bertcore.checkpoint import naming_config
        from bertcore.models.cost import figures

        config, facts = described(self.name)
        with naming_config(self.name):
            found, own = figures(config, self.length), {} if facts else _of_checkpoint(self.name, config)
        if self.json:
            print(json.dumps({"name": self.name, **asdict(found), **facts, **own}, ensure_ascii=False))
            return
        rows = _rows(found, facts)
        if own:
            shown = [*own["labels"][:LABELS], *(["..."] if len(own["labels"]) > LABELS else [])]
            rows["its head"] = (own["head"] or "none") + (f", of the labels {', '.join(shown)}" if shown else "")
        rows |= {"stored as": own["stored_as"]} if own.get("stored_as") else {}
        print("\n".join([self.name, *(f"  {label:<12}{printable(text)}" for label, text in rows.items())]))


def described(name: str) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the config of a preset, file, folder or id on the hub, and the published facts of a preset."""
    from bertcore.checkpoint import read_config
    from bertcore.checkpoint.files import read_json_object
    from bertcore.tasks.loading import read_encoder_settings

    known = known_preset(name)
    if known is not None:
        return known.config, _facts(known)
    if _is_config(name):
        return read_json_object(Path(name)), {}
    return read_config(read_encoder_settings(model_folder(name, "tokenizer")).model_folder), {}


def _of_checkpoint(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return further properties of a checkpoint: its head (None without one), its labels, its low precision."""
    from bertcore.checkpoint import split_dtype
    from bertcore.models.architectures import class_for
    from bertcore.models.spec import ConfigReader

    config, stored_as = split_dtype(name, config)
    try:
        head = class_for(config).__name__
    except ValueError:
        head = ", ".join(map(str, config["architectures"]))
    has_labels = head.endswith(("SequenceClassification", "TokenClassification"))
    labels = ConfigReader(config).label_names() if has_labels else []
    return {"head": None if head == "AutoModel" else head, "labels": list(labels), "stored_as": stored_as}


def known_preset(name: str) -> Preset | None:
    """Return the preset of that name; None for a file, a folder or an id on the hub, ValueError for any other name."""
    if name == "demo" or Path(name).is_dir() or name.endswith(".gguf") or _is_config(name):
        return None
    try:
        return preset(name)
    except ValueError as error:
        if "/" in name:  # as in most ids on the hub, and few names of presets
            return None
        raise ValueError(f"{name} is not a folder here, and {error}") from None


def _is_config(name: str) -> bool:
    return name.endswith(".json") and Path(name).is_file()


def _facts(known: Preset) -> dict[str, Any]:
    """Return the published facts of a preset: figures (None for unknown ones) and their sources."""
    facts = {key: value for key, value in vars(known).items() if key not in ("name", "config")}
    quoted = {key: getattr(known.on_glue, key) for key in QUOTED}
    sources = {key: figure.source for key, figure in quoted.items() if figure}
    return facts | {key: figure and figure.value for key, figure in quoted.items()} | {"sources": sources}


def _rows(found: "Figures", facts: Mapping[str, Any]) -> dict[str, str]:
    widths = f"hidden {found.hidden_size:,}, feed-forward {found.intermediate_size:,}"
    most = "no limit" if found.positions is None else f"at most {found.positions:,} tokens"
    types = f", {found.token_types} token types" if found.token_types > 1 else ""
    kind = f" ({facts['tokenizer']})" if facts else ""
    rows = {
        "family": found.family,
        "layers": str(found.layers),
        "widths": f"{widths}, embeddings {found.embedding_size:,}",
        "heads": f"{found.heads} of {found.attention_size // found.heads}",
        "vocabulary": f"{found.vocabulary:,}{kind}{types}",
        "positions": f"{found.position_encoding}, {most}",
        "parameters": f"{found.parameters:,}, of them {found.embeddings:,} in embeddings",
        **_savings(found),
        "FLOPs": f"{found.flops_per_token / 1e6:,.1f} million per token at {found.length} tokens, "
        f"{2 * found.weights_passed / 1e6:,.1f} of them in linear maps",
        "memory": ", ".join(f"{dtype} {size:,.1f} MB" for dtype, size in found.megabytes.items()),
        "classes": ", ".join(found.classes),
    }
    if facts:
        rows |= {
            "objective": facts["objective"],
            "paper": f"{facts['paper']} ({facts['year']})",
            "its own": facts["own"],
            "used for": f"{facts['use']} ({facts['category']}; languages: {facts['languages']})",
        }
        rows |= {"on the hub": facts["hub_id"]} if facts["hub_id"] else {}
        for key, label in QUOTED.items():
            if facts[key] is not None:
                rows[label] = f"{facts[key]} (quoted, not measured here: {facts['sources'][key]})"
    return rows


def _savings(found: "Figures") -> dict[str, str]:
    layers = found.unshared_layer_parameters / found.layer_parameters
    savings = []
    if layers > 1:
        savings.append(f"layers 1/{layers:.4g} of {found.unshared_layer_parameters:,}, if none were shared")
    if found.embedding_size < found.hidden_size:
        tables = found.wide_embeddings / found.embeddings
        savings.append(f"embeddings 1/{tables:.4g} of {found.wide_embeddings:,}, if as wide as the layers")
    return {"savings": "; ".join(savings)} if savings else {}


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
    """

    positions = ("names",)
    apart = ("training measure", "csv json")
    needs = ("batch training measure", "training names", "measure names", "log plot")

    names: tuple[File, ...] = opt("presets, folders or ids (default: all presets)", ())
    length: Positive = opt("tokens of a sequence", LENGTH)
    training: bool = opt("estimate the cost of training here; see above", False)
    measure: bool = opt("measure passes here; see above", False)
    batch: Positive | None = opt("sequences of a step (--training, default: 32) or of a pass (--measure, default: 1)")
    csv: bool = opt("print comma-separated values, in units of one", False)
    json: bool = opt("print one JSON array", False)
    plot: File | None = opt(
        "draw parameters, FLOPs and MNLI-m, or what --training or --measure measures, to a file named *.png or "
        "*.svg (needs matplotlib)"
    )
    log: bool = opt("draw dots on logarithmic axes instead of bars (--plot)", False)

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
    from bertcore.tasks.sentence_encoder.modules import read_settings

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
