"""GLiNER2: entities, relations, records and classes by a schema (Zaratiana et al. 2025, arXiv:2507.18546).

The encoder reads "( [P] name ( [E] label [E] label ) ) [SEP_STRUCT] ... [SEP_TEXT] word word ...": a group of marker
tokens for each part of the schema, then the words. The state of [P] gives the number of a part's instances. A recurrent
network unrolls the states of a group's other markers into a query for each instance and label, which is compared with
spans of words. Classes are scored only by the states of their markers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.checkpoint.files import CONFIG_NAME, write_json
from bertcore.kernels.arrays import ArrayLike, NativeArray
from bertcore.models.adapter import Encoded
from bertcore.models.gliner import MLP, PackedWords, Spans, WithEncoder, table_rows
from bertcore.models.inputs import integer_batch
from bertcore.models.outputs import ModelOutput
from bertcore.models.spec import Config, ConfigReader
from bertcore.nn import functional
from bertcore.nn.functional.rows import column_sums
from bertcore.nn.layers import LayerNorm, Linear, drop
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of

MOST_INSTANCES = 20
CLASSES, ONE, SEVERAL = range(3)  # kinds of groups: classes, spans of one instance, spans of several instances
COUNTING = "count_lstm", "count_lstm_v2"
ENCODER_CONFIG = "encoder_config"
NARROW, HEADS, DROPOUT = 128, 4, 0.1  # width, heads and dropout of count_lstm_v2's transformer


@dataclass(eq=False, kw_only=True)
class GLiNER2Output(ModelOutput):
    """The output of a GLiNER2 model.

    Attributes:
        logits: for each text the logits of its groups, in host memory: (labels,) for classes, (instances, labels,
            words, max_width) for spans, zero beyond the last word.
    """

    logits: list[list[np.ndarray]]


@dataclass(eq=False, kw_only=True)
class GLiNER2Logits(ModelOutput):
    """The output of a GLiNER2 model for known numbers of instances. A field is None if no group has such logits.

    Attributes:
        spans: (texts, words, max_width, queries); queries are all labels of a text's groups, instance by instance.
        classes: the logits of all labels of classes, (labels, 1).
        counts: of the number of instances of each group of kind SEVERAL that has some, (groups, MOST_INSTANCES).
    """

    spans: Tensor | None
    classes: Tensor | None
    counts: Tensor | None


class _Counted(Block):
    """Queries of several instances: a gated recurrent network from a label's state, over embeddings of 1, 2, ..."""

    def __init__(self, width: int, kind: str):
        self.width, name = width, "count_embed."
        self.places = Parameter(f"{name}pos_embedding.weight", shape=(MOST_INSTANCES, width))
        sizes: dict[str, Any] = {"shape": (3 * width, width), "use": "weight"}
        self.inputs, self.states = (Parameter(f"{name}gru.weight_{side}_l0", **sizes) for side in ("ih", "hh"))
        self.biases = [
            Parameter(f"{name}gru.bias_{side}_l0", shape=(3 * width,), initial="zeros") for side in ("ih", "hh")
        ]
        self.layers: list[_Layer] = []
        if kind == COUNTING[0]:
            self.last = [MLP(f"{name}projector", (2 * width, 4 * width, width), 0.0, last=2)]
        else:
            name += "transformer."
            self.narrow = Linear(f"{name}in_projector", in_features=width, out_features=NARROW)
            self.layers = [_Layer(f"{name}transformer.layers.{number}.") for number in range(2)]
            names, widths = (0, 2, 4), (NARROW + width, width, width, width)
            self.last = [
                Linear(f"{name}out_projector.{number}", in_features=first, out_features=last, activation=act)
                for number, first, last, act in zip(names, widths, widths[1:], ("relu", "relu", None), strict=False)
            ]

    def __call__(self, run: Pass, labels: Tensor, count: int) -> Tensor:
        """Map the states of labels, (labels, width), to queries, (count * labels, width), instance by instance."""
        weight, state, found, size = self.states.weight(run), labels, [], len(value_of(labels))
        places = functional.slice_rows(run, self.places.value(run), first=0, last=count)
        known = functional.linear(run, places, self.inputs.weight(run), self.biases[0].value(run))
        for step in range(count):
            from_state = functional.linear(run, state, weight, self.biases[1].value(run))
            state = _gated(run, functional.slice_rows(run, known, first=step, last=step + 1), from_state, state)
            found.append(state)
        rows, own = functional.concatenate(run, *found), functional.concatenate(run, *[labels] * count)
        if not self.layers:
            return self.last[0](run, functional.concatenate(run, rows, own, axis=1))
        given = functional.add(run, rows, own)
        rows, cu_seqlens = self.narrow(run, given), run.to_backend(np.arange(count + 1, dtype=np.int32) * size)
        for layer in self.layers:  # the labels of an instance attend to each other
            rows = layer(run, rows, cu_seqlens)
        rows = functional.concatenate(run, rows, given, axis=1)
        for last in self.last:
            rows = last(run, rows)
        return rows


