"""XLNet (Yang et al. 2019, arXiv:1906.08237): two-stream attention, relative positions and a memory."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.checkpoint import NameRules
from bertcore.families.transfo_xl.adapter import RecurrentAdapter, RecurrentInput
from bertcore.families.transfo_xl.blocks import HalfBatch, PassPositions, RecurrentContext
from bertcore.families.xlnet.blocks import (
    Predictions,
    TwoStreamAttention,
    TwoStreamContext,
    TwoStreamEmbeddings,
    TwoStreamLayer,
)
from bertcore.heads import ClassifierSpec, LanguageModelSpec
from bertcore.kernels.arrays import ArrayLike, NativeArray
from bertcore.models.adapter import Encoded
from bertcore.models.inputs import EncoderInput, integer_batch
from bertcore.models.registry import TOKEN_HEADS, Family, HeadSpec, in_each_layer, register, summary_head
from bertcore.models.spec import ConfigReader, standard_spec
from bertcore.nn.packing import PackedBatch
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


@dataclass(frozen=True)
class TwoStreamDetails:
    """Settings of XLNet's memory and attention; see `RecurrentAdapter`."""

    memory_length: int | None
    reuse_length: int
    clamp_length: int
    same_length: bool
    returns_memory: bool
    trains_with_memory: bool
    half_runs_backwards: bool  # whether the second half of a batch's sequences runs backwards, with negated distances


@dataclass
class TwoStreamInput(RecurrentInput):
    """The inputs of XLNet."""

    # the share of each token in each prediction, (sequences, predictions, length)
    target_mapping: np.ndarray | None = None

    @property
    def is_plain(self) -> bool:
        return super().is_plain and self.target_mapping is None


