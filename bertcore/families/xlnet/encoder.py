"""XLNet's encoder: a content stream, and where words are predicted a query stream beside it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.families.transfo_xl.recurrent import RecurrentEncoder
from bertcore.families.transfo_xl.relative_attention import Half, Relations
from bertcore.families.xlnet.blocks import Predictions, TwoStreamAttention
from bertcore.models import losses
from bertcore.models.encoder import EncoderInput, Trace
from bertcore.models.inputs import integer_batch
from bertcore.models.registry import Family
from bertcore.nn.encoder import FeedForward, LayerContext
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block
from bertcore.tape import value_of


@dataclass(frozen=True)
class TwoStreamDetails:
    """What XLNet's configs vary; see `RecurrentEncoder`.

    Attributes:
        reuse_length: how many of a segment's first tokens are remembered; 0 for all.
        half_runs_backwards: the second half of a batch's sequences run backwards: their distances change sign.
    """

    head_dim: int
    memory_length: int | None
    reuse_length: int
    clamp_length: int
    is_causal: bool
    same_length: bool
    returns_memory: bool
    trains_with_memory: bool
    half_runs_backwards: bool


class TwoStreamLayer(Block):
    """Attention, then feed-forward, for both streams."""

    def __init__(self, names: Mapping[str, str], spec: Any):
        self.attention = TwoStreamAttention(names, spec)
        self.feed_forward = FeedForward(names, spec)

    def __call__(self, content: Any, queries: Any, memory: Any, streams: "Streams") -> tuple[Any, Any]:
        """(tokens, hidden) of the content stream, (predictions, hidden) or None of the query stream."""
        keys = self.attention.keys(content, memory, streams.content)
        attended = self.attention(content, keys, streams.content)
        if queries is not None:
            queries = self.feed_forward(self.attention(queries, keys, streams.queries, streams.predictions))
        return self.feed_forward(attended), queries


@dataclass
class Streams:
    """The contexts of both streams; the query stream's are None where there is none."""

    content: LayerContext
    queries: LayerContext | None = None
    predictions: Predictions | None = None