@operation()
def _gated(run: Pass, known: Tensor, from_state: Tensor, state: Tensor) -> Tensor:
    """Return the next states of a gated recurrent unit, from its input, (1, 3 * width), and states, (rows, width)."""
    xp = kernels.array_module(state)
    (reset, keep, new), (old_reset, old_keep, old) = (xp.split(each, 3, -1) for each in (known, from_state))
    reset, keep = (0.5 + xp.tanh(each / 2) / 2 for each in (reset + old_reset, keep + old_keep))
    new = xp.tanh(new + reset * old)

    def pullback(grad):
        of_new = grad * (1 - keep) * (1 - new * new)
        gates = of_new * old * reset * (1 - reset), grad * (state - new) * keep * (1 - keep)
        of_known, of_old = (xp.concatenate([*gates, each], axis=1) for each in (of_new, of_new * reset))
        return column_sums(of_known)[None], of_old, grad * keep

    return (1 - keep) * new + keep * state, pullback


class _Layer(Block):
    """A transformer layer like PyTorch's: attention and two linear maps, each followed by a norm."""

    def __init__(self, name: str):
        self.joined = Parameter(f"{name}self_attn.in_proj_weight", shape=(3 * NARROW, NARROW), use="weight")
        self.bias = Parameter(f"{name}self_attn.in_proj_bias", shape=(3 * NARROW,), initial="zeros")
        self.output = Linear(f"{name}self_attn.out_proj", in_features=NARROW, out_features=NARROW)
        self.inner = Linear(f"{name}linear1", in_features=NARROW, out_features=2 * NARROW, activation="relu")
        self.outer = Linear(f"{name}linear2", in_features=2 * NARROW, out_features=NARROW)
        self.norms = [LayerNorm(f"{name}norm{number}", features=NARROW, eps=1e-5) for number in (1, 2)]

    def __call__(self, run: Pass, rows: Tensor, cu_seqlens: NativeArray) -> Tensor:
        joined = functional.linear(run, rows, self.joined.weight(run), self.bias.value(run))
        mixed = functional.self_attention(run, joined, num_heads=HEADS, cu_seqlens=cu_seqlens, dropout=DROPOUT)
        rows = self.norms[0](run, drop(run, self.output(run, mixed), DROPOUT), rows)
        inner = drop(run, self.inner(run, rows), DROPOUT)
        return self.norms[1](run, drop(run, self.outer(run, inner), DROPOUT), rows)