class TwoStreamAdapter(RecurrentAdapter):
    """The adapter of Yang et al. 2019 (arXiv:1906.08237).

    With target_mapping the query stream is the output: hidden states alternate between the streams, content first, and
    attentions are pairs. A query that may attend to no key (the first in an order) attends to all equally; no gradient
    flows through its scores.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, spec)
        self.needs_whole_batch = spec.details.half_runs_backwards  # a sequence's half depends on the batch

    def pack(
        self,
        run: Pass,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        *given: Any,
        keep_padding: bool = False,
        perm_mask: ArrayLike | None = None,
        target_mapping: ArrayLike | None = None,
        input_mask: ArrayLike | None = None,
        **memory: Any,
    ) -> TwoStreamInput:
        """Check and pack a call; padding is kept for perm_mask and target_mapping, which have a column per token."""
        if input_mask is not None:  # the attention_mask with 0 and 1 exchanged
            if attention_mask is not None:
                raise ValueError("input_mask and attention_mask are both given, expected one of them")
            mask = _numeric_array("input_mask", input_mask, integer_batch("input_ids", input_ids).shape)
            if not np.isin(mask, (0, 1)).all():
                expected = "expected 0 for real tokens and 1 for padding"
                raise ValueError(f"input_mask has numbers other than 0 and 1, {expected}")
            attention_mask = mask == 0
        keeps = keep_padding or perm_mask is not None or target_mapping is not None or self.needs_whole_batch
        words = super().pack(run, input_ids, attention_mask, *given, keep_padding=keeps, **memory)
        inputs = TwoStreamInput(**vars(words))
        sequences, length = inputs.packed.shape
        if perm_mask is not None:
            visible = ~(_numeric_array("perm_mask", perm_mask, (sequences, length, length)) > 0)
            inputs.visible = visible if inputs.visible is None else visible & inputs.visible
        if target_mapping is not None:
            inputs.target_mapping = _numeric_array("target_mapping", target_mapping, (sequences, None, length))
        return inputs

    def begin(
        self, run: Pass, inputs: EncoderInput, embeddings: Callable[..., Tensor]
    ) -> tuple[Tensor, TwoStreamContext]:
        content = embeddings(run, inputs)
        context = self._context(run, inputs, content)
        if context.predictions is None:
            return content, context
        places = np.zeros(context.predictions.matrices[..., 0].size, np.int64)
        return (content, embeddings.queries(run, run.to_backend(places))), context

    def _context(self, run: Pass, inputs: EncoderInput, hidden: Tensor) -> TwoStreamContext:
        memories = self._memories(inputs, hidden)
        relations, longest, before = self._relations(run, inputs, hidden, memories[0])
        types = inputs.token_type_ids
        if inputs.on_host.token_type_ids.any():  # with a single segment, segments do not matter
            relations.segment_ids = relations.segment_ids_k = types
            if before:
                xp = kernels.array_module(types)
                padded = xp.zeros((len(inputs.cu_seqlens) - 1, before + longest), types.dtype)  # 0 for the memory
                padded[:, before:] = types.reshape(-1, longest)
                relations.segment_ids_k = padded.reshape(-1)
        if self.needs_whole_batch:
            offsets = inputs.on_host.cu_seqlens
            relations.halves = _halves(relations, offsets, longest, before)
        visible, itself = self._given_mask(inputs, before), None
        if self.spec.layers[0].is_causal:
            causal = self._causal_mask(np, longest, before)
            visible = causal[None] if visible is None else visible & causal
        if visible is not None:
            itself = np.arange(before + longest) == before + np.arange(longest)[:, None]
        shared = {"relations": relations, "memories": memories}
        content = TwoStreamContext(inputs.cu_seqlens, _mask(run, visible, itself), **shared)
        mapping = getattr(inputs, "target_mapping", None)
        if mapping is None:
            return content
        matrices = run.to_backend(mapping.astype(value_of(hidden).dtype))
        sees = None
        if visible is not None and not (sees_any := visible.any(axis=2, keepdims=True)).all():
            visible = visible | ~sees_any
            sees = np.broadcast_to(sees_any, (len(mapping), longest, 1)).reshape(-1, 1)
            sees = run.to_backend(sees.astype(value_of(hidden).dtype))
        content.queries = RecurrentContext(inputs.cu_seqlens, _mask(run, visible, None), **shared)
        content.predictions = Predictions(matrices, sees)
        return content

    def restore(self, run: Pass, inputs: TwoStreamInput, state: Tensor | tuple[Tensor, Tensor]) -> Encoded:
        """Return the outputs; with target_mapping they have predictions in place of tokens."""
        if inputs.target_mapping is None:
            return super().restore(run, inputs, state)
        encoded = super().restore(run, inputs, state[1])
        predicted = _predicted(inputs)
        ends = predicted.cu_seqlens, predicted.first_tokens(), predicted.last_tokens()
        names = "cu_seqlens", "first_tokens", "last_tokens"
        encoded.packed = predicted
        encoded.inputs = replace(inputs, **dict(zip(names, map(run.to_backend, ends), strict=True)))
        return encoded

    def _within_length(self, ahead: np.ndarray, memory: int) -> np.ndarray:
        return ahead >= 0

    def _padded_states(self, run: Pass, states: list, inputs: TwoStreamInput) -> tuple[Any, ...]:
        if inputs.target_mapping is None:
            return super()._padded_states(run, states, inputs)
        layouts = inputs.packed, _predicted(inputs)
        return tuple(layout.pad(run, stream) for pair in states for layout, stream in zip(layouts, pair, strict=True))

    def _padded_attentions(self, run: Pass, attentions: list, inputs: TwoStreamInput, memory: int) -> tuple[Any, ...]:
        padded = super()._padded_attentions(run, attentions, inputs, memory)
        return padded if inputs.target_mapping is None else tuple(zip(padded[::2], padded[1::2], strict=True))


def _predicted(inputs: TwoStreamInput) -> PackedBatch:
    """Return the layout of the predictions, equally many for every sequence."""
    return PackedBatch(np.ones(inputs.target_mapping.shape[:2], bool))


def _halves(relations: PassPositions, offsets: np.ndarray, longest: int, memory: int) -> tuple[HalfBatch, HalfBatch]:
    """Return the half that runs forwards and the half that runs backwards, with negated distances."""
    sequences = len(offsets) - 1
    if sequences % 2 or sequences * longest != offsets[-1]:
        raise ValueError(
            f"config: bi_data is true, which needs an even number of sequences of equal lengths, but input_ids has "
            f"{sequences} sequences, the longest of {longest} tokens"
        )
    ends, halves = (0, sequences // 2, sequences), []
    for (first, last), rows in zip(
        pairwise(ends), (relations.distance_rows, relations.distance_rows[::-1]), strict=True
    ):
        tokens, keys = (slice(first * length, last * length) for length in (longest, memory + longest))
        xp = kernels.array_module(rows)
        halves.append(relations.half(slice(first, last), tokens, keys, xp.ascontiguousarray(rows)))
    return tuple(halves)


def _mask(run: Pass, visible: np.ndarray | None, itself: np.ndarray | None) -> NativeArray | None:
    """Return the attention mask of keys that queries may attend to, including themselves; None for all."""
    if visible is None:
        return None
    mask = visible if itself is None else visible | itself
    return None if mask.all() else run.to_backend(mask[:, None])


def _numeric_array(name: str, values: Any, shape: Iterable[int | None]) -> np.ndarray:
    """Return `values` as an array of numbers of this shape, in host memory; None in the shape is any size."""
    array = np.asarray(values) if kernels.array_module(values) is np else values.get()
    if array.dtype.kind not in "buif":
        raise TypeError(f"{name} holds {array.dtype}, expected numbers")
    expected = tuple(shape)
    fits = array.ndim == len(expected) and all(
        want in (None, size) for want, size in zip(expected, array.shape, strict=True)
    )
    if not fits:
        sizes = ", ".join("predictions" if size is None else str(size) for size in expected)
        raise ValueError(f"{name} has shape {array.shape}, expected ({sizes})")
    return array


KEYS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_head",
    "intermediate_size": "d_inner",
    "num_hidden_layers": "n_layer",
    "hidden_act": "ff_activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "dropout",
    "classifier_dropout": "summary_last_dropout",
}
LARGE = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
}


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    """Return the spec of an XLNet config; sequences may have any length, and any integer may be a token type.

    As in transformers, untie_r is ignored: every layer has its own biases.
    """
    read = ConfigReader(config)
    read.flag("untie_r", True)
    numbers = ConfigReader(config, LARGE, KEYS)
    hidden, heads = numbers.size("hidden_size"), numbers.size("num_attention_heads")
    if hidden % heads:
        keys = numbers.name("hidden_size"), numbers.name("num_attention_heads")
        raise ValueError(f"config: {keys[0]} is {hidden}, expected a multiple of {keys[1]} {heads}")
    layer = {
        "inner_dropout": read.rate("dropout", 0.1),
        "head_dim": None if config.get("d_head") is None else read.size("d_head"),
        "is_causal": read.choice("attn_type", "bi", "bi", "uni") == "uni",
    }
    fixed = {"type_vocab_size": 0, "max_positions": 0, "is_relative": True, "pad_token_id": None}
    numbers = standard_spec(config, keys=KEYS, defaults=LARGE, layer=layer, **fixed)
    details = TwoStreamDetails(
        memory_length=read.index("mem_len", 512, 2**31) or None,
        reuse_length=read.count("reuse_len", 0),
        clamp_length=max(read.integer("clamp_len", -1), 0),
        same_length=read.flag("same_length", False),
        returns_memory=read.flag("use_mems_eval", True),
        trains_with_memory=read.flag("use_mems_train", False),
        half_runs_backwards=read.flag("bi_data", False),
    )
    return replace(numbers, details=details)


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    summary = summary_head(read, "logits_proj", source="last", activation="tanh")
    return TOKEN_HEADS | {
        "token_classification": ClassifierSpec("classifier", "tokens", dropout=0.0),
        "causal_lm": LanguageModelSpec(decoder="lm_loss", tied_bias="lm_loss.bias"),
        "sequence_classification": summary,
        "multiple_choice": summary,
    }


XLNET = register(
    Family(
        model_type="xlnet",
        architecture="XLNet",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="transformer.",
            heads=(
                *("lm_loss.", "sequence_summary.", "logits_proj.", "classifier.", "qa_outputs."),
                *("start_logits.", "end_logits.", "answer_class."),  # for beam search over spans
            ),
            tied=(("lm_loss.weight", "word_embedding.weight"),),
            anchor="word_embedding.weight",
        ),
        encoder_names={"word_embeddings": "word_embedding", "mask_embedding": "mask_emb"},
        layer_names=in_each_layer(
            "layer.{layer}.",
            query="rel_attn.q",
            key="rel_attn.k",
            value="rel_attn.v",
            positions="rel_attn.r",
            attention_output="rel_attn.o",
            content_bias="rel_attn.r_w_bias",
            position_bias="rel_attn.r_r_bias",
            segment_bias="rel_attn.r_s_bias",
            segments="rel_attn.seg_embed",
            attention_norm="rel_attn.layer_norm",
            expand="ff.layer_1",
            contract="ff.layer_2",
            feed_forward_norm="ff.layer_norm",
        ),
        embeddings=TwoStreamEmbeddings,
        attention=TwoStreamAttention,
        layer=TwoStreamLayer,
        adapter=TwoStreamAdapter,
        pooler=None,
        inputs=("mems", "perm_mask", "target_mapping", "input_mask", "use_mems"),
        batch_inputs=("mems", "perm_mask", "target_mapping", "use_mems"),
        endings={"ForQuestionAnswering": "ForQuestionAnsweringSimple"},
    )
)
