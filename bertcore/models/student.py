"""Students initialised with layers of their teacher (Sanh et al. 2019, arXiv:1910.01108, section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertcore.models.architectures import TASKS
from bertcore.models.auto import AutoModel
from bertcore.models.model import Model
from bertcore.models.registry import family_of
from bertcore.models.spec import Config
from bertcore.nn.layers import Linear
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.presets import preset_config

# Attributes that must be equal for a layer to be initialised with another one's parameters.
SAME = (
    *("hidden_size", "intermediate_size", "num_heads", "num_key_value_heads", "head_dim", "activation", "gate"),
    *("norm", "norm_first", "rotary", "is_causal", "scale"),
)
LABELS = ("id2label", "label2id", "num_labels", "problem_type")
LAYER_COUNTS = ("num_hidden_layers", "n_layers", "n_layer")  # configs' keys for the number of layers


def student_from_teacher(
    config: Mapping[str, Any] | str,
    teacher: Model[Any],
    layers: Sequence[int] | None = None,
    *,
    seed: int = 0,
    **options: Any,
) -> Model[Any]:
    """Return a model of the teacher's class, with fewer layers or of another family, initialised from the teacher.

    Copies everything that both have: layers, embeddings, the pooler, heads. Parts that only the student has are newly
    initialised and listed in its `newly_initialised` (DistilBERT's pre_classifier); parts that only the teacher has are
    dropped (token types and the pooler, in DistilBERT).

    Args:
        config: the student's, as published, or the name of a preset; `with_layers` makes one from the teacher's. The
            class labels are the teacher's.
        layers: for each layer of the student the index of the teacher's layer to copy; by default spaced evenly from
            the first to the last (of 12 for 6: 0, 2, 4, 7, 9, 11).
        seed: the seed for new parameters.
        options: the options of the class (add_pooling_layer).

    Raises:
        TypeError: if the teacher is not a model.
        ValueError: for an index in `layers` that does not exist, or if a size, kind or parameter of the student differs
            from the teacher's.
    """
    if not isinstance(teacher, Model):
        raise TypeError(f"teacher is {type(teacher).__name__}, expected a model")
    config = preset_config(config) if isinstance(config, str) else config
    kind = next((each for each in type(teacher).__mro__ if each in (AutoModel, *TASKS)), type(teacher))
    dtype = "float64" if teacher.dtype == "float64" else "float32"
    student = kind.from_config(with_labels_of(teacher, config), dtype=dtype, seed=seed, **options)
    chosen = _chosen(layers, student.spec, teacher.spec)
    copied = dict(_pairs_of_layers(student, teacher, chosen))
    missing = [each for layer in student.encoder.layers for each in layer.parameters() if each not in copied]
    if missing:
        raise ValueError(f"the teacher's layers have no counterpart of {missing[0].names[0]}")
    copied |= dict(_pairs_around(student, teacher))
    for own, other in copied.items():
        own.update(_values(own, other, student, teacher))
    student.newly_initialised = [name for each in student.parameters() if each not in copied for name in each.names]
    return student


def with_labels_of(teacher: Model, config: Mapping[str, Any]) -> Config:
    others = {key: value for key, value in config.items() if key not in LABELS}
    return Config(others | {key: teacher.config[key] for key in LABELS if key in teacher.config})


def with_layers(config: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return the config with this many layers. Raises ValueError if it has no key for their number."""
    family = family_of(config)
    for key in LAYER_COUNTS:
        changed = {**config, key: count}
        if family.spec_from_config(changed).num_layers == count:
            return changed
    raise ValueError(f"config: {family.model_type} has another key than {', '.join(LAYER_COUNTS)} for its layers")


def _chosen(layers: Sequence[int] | None, own: EncoderSpec, other: EncoderSpec) -> list[int]:
    if layers is None:
        return np.linspace(0, other.num_layers - 1, own.num_layers).round().astype(int).tolist()
    if not isinstance(layers, Sequence | np.ndarray):
        raise TypeError(f"layers is {layers!r}, expected a list of the teacher's layers")
    wrong = [layer for layer in layers if layer not in range(other.num_layers)]
    if wrong:
        raise ValueError(f"layers has {wrong[0]!r}, the teacher's are 0 to {other.num_layers - 1}")
    if len(layers) != own.num_layers:
        raise ValueError(f"layers has {len(layers)} entries, expected one for each of the student's {own.num_layers}")
    return list(layers)


def _pairs_of_layers(student: Model, teacher: Model, chosen: list[int]) -> Iterator[tuple[Parameter, Parameter]]:
    known: dict[int, int] = {}  # shared layers are one block
    for index, place in enumerate(chosen):
        _check_layer(student, teacher, index, place)
        own, other = student.encoder.layers[index], teacher.encoder.layers[place]
        if known.setdefault(id(own), id(other)) != id(other):
            raise ValueError(f"layers has {place} for layer {index}, expected one for all that share its parameters")
        yield from _pairs(own, other)


def _check_layer(student: Model, teacher: Model, index: int, place: int) -> None:
    own, other = student.encoder.layers[index], teacher.encoder.layers[place]
    if type(own) is not type(other) or type(own.attention) is not type(other.attention):
        kinds = student.family.model_type, teacher.family.model_type
        raise ValueError(f"the student's layers ({kinds[0]}) are of a different kind from the teacher's ({kinds[1]})")
    for name in SAME:
        mine, theirs = getattr(student.spec.layers[index], name), getattr(teacher.spec.layers[place], name)
        if mine != theirs:
            where = f"in the student's layer {index}", f"in the teacher's layer {place}"
            raise ValueError(f"{name} is {mine} {where[0]} but {theirs} {where[1]}")


def _pairs_around(student: Model, teacher: Model) -> Iterator[tuple[Parameter, Parameter]]:
    """Yield pairs of the parameters around the layers: embeddings, pooler and heads."""
    for name in ("embeddings", "adapter", "final_norm", "pooler"):
        own, other = getattr(student.encoder, name), getattr(teacher.encoder, name)
        if own is not None and other is not None:
            yield from _pairs(own, other)
    heads = dict(zip(getattr(teacher, "tasks", ()), getattr(teacher, "heads", ()), strict=True))
    for task, own in zip(getattr(student, "tasks", ()), getattr(student, "heads", ()), strict=True):
        if task in heads:
            yield from _pairs(own, heads[task])


def _pairs(own: object, other: object) -> Iterator[tuple[Parameter, Parameter]]:
    """Yield (student's, teacher's) parameters of two blocks, matched by their attributes' names."""
    if isinstance(own, Parameter) and isinstance(other, Parameter):
        yield own, other
    elif isinstance(own, list) and isinstance(other, list) and len(own) == len(other):
        for mine, theirs in zip(own, other, strict=True):
            yield from _pairs(mine, theirs)
    elif isinstance(own, Block) and isinstance(other, Block):
        if isinstance(own, Linear) and isinstance(other, Linear) and own.activation != other.activation:
            return  # the teacher's map was trained for another task
        for name, part in vars(own).items():
            yield from _pairs(part, vars(other).get(name))


def _values(own: Parameter, other: Parameter, student: Model, teacher: Model) -> np.ndarray:
    """Return a student parameter's initial values. Raises ValueError if the teacher's has another shape."""
    values, positions = np.array(other.array()), getattr(student.encoder.embeddings, "positions", None)
    if positions is not None and own is positions.table:  # RoBERTa's first token has another position than BERT's
        first, its = student.spec.position_offset, teacher.spec.position_offset
        values = values if first == its else np.concatenate([own.array()[:first], values[its:]])
    if values.shape != own.shape:
        raise ValueError(f"{own.names[0]} has shape {own.shape}, expected {values.shape} as the teacher's has")
    return values