class GLiNER2Model(WithEncoder[GLiNER2Output | GLiNER2Logits]):
    """A GLiNER2 model.

    Calls take `words_mask`, (texts, length) integers: 1, 2, ... at the token whose state is the first word, the second
    word, ...; and `groups_mask`, which is 3 * number + kind at the markers of a group: first [P], then those before its
    labels. Numbers count from 1; kinds are CLASSES, ONE and SEVERAL. Both masks are 0 elsewhere. Calls return a
    GLiNER2Output. `GLiNER2` (bertcore.tasks.gliner2) makes these arrays from texts. With `instances`, which at the [P]
    of each group of spans is its number of instances and otherwise 0, calls return GLiNER2Logits, which have gradients.

    Attributes:
        max_width: the most words of a span.
        max_len: the most words of a text; None without a limit.
    """

    prefix = "encoder."
    _targets = ("words_mask", "groups_mask", "instances")

    def __init__(self, config: Mapping[str, Any]):
        self.config, read = Config(config), ConfigReader(config)
        read.require(architecture="span", token_pooling="first", model_type="extractor")
        self.set_encoder(config.get(ENCODER_CONFIG))
        self.max_width = read.size("max_width", 8, most=1024)
        self.max_len = None if config.get("max_len") is None else read.size("max_len", 384, most=2**20)
        width = self.spec.hidden_size
        self.spans = Spans("span_rep.span_rep_layer", width, self.max_width, 0.1)
        self.classifier = MLP("classifier", (width, 2 * width, 1), 0.0, last=2)
        self.counts = MLP("count_pred", (width, 2 * width, MOST_INSTANCES), 0.0, last=2)
        self.counted = _Counted(width, read.choice("counting_layer", COUNTING[0], *COUNTING))

    @classmethod
    def _read_config(cls, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Return config.json with encoder_config/config.json inside."""
        config = dict(checkpoint.read_config(folder))
        if os.path.isdir(os.path.join(folder, ENCODER_CONFIG)):
            config[ENCODER_CONFIG] = checkpoint.read_config(os.path.join(folder, ENCODER_CONFIG))
        rows, encoder = table_rows(folder, cls.prefix), config.get(ENCODER_CONFIG)
        if rows and isinstance(encoder, Mapping):
            config[ENCODER_CONFIG] = {**encoder, "vocab_size": rows}
        return config

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the config, also the encoder's into encoder_config, where gliner2 reads it, and the weights."""
        super().save_pretrained(folder)
        inner = os.path.join(folder, ENCODER_CONFIG)
        os.makedirs(inner, exist_ok=True)
        write_json(Path(inner, CONFIG_NAME), dict(self.config[ENCODER_CONFIG]))

    def _output(self, encoded: Encoded, words_mask: ArrayLike | None = None, groups_mask: ArrayLike | None = None,
                instances: ArrayLike | None = None) -> GLiNER2Output | GLiNER2Logits:  # fmt: skip
        run, masks = encoded.run, {}
        for name, given in (("words_mask", words_mask), ("groups_mask", groups_mask), ("instances", instances)):
            if name == "instances" and given is None and run.tape is None:
                continue
            if given is None or np.shape(given) != encoded.packed.shape:
                shape = "None" if given is None else f"of shape {np.shape(given)}"
                raise ValueError(f"{name} is {shape}, expected {encoded.packed.shape} as input_ids has")
            masks[name] = integer_batch(name, given)
        marks = encoded.packed.strip(masks["groups_mask"])
        layout = PackedWords(np.flatnonzero(marks), encoded.packed, masks["words_mask"])
        both = [run.to_backend(rows) for rows in (layout.rows, layout.label_rows)]
        words, states = (functional.take_rows(run, encoded.hidden, rows=rows) for rows in both)
        groups = [_groups(marks[layout.label_rows[labels]], labels.start) for _, labels in layout.texts()]
        every = [group for some in groups for group in some]
        counted = [group for group in every if group.kind != CLASSES]
        if is_known := "instances" in masks:
            known = encoded.packed.strip(masks["instances"])[layout.label_rows]
            for group in counted:
                group.count = int(known[group.first])
                if not 0 <= group.count < MOST_INSTANCES:
                    raise ValueError(f"instances has {group.count}, expected 0 to {MOST_INSTANCES - 1}")
            counted = [group for group in counted if group.kind == SEVERAL and group.count]
        counts = _of_rows(run, self.counts, states, [group.first for group in counted])
        if not is_known and counted:
            for group, best in zip(counted, kernels.to_host(counts).argmax(axis=1).tolist(), strict=True):
                group.count = min(best, 1) if group.kind == ONE else best
        rows = [row for group in every if group.kind == CLASSES for row in group.rows]
        classes = _of_rows(run, self.classifier, states, rows)
        spans = self._spans(run, words, states, groups, layout)
        if is_known:
            return GLiNER2Logits(spans=spans, classes=classes, counts=counts, traced=encoded.traced)
        return GLiNER2Output(logits=self._apart(groups, classes, spans, layout), traced=encoded.traced)

    def _spans(
        self, run: Pass, words: Tensor, states: Tensor, groups: list[list[_Group]], layout: PackedWords
    ) -> Tensor | None:
        """Return the scores of spans for the queries of all groups, as in GLiNER2Logits."""
        queries, offsets = [], [0]
        for some in groups:
            for group in some:
                if group.queries:
                    first, last = group.rows.start, group.rows.stop
                    labels = functional.slice_rows(run, states, first=first, last=last)
                    queries.append(self.counted(run, labels, group.count))
            offsets.append(offsets[-1] + sum(group.queries for group in some))
        layout.set_labels(np.array(offsets))
        return self.spans(run, words, functional.concatenate(run, *queries), layout) if queries else None

    def _apart(
        self, groups: list[list[_Group]], classes: Any, spans: Any, layout: PackedWords
    ) -> list[list[np.ndarray]]:
        """Return the logits of each group, as in GLiNER2Output."""
        classes, spans = (None if each is None else kernels.to_host(each) for each in (classes, spans))
        found, seen = [], 0
        for text, (some, (words, _)) in enumerate(zip(groups, layout.texts(), strict=True)):
            at, length, own = 0, words.stop - words.start, []
            for group in some:
                if group.kind == CLASSES:
                    own.append(classes[seen : (seen := seen + len(group.rows)), 0])
                elif group.queries:
                    part = spans[text, :length, :, at : (at := at + group.queries)].transpose(2, 0, 1)
                    own.append(part.reshape(group.count, len(group.rows), *part.shape[1:]))
                else:
                    own.append(np.zeros((0, len(group.rows), length, self.max_width), np.float32))
            found.append(own)
        return found


def _of_rows(run: Pass, head: MLP, states: Tensor, rows: list[int]) -> Tensor | None:
    """Return the logits of some rows of states, or None without rows."""
    return head(run, functional.take_rows(run, states, rows=run.to_backend(np.array(rows)))) if rows else None


@dataclass
class _Group:
    """A group of markers among those of a batch."""

    kind: int  # CLASSES, ONE or SEVERAL
    first: int  # the row of its [P]
    rows: range  # those of its labels
    count: int = 0  # the number of its instances

    @property
    def queries(self) -> int:
        return self.count * len(self.rows)


def _groups(marks: np.ndarray, start: int) -> list[_Group]:
    found, at = [], start
    for mark, same in groupby(marks.tolist()):
        first, at = at, at + len(list(same))
        found.append(_Group(mark % 3, first, range(first + 1, at)))
    return found
