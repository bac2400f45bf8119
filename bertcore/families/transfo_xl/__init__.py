"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860), a language model with a memory and XLNet's predecessor.

Names in checkpoints are those of transformers 4, the last version that had it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from bertcore.checkpoint import NameRules
from bertcore.families.transfo_xl.adapter import CausalRecurrentAdapter
from bertcore.families.transfo_xl.blocks import AdaptiveEmbeddings, RecurrentAttention
from bertcore.heads import ClassifierSpec
from bertcore.kernels.arrays import ArrayLike
from bertcore.models import losses
from bertcore.models.adapter import Encoded
from bertcore.models.auto import AutoModelForCausalLM
from bertcore.models.outputs import LogitsOutput
from bertcore.models.registry import Family, HeadSpec, in_each_layer, register
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn import functional
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


@dataclass(frozen=True)
class AdaptiveSoftmaxSpec:
    """The names of the head's parts, without ".weight" and ".bias"; "{group}" stands for the number of a group."""

    output: str  # the linear maps to the words of each group
    projection: str  # the projections before them (full names)
    group: str  # the prefix of "_weight" and "_bias" of the map to all groups but the first
    shares_projections: bool  # whether all projections but the first are shared with the embeddings


class AdaptiveSoftmax(Block):
    """An adaptive softmax: over frequent words and groups of other words, then over the words of each group.

    Widths, tables and tying follow the embeddings (`AdaptiveEmbeddings`).
    """

    def __init__(self, head_spec: AdaptiveSoftmaxSpec, spec: EncoderSpec, embeddings: Any):
        self.bounds = spec.details.groups
        self.outputs, self.biases = [], []
        for index, table in enumerate(embeddings.tables):
            name, weight = head_spec.output.format(group=index), table.table
            if spec.tied_decoder:
                weight = weight.used_as("weight")
            else:
                weight = Parameter(f"{name}.weight", shape=weight.part_shape, use="weight")
            self.outputs.append(weight)
            self.biases.append(Parameter(f"{name}.bias", shape=weight.part_shape[:1], initial="zeros"))
        self.projections = [
            self._projection(head_spec, index, embeddings)
            for index in range(len(self.bounds))
            if embeddings.projections
        ]
        self.group_weight = self.group_bias = None
        count = len(self.bounds) - 1
        if count:
            self.group_weight = Parameter(f"{head_spec.group}_weight", shape=(count, spec.embedding_size), use="weight")
            self.group_bias = Parameter(f"{head_spec.group}_bias", shape=(count,), initial="zeros")

    def _projection(self, head_spec: AdaptiveSoftmaxSpec, index: int, embeddings: Any) -> Parameter:
        shared = embeddings.projections[index if len(embeddings.projections) > 1 else 0]
        if index and head_spec.shares_projections:
            return shared
        return Parameter(head_spec.projection.format(group=index), shape=shared.part_shape)

    def __call__(self, run: Pass, hidden: Tensor) -> Tensor:
        """Map (tokens, hidden) to the logarithm of each word's probability, (tokens, vocabulary)."""
        first, *others = (
            functional.log_softmax(run, self._scores(run, hidden, index)) for index in range(len(self.bounds))
        )
        words = self.bounds[0][1]
        parts = [functional.slice_columns(run, first, first=0, last=words)]
        for index, part in enumerate(others, start=words):
            parts.append(functional.add(run, part, functional.slice_columns(run, first, first=index, last=index + 1)))
        logarithms = functional.concatenate(run, *parts, axis=1)
        dtype = value_of(hidden).dtype
        return logarithms if value_of(logarithms).dtype == dtype else logarithms.astype(dtype)  # in low precision

    def loss(self, run: Pass, hidden: Tensor, labels: np.ndarray) -> Tensor:
        """Return the mean negative log-likelihood of `labels`, (tokens,) in host memory, -100 for no label.

        A group is computed only for tokens with a label in it.
        """
        words, groups = labels.copy(), list(self._members(labels))
        for index, where, _ in groups:
            words[where] = self.bounds[0][1] + index - 1
        loss = functional.cross_entropy(run, self._scores(run, hidden, 0), labels=run.to_backend(words))
        for index, where, inside in groups:
            chosen = functional.take_rows(run, hidden, rows=run.to_backend(where))
            part = functional.cross_entropy(run, self._scores(run, chosen, index), labels=run.to_backend(inside))
            loss = functional.add(
                run, loss, functional.scale(run, part, factor=len(where) / np.count_nonzero(labels >= 0))
            )
        return loss

    def _members(self, labels: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield, for each group but the first that has labels: its number, the labels' tokens, their indices in it."""
        for index, (first, end) in enumerate(self.bounds[1:], start=1):
            where = np.flatnonzero((labels >= first) & (labels < end))
            if where.size:
                yield index, where, labels[where] - first

    def _scores(self, run: Pass, hidden: Tensor, index: int) -> Tensor:
        """Return the scores of a group's words before the softmax; in the first, those of the other groups follow."""
        if self.projections:
            matrix, dtype = self.projections[index].value(run), value_of(hidden).dtype
            if value_of(matrix).dtype != dtype:  # low precision, without gradients
                matrix = matrix.astype(dtype)
            hidden = functional.linear(run, hidden, functional.transpose(run, matrix), None)
        own = index if len(self.outputs) > 1 else 0
        scores = functional.linear(run, hidden, self.outputs[own].weight(run), self.biases[own].value(run))
        first, end = self.bounds[index]
        if len(self.outputs) == 1 < len(self.bounds):  # one map for all groups
            scores = functional.slice_columns(run, scores, first=first, last=end)
        if index or self.group_weight is None:
            return scores
        groups = functional.linear(run, hidden, self.group_weight.weight(run), self.group_bias.value(run))
        return functional.concatenate(run, scores, groups, axis=1)


class AdaptiveCausalLM(AutoModelForCausalLM):
    """AutoModelForCausalLM with an adaptive softmax: logits are logarithms of probabilities.

    A label is compared with the prediction of the previous token. With labels no logits are returned, because the loss
    needs few of them.
    """

    predicts_next_words = True

    def _head(self, task: str, spec: AdaptiveSoftmaxSpec) -> Block:
        return AdaptiveSoftmax(spec, self.spec, self.encoder.embeddings)

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None) -> LogitsOutput:
        head = self.heads[0]
        if labels is None:
            return LogitsOutput(
                logits=encoded.packed.pad(encoded.run, head(encoded.run, encoded.hidden)), traced=encoded.traced
            )
        words = losses.next_words(encoded.packed, labels, self.spec.vocab_size)
        return LogitsOutput(loss=head.loss(encoded.run, encoded.hidden, words), traced=encoded.traced)


