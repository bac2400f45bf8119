"""The command info: the sizes of a model, and the list of presets."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcore.arguments import printable
from bertcore.cli.inputs import model_folder
from bertcore.cli.options import Command, File, Positive
from bertcore.cli.outputs import aligned
from bertcore.presets import PRESETS, Preset, preset

if TYPE_CHECKING:
    from bertcore.models.cost import Figures

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

    Attributes:
        name: a preset, config file, model's folder or id (default: list the presets).
        length: tokens of a sequence, for FLOPs.
        json: print one JSON object.
    """

    positions = ("name",)

    name: File | None = None
    length: Positive = LENGTH
    json: bool = False

    def run(self) -> None:
        if self.name is None:
            titles = {"name": "preset", "year": "year", "family": "family", "objective": "objective", "own": "its own"}
            rows = [[str(each[key]) for key in titles] for each in _presets()]
            print(json.dumps({"presets": _presets()}) if self.json else aligned(rows, [*titles.values()]))
            return
        from bertcore.checkpoint import naming_config
        from bertcore.models.cost import figures

        config, facts = described(self.name)
        with naming_config(self.name):
            found, own = figures(config, self.length), {} if facts else _of_checkpoint(self.name, config)
        if self.json:
            print(json.dumps({"name": self.name, **asdict(found), **facts, **own}, ensure_ascii=False))
            return
        rows = _rows(found, facts) | ({"its head": _head(own)} if own else {})
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


def _head(own: Mapping[str, Any]) -> str:
    shown = [*own["labels"][:LABELS], *(["..."] if len(own["labels"]) > LABELS else [])]
    return (own["head"] or "none") + (f", of the labels {', '.join(shown)}" if shown else "")


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


def _presets() -> list[dict[str, Any]]:
    keys, presets = ("name", "hub_id", "year", "objective", "own"), PRESETS.values()
    return [{key: getattr(each, key) for key in keys} | {"family": each.config["model_type"]} for each in presets]
