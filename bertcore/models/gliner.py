"""GLiNER: entities of any labels, which the model reads along with the text (Zaratiana et al. 2023, arXiv:2311.08526).

The encoder reads "[ENT] label [ENT] label ... [SEP] word word ...". A label is represented by the state of its [ENT], a
word by the state of its first token after an LSTM over the text's words. The span kind compares spans of up to
`max_width` words with the labels; the token kind scores each word as the start, the end and the inside of an entity.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.checkpoint.config import naming_config
from bertcore.kernels.arrays import ArrayLike, NativeArray
from bertcore.models.adapter import Encoded
from bertcore.models.encoder import Encoder
from bertcore.models.inputs import integer_batch
from bertcore.models.model import Model
from bertcore.models.outputs import ModelOutput, OutputT
from bertcore.models.registry import family_of
from bertcore.models.spec import Config, ConfigReader
from bertcore.nn import functional
from bertcore.nn.layers import Linear, drop
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.passes import Pass
from bertcore.presets import preset_config
from bertcore.tape import Tensor, value_of

CONFIG_NAME = "gliner_config.json"
ENCODER = "token_rep_layer.bert_layer.model."
TABLES = (".word_embeddings.weight", ".tok_embeddings.weight", ".embed_tokens.weight")  # ends of their names
SPANS = "span_rep_layer.span_rep_layer"
KINDS = {"gliner_uni_encoder_span": "span", "gliner_uni_encoder_token": "token"}
MOST_SPANS = 4096  # the most spans whose hidden states exist at the same time
TOKEN_MODES = ("token_level", "token-level")
ABSENT = (
    "labels_encoder", "labels_decoder", "relations_layer", "span_encoder_config", "fuse_layers", "post_fusion_schema",
    "represent_spans", "precomputed_prompts_mode",
)  # fmt: skip


@dataclass(frozen=True)
class GLiNERSpec:
    """The settings of a gliner_config.json other than the encoder's."""

    kind: str  # "span" or "token"
    hidden_size: int  # the width of words and labels
    max_width: int  # the most words of a span
    max_len: int  # the most words of a text
    rnn_layers: int  # the number of stacked LSTMs over the words
    dropout: float  # the rate in the layers above the encoder
    class_token: int  # the id of the token before each label; -1 to take it from the tokenizer
    reads_label: bool  # whether a label is represented by the state of the token after the class token
    pools_last: bool  # whether a word is represented by the state of its last token
    # the tokens before each label and after the last one
    ent_token: str
    sep_token: str
    max_types: int  # the most labels of a text in training
    max_negatives: int  # the most negative labels for each entity of a text


def read_spec(config: Mapping[str, Any]) -> GLiNERSpec:
    """Return the spec of a gliner_config.json. Raises ValueError for an unsupported kind of model."""
    read = ConfigReader(config)
    mode = read.choice("span_mode", "markerV0", "markerV0", *TOKEN_MODES)
    kind = KINDS[read.choice("model_type", list(KINDS)[mode in TOKEN_MODES], *KINDS)]
    for key in ABSENT:
        if config.get(key) not in (None, False, ""):
            raise ValueError(f"config: {key} is {config[key]!r:.60}, expected none: it is not supported")
    read.require(words_splitter_type="whitespace")
    tokens = [config.get(key, default) for key, default in (("ent_token", "<<ENT>>"), ("sep_token", "<<SEP>>"))]
    for key, token in zip(("ent_token", "sep_token"), tokens, strict=True):
        if not isinstance(token, str) or not token:
            raise ValueError(f"config: {key} is {token!r}, expected a token")
    return GLiNERSpec(
        "token" if mode in TOKEN_MODES else kind,
        read.size("hidden_size", 512),
        read.size("max_width", 12, most=1024),
        read.size("max_len", 384, most=2**20),
        0 if read.integer("num_rnn_layers", 1) < 1 else read.size("num_rnn_layers", 1, most=64),
        read.rate("dropout", 0.4),
        read.integer("class_token_index", -1),
        not read.flag("embed_ent_token", True),
        read.choice("subtoken_pooling", "first", "first", "last") == "last",
        *tokens,
        read.size("max_types", 25),
        read.count("max_neg_type_ratio", 1),
    )


