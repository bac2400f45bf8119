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
from typing import Any

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.kernels.arrays import ArrayLike
from bertcore.models.adapter import Encoded
from bertcore.models.gliner import MLP, PackedWords, Spans, WithEncoder, table_rows
from bertcore.models.inputs import integer_batch
from bertcore.models.outputs import ModelOutput
from bertcore.models.spec import Config, ConfigReader
from bertcore.nn import functional
from bertcore.nn.layers import LayerNorm, Linear
from bertcore.nn.parameter import Block, Parameter
from bertcore.passes import Pass
from bertcore.tape import Tensor

MOST_INSTANCES = 20
CLASSES, ONE, SEVERAL = range(3)  # kinds of groups: classes, spans of one instance, spans of several instances
COUNTING = "count_lstm", "count_lstm_v2"
ENCODER_CONFIG = "encoder_config"
NARROW, HEADS = 128, 4  # width and heads of count_lstm_v2's transformer


@dataclass(eq=False, kw_only=True)
class GLiNER2Output(ModelOutput):
    """The output of a GLiNER2 model.

    Attributes:
        logits: for each text the logits of its groups, in host memory: (labels,) for classes, (instances, labels,
            words, max_width) for spans, zero beyond the last word.
    """

    logits: list[list[np.ndarray]]


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
        xp, weight, state, found = kernels.array_module(labels), self.states.weight(run), labels, []
        places = self.places.value(run)[:count]
        known = functional.linear(run, places, self.inputs.weight(run), self.biases[0].value(run))
        for step in range(count):
            from_state = functional.linear(run, state, weight, self.biases[1].value(run))
            (reset, keep, new), (old_reset, old_keep, old) = (
                xp.split(each, 3, -1) for each in (known[step], from_state)
            )
            reset, keep = (0.5 + xp.tanh(each / 2) / 2 for each in (reset + old_reset, keep + old_keep))
            state = (1 - keep) * xp.tanh(new + reset * old) + keep * state
            found.append(state)
        if not self.layers:
            return xp.stack([self.last[0](run, xp.concatenate([each, labels], axis=1)) for each in found])
        return xp.stack([self._mixed(run, each + labels) for each in found])

    def _mixed(self, run: Pass, given: Tensor) -> Tensor:
        """Let the labels of an instance attend to each other."""
        rows = self.narrow(run, given)
        for layer in self.layers:
            rows = layer(run, rows)
        rows = kernels.array_module(given).concatenate([rows, given], axis=1)
        for last in self.last:
            rows = last(run, rows)
        return rows


class _Layer(Block):
    """A transformer layer like PyTorch's: attention and two linear maps, each followed by a norm."""

    def __init__(self, name: str):
        self.joined = Parameter(f"{name}self_attn.in_proj_weight", shape=(3 * NARROW, NARROW), use="weight")
        self.bias = Parameter(f"{name}self_attn.in_proj_bias", shape=(3 * NARROW,), initial="zeros")
        self.output = Linear(f"{name}self_attn.out_proj", in_features=NARROW, out_features=NARROW)
        self.inner = Linear(f"{name}linear1", in_features=NARROW, out_features=2 * NARROW, activation="relu")
        self.outer = Linear(f"{name}linear2", in_features=2 * NARROW, out_features=NARROW)
        self.norms = [LayerNorm(f"{name}norm{number}", features=NARROW, eps=1e-5) for number in (1, 2)]

    def __call__(self, run: Pass, rows: Tensor) -> Tensor:
        xp = kernels.array_module(rows)
        joined = functional.linear(run, rows, self.joined.weight(run), self.bias.value(run))
        query, key, value = joined.reshape(len(rows), 3, HEADS, -1).transpose(1, 2, 0, 3)
        scores = query @ key.transpose(0, 2, 1) / (NARROW // HEADS) ** 0.5
        shares = xp.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True)) @ value
        mixed = xp.ascontiguousarray(mixed.transpose(1, 0, 2).reshape(len(rows), NARROW))
        rows = self.norms[0](run, self.output(run, mixed), rows)
        return self.norms[1](run, self.outer(run, self.inner(run, rows)), rows)


class GLiNER2Model(WithEncoder):
    """A GLiNER2 model, for inference.

    Calls take `words_mask`, (texts, length) integers: 1, 2, ... at the token whose state is the first word, the second
    word, ...; and `groups_mask`, which is 3 * number + kind at the markers of a group: first [P], then those before its
    labels. Numbers count from 1; kinds are CLASSES, ONE and SEVERAL. Both masks are 0 elsewhere. Calls return a
    GLiNER2Output. `GLiNER2` (bertcore.tasks.gliner2) makes these arrays from texts.

    Attributes:
        max_width: the most words of a span.
        max_len: the most words of a text; None without a limit.
    """

    prefix = "encoder."
    _targets = ("words_mask", "groups_mask")

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

    def _output(self, encoded: Encoded, words_mask: ArrayLike | None = None, groups_mask: Any = None) -> GLiNER2Output:
        run, masks = encoded.run, {}
        if run.tape is not None:
            raise ValueError("a GLiNER2Model is for inference only: it has no gradients")
        for name, given in (("words_mask", words_mask), ("groups_mask", groups_mask)):
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
        found: dict[int, Any] = {}  # by the row of a group's first mark
        queries, offsets = [], [0]
        counts = self._instances(run, states, every)
        for some in groups:
            for kind, first, last in some:
                labels = states[first + 1 : last]
                if kind == CLASSES:
                    found[first] = kernels.to_host(self.classifier(run, labels))[:, 0]
                elif count := counts[first]:
                    queries.append(self.counted(run, labels, count).reshape(-1, labels.shape[1]))
            offsets.append(sum(map(len, queries)))
        layout.set_labels(np.array(offsets))
        if queries:
            xp = kernels.array_module(states)
            scores = kernels.to_host(self.spans(run, words, xp.concatenate(queries), layout))
        for text, (some, (here, _)) in enumerate(zip(groups, layout.texts(), strict=True)):
            at, length = 0, here.stop - here.start
            for kind, first, last in some:
                if kind == CLASSES:
                    continue
                shape = counts[first], last - first - 1
                size = shape[0] * shape[1]
                if size:
                    part = scores[text, :length, :, at : at + size].transpose(2, 0, 1)
                    found[first] = part.reshape(*shape, length, self.max_width)
                else:
                    found[first] = np.zeros((0, shape[1], length, self.max_width), np.float32)
                at += size
        logits = [[found[first] for _, first, _ in some] for some in groups]
        return GLiNER2Output(logits=logits, traced=encoded.traced)

    def _instances(self, run: Pass, states: Tensor, groups: list[tuple[int, int, int]]) -> dict[int, int]:
        """Return the number of instances of each group of spans, by the row of its first mark."""
        spans = [(kind, first) for kind, first, _ in groups if kind != CLASSES]
        if not spans:
            return {}
        rows = run.to_backend(np.array([first for _, first in spans]))
        best = kernels.to_host(self.counts(run, functional.take_rows(run, states, rows=rows))).argmax(axis=1)
        pairs = zip(spans, best.tolist(), strict=True)
        return {first: min(count, 1) if kind == ONE else count for (kind, first), count in pairs}


def _groups(marks: np.ndarray, start: int) -> list[tuple[int, int, int]]:
    """Return (kind, first, last + 1 row) of the groups of a text."""
    found, at = [], start
    for mark, same in groupby(marks.tolist()):
        found.append((mark % 3, at, at := at + len(list(same))))
    return found