KEYS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "intermediate_size": "d_inner",
    "num_hidden_layers": "n_layer",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_range": "init_std",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "dropatt",
}
WIKITEXT = {
    "vocab_size": 267735, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
    "num_hidden_layers": 18, "layer_norm_eps": 1e-5,
}  # fmt: skip
MOST_GROUPS, MOST_NAMED_LAYERS = 10, 128  # covered by the rules for tied names


@dataclass(frozen=True)
class RecurrentDetails:
    """Settings of Transformer-XL's memory and attention; see `RecurrentAdapter`."""

    memory_length: int
    clamp_length: int
    same_length: bool
    groups: tuple[tuple[int, int], ...]  # (first word, end) of each group of words, in embeddings and softmax
    div_val: int  # the factor by which a group's embeddings are narrower than the previous group's
    own_biases: bool  # whether each layer has its own position biases

    @property
    def returns_memory(self) -> bool:
        """True if calls return a memory; one of length 0 is left out."""
        return self.memory_length > 0

    trains_with_memory = returns_memory
    reuse_length = 0


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of a Transformer-XL config; sequences may have any length."""
    read = ConfigReader(config)
    read.require(attn_type=0, adaptive=True, sample_softmax=-1)
    layer = {
        "inner_dropout": read.rate("dropout", 0.1),
        "head_dim": read.size("d_head", 64),
        "activation": "relu",
        "norm_first": read.flag("pre_lnorm", False),
        "is_causal": True,
    }
    fixed = {"type_vocab_size": 0, "max_positions": 0, "is_relative": True, "pad_token_id": None}
    numbers = standard_spec(config, keys=KEYS, defaults=WIKITEXT, layer=layer, **fixed)
    details = RecurrentDetails(
        memory_length=read.count("mem_len", 1600),
        clamp_length=max(read.integer("clamp_len", 1000), 0),
        same_length=read.flag("same_length", True),
        groups=_groups(config.get("cutoffs", (20000, 40000, 200000)), numbers.vocab_size),
        div_val=read.size("div_val", 4),
        own_biases=read.flag("untie_r", True),
    )
    if details.same_length and not details.memory_length:
        raise ValueError("config: same_length is true and mem_len 0, expected a positive mem_len")
    width = read.size("d_embed", 1024)
    if width < details.div_val ** (len(details.groups) - 1):
        raise ValueError(f"config: d_embed is {width}, too narrow for div_val {details.div_val} and these cutoffs")
    return replace(numbers, embedding_size=width, details=details)


def _groups(cutoffs: Any, vocab_size: int) -> tuple[tuple[int, int], ...]:
    """Return (first word, end) of each group of words."""
    is_list = isinstance(cutoffs, list | tuple) and all(type(cutoff) is int for cutoff in cutoffs)
    ends = (0, *cutoffs, vocab_size) if is_list else ()
    if not is_list or len(ends) - 1 > MOST_GROUPS or any(first >= end for first, end in pairwise(ends)):
        raise ValueError(
            f"config: cutoffs is {cutoffs!r}, expected ascending integers between 0 and vocab_size {vocab_size}, "
            f"at most {MOST_GROUPS - 1}"
        )
    return tuple(pairwise(ends))


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    language_model = AdaptiveSoftmaxSpec(
        output="crit.out_layers.{group}",
        projection="crit.out_projs.{group}",
        group="crit.cluster",
        shares_projections=read.flag("proj_share_all_but_first", True),
    )
    return {
        "causal_lm": language_model,
        "sequence_classification": ClassifierSpec("score", "last", without_bias=frozenset({"output"})),
    }


TRANSFORMER_XL = register(
    Family(
        model_type="transfo-xl",
        architecture="TransfoXL",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="transformer.",
            heads=("crit.", "score."),
            tied=(
                *((f"crit.out_layers.{k}.weight", f"word_emb.emb_layers.{k}.weight") for k in range(MOST_GROUPS)),
                *((f"crit.out_projs.{k}", f"word_emb.emb_projs.{k}") for k in range(1, MOST_GROUPS)),
                *((f"crit.out_projs.{k}", "word_emb.emb_projs.0") for k in range(1, MOST_GROUPS)),  # div_val 1
                *(
                    (f"layers.{layer}.dec_attn.{bias}", bias)
                    for layer in range(MOST_NAMED_LAYERS)
                    for bias in ("r_w_bias", "r_r_bias")
                ),
            ),
            anchor="word_emb.emb_layers.0.weight",
            buffers=("pos_emb.inv_freq",),
        ),
        encoder_names={
            "word_embeddings": "word_emb.emb_layers.{group}",
            "embeddings_projection": "word_emb.emb_projs.{group}",
            "content_bias": "r_w_bias",
            "position_bias": "r_r_bias",
        },
        layer_names=in_each_layer(
            "layers.{layer}.",
            qkv="dec_attn.qkv_net",
            positions="dec_attn.r_net",
            attention_output="dec_attn.o_net",
            content_bias="dec_attn.r_w_bias",
            position_bias="dec_attn.r_r_bias",
            attention_norm="dec_attn.layer_norm",
            expand="pos_ff.CoreNet.0",
            contract="pos_ff.CoreNet.3",
            feed_forward_norm="pos_ff.layer_norm",
        ),
        embeddings=AdaptiveEmbeddings,
        attention=RecurrentAttention,
        adapter=CausalRecurrentAdapter,
        pooler=None,
        inputs=("mems",),
        batch_inputs=("mems",),
        models={"AutoModelForCausalLM": AdaptiveCausalLM},
    )
)