@dataclass(eq=False, kw_only=True)
class GLiNEROutput(ModelOutput):
    """The output of a GLiNER model.

    Attributes:
        logits: of the span kind (texts, words, max_width, labels): the span that begins at a word and has one word, two
            words, ...; of the token kind (texts, words, labels, 3): start, end and inside. Zero for missing words,
            spans and labels.
    """

    logits: Tensor


class MLP(Block):
    """Two linear maps with a ReLU between them; the arguments are the input, hidden and output widths."""

    def __init__(
        self, name: str, widths: tuple[int, int, int], dropout: float, activation: str | None = None, *, last: int = 3
    ):
        (first, inner, outer), self.dropout = widths, dropout
        self.inner = Linear(f"{name}.0", in_features=first, out_features=inner, activation="relu")
        self.outer = Linear(f"{name}.{last}", in_features=inner, out_features=outer, activation=activation)

    def __call__(self, run: Pass, input: Tensor) -> Tensor:
        return self.outer(run, drop(run, self.inner(run, input), self.dropout))


class _LSTM(Block):
    """An LSTM in both directions over the words of each text."""

    def __init__(self, layer: int, width: int):
        names = {
            part: [f"rnn.lstm.{part}_l{layer}{ending}" for ending in ("", "_reverse")]
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
        self.weight = Parameter(*names["weight_ih"], shape=(2 * width, width), use="weight")
        self.recurrent = Parameter(*names["weight_hh"], shape=(2 * width, width // 2))
        self.biases = [Parameter(*names[part], shape=(2 * width,), initial="zeros") for part in ("bias_ih", "bias_hh")]

    def __call__(self, run: Pass, words: Tensor, cu_seqlens: NativeArray) -> Tensor:
        """Map word states, (words, width), to new ones of the same shape."""
        bias = functional.add(run, *(bias.value(run) for bias in self.biases))
        known = functional.linear(run, words, self.weight.weight(run), bias)
        units, hidden = self.recurrent.part_shape
        recurrent = functional.reshape(run, self.recurrent.value(run), shape=(2, units, hidden))
        return functional.lstm(run, known, recurrent, cu_seqlens=cu_seqlens)


class Spans(Block):
    """The scores of spans by their first and last word.

    A span's vector is W2 relu(W1 [start, end] + b1) + b2, and a score its product with a label's p. W1 multiplies each
    word once as a start and once as an end, and p W2 is computed once per label, so a span costs only a sum and a
    product with the labels.
    """

    def __init__(self, name: str, width: int, max_width: int, dropout: float):
        self.max_width, self.dropout, widths = max_width, dropout, (width, 4 * width, width)
        self.start, self.end = (MLP(f"{name}.project_{end}", widths, dropout, "relu") for end in ("start", "end"))
        self.joint = Linear(f"{name}.out_project.0", in_features=2 * width, out_features=4 * width)
        sizes: dict[str, Any] = {"in_features": width, "out_features": 4 * width, "is_transposed": True}
        self.output = Linear(f"{name}.out_project.3", **sizes, bias=False)
        self.output_bias = Parameter(f"{name}.out_project.3.bias", shape=(width,), initial="zeros")

    def __call__(self, run: Pass, words: Tensor, labels: Tensor, layout: PackedWords) -> Tensor:
        """Map (words, width) and (labels, width) of all texts to scores, (texts, words, max_width, labels)."""
        count, width = int(layout.cu_words[-1]), self.joint.weight.shape[1] // 2
        sides = self.start(run, words), self.end(run, words)
        xp, dtype = kernels.array_module(value_of(sides[0])), value_of(sides[0]).dtype
        nothing = xp.zeros((count, width), dtype)
        rows = [functional.concatenate(run, *pair, axis=1) for pair in ((sides[0], nothing), (nothing, sides[1]))]
        joint = functional.linear(run, functional.concatenate(run, *rows), self.joint.weight.weight(run), None)
        starts = functional.add(run, functional.slice_rows(run, joint, first=0, last=count), self.joint.bias.value(run))
        ends = functional.slice_rows(run, joint, first=count, last=2 * count)
        queries = self.output(run, labels)
        bias = functional.reshape(run, self.output_bias.value(run), shape=(1, width))
        biases = functional.reshape(run, functional.linear(run, labels, bias, None), shape=(-1,))
        shape, scores, places = (*layout.shape, self.max_width, layout.most_labels), [], []
        for text, (words_of, labels_of) in enumerate(layout.texts()):
            own = {"first": labels_of.start, "last": labels_of.stop}
            query, own_bias = (functional.slice_rows(run, each, **own) for each in (queries, biases))
            for first, last in spans_of(words_of.stop - words_of.start, self.max_width):
                hidden = functional.add(
                    run,
                    functional.take_rows(run, starts, rows=run.to_backend(first + words_of.start)),
                    functional.take_rows(run, ends, rows=run.to_backend(last + words_of.start)),
                )
                hidden = drop(run, functional.activation(run, hidden, activation="relu"), self.dropout)
                scores.append(functional.linear(run, hidden, query, own_bias))
                at = (text, first[:, None], (last - first)[:, None], np.arange(labels_of.stop - labels_of.start))
                places.append(np.ravel_multi_index(np.broadcast_arrays(*at), shape))
        return _scattered(run, *scores, places=places, shape=shape)


class _Tokens(Block):
    """The scores of each word as the start, the end and the inside of an entity of each label."""

    def __init__(self, spec: GLiNERSpec):
        self.width, self.dropout = spec.hidden_size, spec.dropout
        sizes: dict[str, Any] = {"in_features": self.width, "out_features": 2 * self.width}
        self.word, self.label = (Linear(f"scorer.proj_{side}", **sizes) for side in ("token", "label"))
        sizes = {"in_features": 3 * self.width, "out_features": 4 * self.width}
        self.joint = Linear("scorer.out_mlp.0", **sizes, activation="relu")
        self.output = Linear("scorer.out_mlp.3", in_features=4 * self.width, out_features=3)

    def __call__(self, run: Pass, words: Tensor, labels: Tensor, layout: PackedWords) -> Tensor:
        """Map (words, width) and (labels, width) of all texts to scores, (texts, words, labels, 3)."""
        sides, scores, places = (self.word(run, words), self.label(run, labels)), [], []
        shape = (*layout.shape, layout.most_labels, 3)
        for text, (words_of, labels_of) in enumerate(layout.texts()):
            pairs = np.meshgrid(*(np.arange(each.start, each.stop) for each in (words_of, labels_of)), indexing="ij")
            both = [
                functional.take_rows(run, side, rows=run.to_backend(rows.reshape(-1)))
                for side, rows in zip(sides, pairs, strict=True)
            ]
            first, second = (
                [functional.slice_columns(run, side, first=place, last=place + self.width) for side in both]
                for place in (0, self.width)
            )
            joined = functional.concatenate(run, *first, _product(run, *second), axis=1)
            scores.append(self.output(run, drop(run, self.joint(run, joined), self.dropout)))
            word, label, side = np.indices((*pairs[0].shape, 3))
            places.append(np.ravel_multi_index((np.full_like(word, text), word, label, side), shape))
        return _scattered(run, *scores, places=places, shape=shape)


@operation()
def _product(run: Pass, left: Tensor, right: Tensor) -> Tensor:
    """Return the elementwise product of two arrays of the same shape."""
    return left * right, lambda grad: (grad * right, grad * left)


@operation()
def _scattered(run: Pass, *parts: Tensor, places: list[np.ndarray], shape: tuple[int, ...]) -> Tensor:
    """Return an array of `shape` with each part at its flat indices, and zeros elsewhere."""
    where = [run.to_backend(each.reshape(-1)) for each in places]

    def pullback(grad):
        flat = grad.reshape(-1)
        return tuple(flat[place].reshape(part.shape) for place, part in zip(where, parts, strict=True))

    whole = kernels.array_module(parts[0]).zeros(math.prod(shape), parts[0].dtype)
    for place, part in zip(where, parts, strict=True):
        whole[place] = part.reshape(-1)
    return whole.reshape(shape), pullback


def spans_of(words: int, max_width: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the first and the last word of some spans of a text, (spans,), in the order of starts, then widths."""
    at_once = max(MOST_SPANS // max_width, 1)
    for start in range(0, max(words, 1), at_once):
        count = min(at_once, words - start)
        first, width = np.divmod(np.arange(count * max_width), max_width)
        is_within = start + first + width < words
        yield start + first[is_within], (start + first + width)[is_within]


class PackedWords:
    """The words and labels of a batch on the packed axis.

    `counts`, (texts, 1), has the number of words of each text. Words that are missing from `words_mask` come last.
    `rows` and `label_rows` are the packed tokens of the words that were read, and the tokens before labels.
    """

    def __init__(self, label_rows: np.ndarray, packed: Any, words_mask: np.ndarray, counts: np.ndarray | None = None):
        numbers = packed.strip(words_mask)
        self.rows, self.label_rows, offsets = np.flatnonzero(numbers), label_rows, packed.cu_seqlens
        self.set_labels(np.searchsorted(label_rows, offsets))
        cu_read = np.searchsorted(self.rows, offsets)
        read = np.diff(cu_read)
        counts = read if counts is None else counts.reshape(-1)
        if counts.shape != read.shape:
            raise ValueError(f"text_lengths has {len(counts)} entries, expected {len(read)}, one for each text")
        for text in np.flatnonzero(counts < read):
            raise ValueError(f"text_lengths[{text}] is {counts[text]}, expected {read[text]} or more, as in words_mask")
        self.cu_words = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)  # offsets of texts among the words
        self._places = np.repeat(self.cu_words[:-1], read) + numbers[self.rows] - 1  # of read words among all
        if (numbers[self.rows] != np.arange(len(self.rows)) - np.repeat(cu_read[:-1], read) + 1).any():
            raise ValueError("words_mask does not number the words of each text 1, 2, ... in order")
        if np.count_nonzero(words_mask) != len(self.rows):
            raise ValueError("words_mask has a word at a padded position (attention_mask 0): set it to 0")
        self.shape = len(counts), int(counts.max(initial=0))  # (texts, words of the longest text)

    def all_words(self, run: Pass, states: Tensor) -> Tensor:
        """Return the states of all words, (words, width); words that were not read are zero."""
        count, width = int(self.cu_words[-1]), value_of(states).shape[1]
        if len(self.rows) == count:
            return states
        return _scattered(run, states, places=[self._places[:, None] * width + np.arange(width)], shape=(count, width))

    def set_labels(self, offsets: np.ndarray) -> None:
        """Set the offsets of the texts among the labels, (texts + 1,)."""
        self._cu_labels, self.most_labels = offsets, int(np.diff(offsets).max(initial=0))

    def texts(self) -> list[tuple[slice, slice]]:
        """Return slices of the words and labels of each text; empty slices for texts that lack either."""
        pairs = zip(pairwise(self.cu_words.tolist()), pairwise(self._cu_labels.tolist()), strict=True)
        return [(slice(*words), slice(*labels)) for words, labels in pairs]


class WithEncoder(Model[OutputT]):
    """A model whose config contains the config of its encoder."""

    prefix = ENCODER  # of the names of the encoder's parameters

    def set_encoder(self, config: object) -> None:
        """Construct the encoder from its config."""
        if not isinstance(config, Mapping):
            raise ValueError(f"config: encoder_config is {config!r:.60}, expected the config of an encoder")
        family = family_of(config)
        rules = replace(family.name_rules, prefix=self.prefix, heads=("pooler.",), tied=(), untied=())
        self.family, self.spec = replace(family, name_rules=rules), family.spec_from_config(config)
        self.encoder = Encoder(self.family, self.spec, prefix=self.prefix, pooler=family.pooler is not None)

    @classmethod
    def class_for_config(cls, config: Mapping[str, Any]) -> type[Self]:
        return cls

    def config_to_save(self) -> dict[str, Any]:
        return checkpoint.with_dtype(dict(self.config), self.dtype, smoothed=self._is_smoothed())


class GLiNERModel(WithEncoder[GLiNEROutput]):
    """A GLiNER model of the span or the token kind.

    Calls take `words_mask`, (texts, length) integers: 1, 2, ... at the token whose state is the first word, the second
    word, ..., and 0 elsewhere; and, optionally, `text_lengths`, (texts, 1), the number of words of each text: words
    missing from `words_mask` have states of zeros. The labels of a text are its tokens `class_token_index`. They return
    a GLiNEROutput. `GLiNER` (bertcore.tasks.gliner) makes these arrays from texts.

    Attributes:
        gliner: the settings of its config other than the encoder's.
    """

    _targets = ("words_mask", "text_lengths")
    _config_name = CONFIG_NAME

    def __init__(self, config: Mapping[str, Any]):
        self.config, self.gliner = Config(config), read_spec(config)
        self.set_encoder(config.get("encoder_config"))
        width, of_encoder = self.gliner.hidden_size, self.spec.hidden_size
        if width % 2 and self.gliner.rnn_layers:
            raise ValueError(f"config: hidden_size is {width}, expected an even number with num_rnn_layers")
        self.projection = None
        if width != of_encoder:
            self.projection = Linear("token_rep_layer.projection", in_features=of_encoder, out_features=width)
        self.lstms = [_LSTM(layer, width) for layer in range(self.gliner.rnn_layers)]
        spans = self.gliner.kind == "span"
        given = SPANS, width, self.gliner.max_width, self.gliner.dropout
        self.head = Spans(*given) if spans else _Tokens(self.gliner)
        widths = width, 4 * width, width
        self.labels = MLP("prompt_rep_layer", widths, self.gliner.dropout) if spans else None

    @classmethod
    def _read_config(cls, folder: str | os.PathLike[str]) -> dict[str, Any]:
        """Return gliner_config.json including the encoder's config, which the file may only name."""
        config = checkpoint.read_config(folder, CONFIG_NAME)
        with naming_config(folder):
            return with_encoder(config, folder)

    def set_class_token(self, token: int) -> None:
        """Set the id of the token before each label, if the config lacks it."""
        self.gliner = replace(self.gliner, class_token=token)
        self.config.update(class_token_index=token, vocab_size=self.spec.vocab_size)

    def _config_with(self, vocab_size: int) -> dict[str, Any]:
        encoder = {**self.config["encoder_config"], "vocab_size": vocab_size}
        return self.config | {"encoder_config": encoder, "vocab_size": vocab_size}

    def _output(self, encoded: Encoded, words_mask: ArrayLike | None = None,
                text_lengths: ArrayLike | None = None) -> GLiNEROutput:  # fmt: skip
        if words_mask is None:
            raise ValueError("words_mask is None, expected the numbers of the words, (texts, length)")
        mask, run = integer_batch("words_mask", words_mask), encoded.run
        if mask.shape != encoded.packed.shape:
            raise ValueError(f"words_mask has shape {mask.shape}, expected {encoded.packed.shape} as input_ids has")
        ids = kernels.to_host(encoded.inputs.on_host.input_ids)
        counts = None if text_lengths is None else integer_batch("text_lengths", text_lengths)
        layout = PackedWords(np.flatnonzero(ids == self.gliner.class_token), encoded.packed, mask, counts)
        labelled = np.minimum(layout.label_rows + 1, len(ids) - 1) if self.gliner.reads_label else layout.label_rows
        both = [run.to_backend(rows) for rows in (layout.rows, labelled)]
        words, labels = (functional.take_rows(run, encoded.hidden, rows=rows) for rows in both)
        if self.projection is not None:
            words, labels = self.projection(run, words), self.projection(run, labels)
        words = layout.all_words(run, words)
        for lstm in self.lstms:
            words = lstm(run, words, run.to_backend(layout.cu_words))
        if self.labels is not None:
            labels = self.labels(run, labels)
        return GLiNEROutput(logits=self.head(run, words, labels, layout), traced=encoded.traced)


def table_rows(folder: str | os.PathLike[str], prefix: str) -> int | None:
    """Return the number of rows of the word embeddings in a weights file."""
    found = checkpoint.open_checkpoint(folder).info
    return next(
        (info.shape[0] for name, info in found.items() if name.startswith(prefix) and name.endswith(TABLES)), None
    )


def with_encoder(config: Mapping[str, Any], folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the config of the GLiNER model in `folder` with the config of its encoder.

    If it is missing, `model_name` is a preset, a preset's id on the hub, a folder or another id; a missing vocabulary
    size is read from the weights file.
    """
    encoder = config.get("encoder_config")
    if encoder is None:
        name = config.get("model_name")
        if not isinstance(name, str):
            raise ValueError(f"config: model_name is {name!r}, expected the name of an encoder")
        try:
            encoder = preset_config(name)
        except ValueError:
            encoder = checkpoint.read_config(checkpoint.resolve(name, "tokenizer"))
        encoder = encoder | {"vocab_size": config.get("vocab_size", -1)}
    if isinstance(encoder, Mapping) and -1 in (encoder.get("vocab_size"), config.get("vocab_size", -1)):
        rows = table_rows(folder, ENCODER)
        encoder = {**encoder, "vocab_size": rows} if rows else encoder
    return {**config, "encoder_config": encoder}