class TwoStreamEncoder(RecurrentEncoder):
    """The encoder of Yang et al. 2019 (arXiv:1906.08237).

    With target_mapping the query stream is the output: hidden states alternate between the streams, content first, and
    attentions are pairs. A query that sees no key (the first of an order) weighs all keys the same; no gradient flows
    through its scores.
    """

    def _layer(self, family: Family, names: Mapping[str, str]) -> Block:
        return TwoStreamLayer(names, self.spec)

    def real_tokens(self, input_ids: Any, attention_mask: Any, own_inputs: Mapping[str, Any]) -> Any:
        """input_mask is an attention_mask the other way round."""
        input_mask = own_inputs.get("input_mask")
        if input_mask is None:
            return attention_mask
        if attention_mask is not None:
            raise ValueError("input_mask and attention_mask are both given, expected one: they say the same")
        array = _numbers("input_mask", input_mask, integer_batch("input_ids", input_ids).shape)
        if not np.isin(array, (0, 1)).all():
            raise ValueError("input_mask holds other numbers than 0 (a real token) and 1 (padding)")
        return array == 0

    def keeps_padding(self, own_inputs: Mapping[str, Any]) -> bool:
        """perm_mask and target_mapping have a column for each token of the batch, too."""
        given = (own_inputs.get(name) is not None for name in ("perm_mask", "target_mapping"))
        return super().keeps_padding(own_inputs) or any(given) or self.spec.details.half_runs_backwards

    def own_inputs(
        self,
        packed: PackedBatch,
        *,
        perm_mask: Any = None,
        target_mapping: Any = None,
        input_mask: Any = None,
        **memory: Any,
    ) -> dict[str, Any]:
        """Who may see whom, (sequences, length or 1, length), and the predictions' tokens."""
        extras = super().own_inputs(packed, **memory)
        sequences, length = packed.shape
        if perm_mask is not None:
            hidden = _numbers("perm_mask", perm_mask, (sequences, length, length)) > 0
            extras["visible"] = ~hidden & extras.get("visible", True)
        if target_mapping is not None:
            extras["target_mapping"] = _numbers("target_mapping", target_mapping, (sequences, None, length))
        return extras

    def outputs(self, packed: PackedBatch, inputs: EncoderInput) -> tuple[PackedBatch, EncoderInput]:
        """With target_mapping the predictions stand in the tokens' place."""
        mapping = inputs.extras.get("target_mapping")
        if mapping is None:
            return packed, inputs
        predicted = PackedBatch(np.ones(mapping.shape[:2], bool))
        ends = predicted.cu_seqlens, predicted.first_tokens(), predicted.last_tokens()
        names = "cu_seqlens", "first_tokens", "last_tokens"
        return predicted, replace(inputs, **dict(zip(names, map(kernels.to_backend, ends), strict=True)))

    def causal_loss(self, logits: Any, labels: Any, encoded: Any) -> Any:
        """The mean cross entropy of each token, or each prediction, and its label."""
        return losses.token_loss(logits, labels, encoded.packed, self.spec.vocab_size)

    def __call__(self, inputs: EncoderInput, trace: Trace) -> Any:
        """The last hidden state, (tokens, hidden) or (predictions, hidden)."""
        if self.spec.details.half_runs_backwards:  # which half a sequence is in depends on the whole batch
            return self._encode(inputs, trace)
        return super().__call__(inputs, trace)

    def _encode(self, inputs: EncoderInput, trace: Trace) -> Any:
        content, queries = self.embeddings(inputs), None
        memories = self._memories(inputs, content)
        streams = self._streams(inputs, content, memories[0], trace)
        if streams.predictions is not None:
            places = np.zeros(streams.predictions.matrices[..., 0].size, np.int64)
            queries = self.embeddings.queries(kernels.to_backend(places))
        given = []
        for layer, memory in zip(self.layers, memories, strict=True):
            given.append(content)
            _note(trace, content, queries)
            content, queries = layer(content, queries, memory, streams)
        _note(trace, content, queries)
        if "returns_memory" in inputs.extras:
            trace.extras["layer_inputs"] = given
        return content if queries is None else queries

    def _streams(self, inputs: EncoderInput, hidden: Any, memory: Any, trace: Trace) -> Streams:
        relations, longest, before = self._relations(inputs, hidden, memory)
        types = inputs.token_type_ids
        if kernels.array_module(types) is not np or types.any():  # where all are one segment, it does not matter
            relations.segment_ids = relations.segment_ids_k = types
            if before:
                xp = kernels.array_module(types)
                padded = xp.zeros((len(inputs.cu_seqlens) - 1, before + longest), types.dtype)  # a memory's are 0
                padded[:, before:] = types.reshape(-1, longest)
                relations.segment_ids_k = padded.reshape(-1)
        if self.spec.details.half_runs_backwards:
            relations.halves = _halves(relations, len(inputs.cu_seqlens) - 1, longest, before)
        visible = self._visible(inputs, longest, before)
        itself = None
        if visible is not None:
            itself = np.arange(before + longest) == before + np.arange(longest)[:, None]
        context = LayerContext(inputs.cu_seqlens, _mask(visible, itself), trace.attentions, relations)
        mapping = inputs.extras.get("target_mapping")
        if mapping is None:
            return Streams(context)
        matrices = kernels.to_backend(mapping.astype(value_of(hidden).dtype))
        sees = None
        if visible is not None and not (sees_any := visible.any(axis=2, keepdims=True)).all():
            visible = visible | ~sees_any
            sees = np.broadcast_to(sees_any, (len(mapping), longest, 1)).reshape(-1, 1)
            sees = kernels.to_backend(sees.astype(value_of(hidden).dtype))
        queries = replace(context, key_mask=_mask(visible, None))
        return Streams(context, queries, Predictions(matrices, sees))

    def _lowest(self, longest: int, highest: int) -> int:
        return -highest if self.spec.details.half_runs_backwards else super()._lowest(longest, highest)

    def _within_length(self, ahead: np.ndarray, memory: int) -> np.ndarray:
        return ahead >= 0

    def _remembered(self, state: Any) -> Any:
        return state[: self.spec.details.reuse_length] if self.spec.details.reuse_length else state

    def _padded_states(self, states: list, packed: PackedBatch, inputs: EncoderInput) -> tuple[Any, ...]:
        if "target_mapping" not in inputs.extras:
            return super()._padded_states(states, packed, inputs)
        kinds = (packed, self.outputs(packed, inputs)[0]) * (len(states) // 2)
        return tuple(kind.pad(value_of(state)) for kind, state in zip(kinds, states, strict=True))

    def _padded_attentions(
        self, attentions: list, packed: PackedBatch, inputs: EncoderInput, memory: int
    ) -> tuple[Any, ...]:
        padded = super()._padded_attentions(attentions, packed, inputs, memory)
        return padded if "target_mapping" not in inputs.extras else tuple(zip(padded[::2], padded[1::2], strict=True))


def _halves(relations: Relations, sequences: int, longest: int, memory: int) -> tuple[Half, Half]:
    """The sequences that run forwards and those that run backwards, for which distances have the other sign."""
    if sequences % 2 or sequences * (memory + longest) != int(relations.cu_seqlens_k[-1]):
        raise ValueError(
            f"config: bi_data is true, for batches of an even number of sequences of one length, but input_ids has "
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


def _note(trace: Trace, content: Any, queries: Any) -> None:
    for stream in (content, queries):
        if stream is not None:
            trace.hidden(stream)


def _mask(visible: np.ndarray | None, itself: np.ndarray | None) -> Any:
    """Which keys queries see, and themselves, as attention takes it; None if that is all."""
    if visible is None:
        return None
    mask = visible if itself is None else visible | itself
    return None if mask.all() else kernels.to_backend(mask[:, None])


def _numbers(name: str, values: Any, shape: Iterable[int | None]) -> np.ndarray:
    """`values` as an array of numbers of this shape, in host memory; None stands for any size."""
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
