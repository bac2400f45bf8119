"""The adapter of models with a memory of the previous segment (Dai et al. 2019, arXiv:1901.02860, section 3.2)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.families.transfo_xl.blocks import PassPositions, PositionBiases, SharedBiasesContext, sinusoids
from bertcore.kernels.arrays import NativeArray
from bertcore.models.adapter import Adapter, Encoded
from bertcore.models.inputs import EncoderInput
from bertcore.nn.layers import drop
from bertcore.nn.packing import PackedBatch
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of

RANGE_STEP = 32  # the range of distances is rounded to multiples of this
# Bytes of cached position keys; computing those of 128 distances takes a sixth of XLNet-base's time. This holds 1820 of
# its distances, 36 KB each, and fewer of a deeper or wider model. The keys of the last call are kept even if they are
# larger: that call had the memory, and the next one is likely to have the same lengths.
MOST_KEPT = 64 << 20
MOST_TABLES = 8  # cached encodings of distances


@dataclass
class RecurrentInput(EncoderInput):
    """A batch with the inputs of recurrent models."""

    mems: list[Any] | None = None  # the memory of each layer, (sequences * memory, hidden) each, or None
    returns_memory: bool = False  # whether the call returns the memory for the next segment
    # the keys that each query may attend to, booleans (sequences, length or 1, length) in host memory, or None
    visible: np.ndarray | None = None

    @property
    def is_plain(self) -> bool:
        return super().is_plain and self.mems is None and self.visible is None


class RecurrentAdapter(Adapter):
    """The adapter of XLNet and Transformer-XL: memories in and out, distances, and attention masks.

    A memory is, for each layer, its inputs at the previous tokens, (memory, sequences, hidden). All queries
    attend to all of it, and no gradient flows into it. If the call has a memory, padding is kept as tokens, so that all
    sequences have the same length.

    The spec's details have memory_length (None for all), reuse_length (the number of a segment's first tokens that are
    remembered, 0 for all), clamp_length (0 for no clamping), same_length, and whether memories are returned
    (returns_memory, or trains_with_memory while a tape records).
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        if spec.hidden_size % 2:
            raise ValueError(f"config: d_model is {spec.hidden_size}, expected an even number (sines and cosines)")
        super().__init__(names, spec)
        self.position_keys: dict[tuple, dict] = {}
        self._tables: dict[tuple, Any] = {}

    def pack(
        self, run: Pass, *given: Any, keep_padding: bool = False, mems: Any = None, use_mems: bool | None = None
    ) -> RecurrentInput:
        """Check and pack a call; padding is kept if it has a memory or requests one, which then includes padding."""
        if use_mems not in (None, True, False):
            raise ValueError(f"use_mems is {use_mems!r}, expected True, False or None")
        keeps = keep_padding or mems is not None or use_mems is True
        inputs = RecurrentInput(**vars(super().pack(run, *given, keep_padding=keeps)))
        details, packed = self.spec.details, inputs.packed
        if mems is not None:
            inputs.mems = self._checked_memory(run, mems, packed.shape[0])
        if use_mems is None:
            use_mems = details.returns_memory if run.tape is None else details.trains_with_memory
        inputs.returns_memory = use_mems
        if packed.keeps_padding and not packed.is_real.all():
            inputs.visible = packed.is_real[:, None, :]
        return inputs

    def _checked_memory(self, run: Pass, mems: Sequence[NativeArray] | NativeArray, sequences: int) -> list[Any]:
        if not isinstance(mems, Sequence) and not hasattr(mems, "shape"):
            raise TypeError(f"mems is {type(mems).__name__}, expected an array for each layer")
        if len(mems) != self.spec.num_layers:
            raise ValueError(f"mems has {len(mems)} entries, expected {self.spec.num_layers}, one for each layer")
        arrays = [array if hasattr(array, "shape") else np.asarray(array) for array in mems]
        for index, array in enumerate(arrays):
            expected = (arrays[0].shape[0] if arrays[0].ndim else 0, sequences, self.spec.hidden_size)
            if array.shape != expected:
                raise ValueError(f"mems[{index}] has shape {array.shape}, expected {expected}")
            if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
                raise TypeError(f"mems[{index}] holds {array.dtype}, expected floating-point numbers")
        return [run.to_backend(array.transpose(1, 0, 2).reshape(-1, array.shape[2])) for array in arrays]

    def reads_on_host(self, run: Pass) -> Collection[str]:
        """Return both facts: distances depend on the longest sequence, XLNet's segment scores on the token types."""
        return "longest", "token_type_ids"

    # --- positions and masks ---------------------------------------------------------------------------

    def _memories(self, inputs: EncoderInput, hidden: Tensor) -> list[Any]:
        """Return each layer's memory in the dtype of the hidden states, or None."""
        mems = getattr(inputs, "mems", None)  # sequences given without padding are a plain EncoderInput
        if mems is None or not mems[0].shape[0]:
            return [None] * self.spec.num_layers
        return [array.astype(value_of(hidden).dtype, copy=False) for array in mems]

    def _relations(self, run: Pass, inputs: EncoderInput, hidden: Tensor,
                   memory: NativeArray | None) -> tuple[PassPositions, int, int]:  # fmt: skip
        """Return the layers' relations, and the lengths of the longest sequence and of the memory."""
        sequences = len(inputs.cu_seqlens) - 1
        longest = inputs.longest
        before = 0 if memory is None else memory.shape[0] // sequences
        xp, dtype = kernels.array_module(inputs.cu_seqlens), str(value_of(hidden).dtype)
        first, last, distance_rows = self._distances(xp, longest, before)
        key = first, last, dtype, run.place
        table = self._tables.get(key)  # in the backend's memory
        if table is None:
            while len(self._tables) >= MOST_TABLES:
                self._tables.pop(next(iter(list(self._tables))), None)
            table = self._tables[key] = run.to_backend(sinusoids(first, last, self.spec.hidden_size, dtype))
        dropped = drop(run, table, self.spec.embedding_dropout)
        relations = PassPositions(dropped, distance_rows, inputs.cu_seqlens, before_dropout=table)
        if run.is_inference:
            width = self.spec.num_layers * self.spec.layers[0].attention_size
            nbytes = len(table) * width * table.dtype.itemsize
            relations.position_keys = self._cached_position_keys((*key, nbytes))
        if before:
            keys = np.arange(sequences * (before + longest)).reshape(sequences, -1)
            order = np.empty_like(keys)
            order[:, :before] = np.arange(sequences * before).reshape(sequences, -1)
            order[:, before:] = np.arange(sequences * before, keys.size).reshape(sequences, -1)
            relations.key_rows = run.to_backend(order.reshape(-1))
            relations.query_rows = run.to_backend(np.ascontiguousarray(keys[:, before:]).reshape(-1))
            offsets = np.arange(sequences + 1, dtype=np.int32) * (before + longest)
            relations.cu_seqlens_k = run.to_backend(offsets.astype(np.int32))
        return relations, longest, before

    def _distances(self, xp: ModuleType, longest: int, memory: int) -> tuple[int, int, Any]:
        """Return the lowest and the highest encoded distance, and the row of each distance, an array of `xp`."""
        details = self.spec.details
        highest = max(longest + memory - 1, 0)
        lowest = 0 if self.spec.layers[0].is_causal else min(1 - longest, 0)
        lowest = -highest if self.needs_whole_batch else lowest  # of sequences that run backwards
        first, last = (distance // RANGE_STEP * RANGE_STEP for distance in (lowest, highest))
        last += RANGE_STEP - 1
        if details.clamp_length > 0:
            first, last = max(first, -details.clamp_length), min(last, details.clamp_length)
        rows = xp.clip(xp.arange(-highest, highest + 1), first, last) - first
        return first, last, rows.astype(np.int32)

    def _cached_position_keys(self, distances: tuple) -> dict:
        """Return the cache of the layers' position keys; the last entry of `distances` is its size in bytes."""
        kept = self.position_keys
        if distances not in kept:
            most = MOST_KEPT - distances[-1]
            while kept and sum(nbytes for *_, nbytes in list(kept)) > most:
                kept.pop(next(iter(list(kept))), None)
            kept[distances] = {}
        return kept.get(distances, {})

    def _given_mask(self, inputs: EncoderInput, memory: int) -> np.ndarray | None:
        """Return the keys that a call's masks let each query attend to; None for all.

        The shape is (sequences, longest or 1, memory + longest).
        """
        visible = getattr(inputs, "visible", None)
        if visible is None and inputs.key_mask is not None:
            visible = inputs.on_host.key_mask[:, 0]
        if visible is None:
            return None
        return np.concatenate([np.ones((*visible.shape[:2], memory), bool), visible], axis=2)

    def _causal_mask(self, xp: ModuleType, longest: int, memory: int) -> NativeArray:
        """Return the keys that precede each query, (longest, memory + longest), an array of `xp`."""
        ahead = xp.arange(memory + longest) - xp.arange(longest)[:, None]
        causal = ahead <= memory
        return causal & self._within_length(ahead, memory) if self.spec.details.same_length else causal

    def _within_length(self, ahead: np.ndarray, memory: int) -> np.ndarray:
        """Return, for same_length, the keys that are near enough; `ahead` is a key's index minus the query's."""
        raise NotImplementedError

    # --- outputs ---------------------------------------------------------------------------------------

    def request_states(self, run: Pass, inputs: EncoderInput) -> None:
        """Request the layers' inputs, which become the memory of the next segment."""
        if getattr(inputs, "returns_memory", False) and run.trace.states is None:
            run.trace.states = []

    def restore(self, run: Pass, inputs: RecurrentInput, state: Tensor) -> Encoded:
        """Return the outputs, with the next segment's memory as mems: (memory, sequences, hidden) per layer."""
        state = drop(run, state, self.spec.embedding_dropout)
        packed, states, attentions = inputs.packed, run.trace.states, run.trace.attentions
        mems, memory = None, 0
        if inputs.mems is not None and packed.shape[0]:
            memory = inputs.mems[0].shape[0] // packed.shape[0]
        if inputs.returns_memory:
            old = inputs.mems or [None] * self.spec.num_layers
            given = [state[0] if type(state) is tuple else state for state in states[:-1]]
            mems = tuple(self._next_memory(run, each, before, packed) for each, before in zip(given, old, strict=True))
        traced = {
            "mems": mems,
            "hidden_states": self._padded_states(run, states, inputs) if run.trace.shows_states else None,
            "attentions": None if attentions is None else self._padded_attentions(run, attentions, inputs, memory),
        }
        return Encoded(run, packed, inputs, state, traced)

    def _next_memory(self, run: Pass, state: Tensor, before: NativeArray | None, packed: PackedBatch) -> NativeArray:
        """Return a layer's memory, (memory, sequences, hidden), from its input in this call and its previous memory."""
        plain, sequences = value_of(state), packed.shape[0]
        state = plain.reshape(*packed.shape, plain.shape[1]) if packed.is_full else packed.pad(run, plain)
        state = state.transpose(1, 0, 2)[: self.spec.details.reuse_length or None]
        xp = kernels.array_module(state)
        if before is not None and sequences:
            before = before.reshape(sequences, -1, state.shape[2]).transpose(1, 0, 2).astype(state.dtype, copy=False)
            state = xp.concatenate([before, state])
        length = self.spec.details.memory_length
        return xp.ascontiguousarray(state if length is None else state[max(len(state) - length, 0) :])

    def _padded_states(self, run: Pass, states: list, inputs: RecurrentInput) -> tuple[Any, ...]:
        return tuple(inputs.packed.pad(run, state) for state in states)

    def _padded_attentions(self, run: Pass, attentions: list, inputs: RecurrentInput, memory: int) -> tuple[Any, ...]:
        return tuple(inputs.packed.pad_attention(run, probabilities, memory) for probabilities in attentions)


class CausalRecurrentAdapter(RecurrentAdapter):
    """Transformer-XL's adapter: each token attends to the previous ones and the memory.

    Without `mems` there is no memory, as in the paper. (transformers started with mem_len vectors of zeros, which were
    attended to: pass them as `mems` for its results.) With same_length a token attends to mem_len tokens, itself
    included.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        super().__init__(names, spec)
        self.biases = None if spec.details.own_biases else PositionBiases(names, spec)

    def begin(
        self, run: Pass, inputs: EncoderInput, embeddings: Callable[..., Tensor]
    ) -> tuple[Tensor, SharedBiasesContext]:
        hidden = embeddings(run, inputs)
        memories = self._memories(inputs, hidden)
        relations, longest, before = self._relations(run, inputs, hidden, memories[0])
        visible = self._causal_mask(kernels.array_module(inputs.cu_seqlens), longest, before)[None]
        given = self._given_mask(inputs, before)
        if given is not None:
            visible = visible & run.to_backend(given)
        visible = visible[:, None]
        shared = {"relations": relations, "memories": memories, "biases": self.biases}
        return hidden, SharedBiasesContext(inputs.cu_seqlens, visible, **shared)

    def _within_length(self, ahead: np.ndarray, memory: int) -> np.ndarray:
        return memory - ahead < self.spec.details.memory_length
