"""Encoders that also see what they computed for the segment before (Dai et al. 2019, arXiv:1901.02860, section 3.2)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.families.transfo_xl.relative_attention import Relations, sinusoids
from bertcore.models.encoder import Encoder, EncoderInput, Trace
from bertcore.models.registry import Family
from bertcore.models.spec import EncoderSpec
from bertcore.nn.packing import PackedBatch
from bertcore.tape import current_tape, value_of

RANGE_STEP = 32  # distances come in multiples of it
# Bytes of the position keys that are kept, since making those of 128 distances takes a sixth of XLNet-base's time.
# They are those of 1820 of its distances, 36 KB each, and of fewer for a deeper or wider model. What the last call used
# is kept even if it is more by itself: that call had the memory, and the next one is likely to be of its lengths.
MOST_KEPT = 64 << 20


class RecurrentEncoder(Encoder):
    """What XLNet and Transformer-XL share: memories in and out, distances, and who sees whom.

    A memory is, for each layer, the hidden states that it was given for the tokens before, (memory, sequences, hidden);
    all queries see all of it, and no gradient flows into it. With a memory in the call, padding stays as tokens, so
    that all sequences have one length.

    The spec's details tell head_dim, memory_length (None for all), clamp_length (0 for no clamping), is_causal,
    same_length, and whether memories are returned (returns_memory, and trains_with_memory while a tape records).
    """

    def __init__(self, family: Family, spec: EncoderSpec, *, prefix: str, pooler: bool):
        if spec.hidden_size % 2:
            raise ValueError(f"config: d_model is {spec.hidden_size}, expected an even number: of sines and cosines")
        super().__init__(family, spec, prefix=prefix, pooler=pooler)

    def keeps_padding(self, own_inputs: Mapping[str, Any]) -> bool:
        """With a memory all padding stays, and where one is asked for by name, so that it has what padding becomes."""
        return own_inputs.get("mems") is not None or own_inputs.get("use_mems") is True

    def own_inputs(self, packed: PackedBatch, *, mems: Any = None, use_mems: bool | None = None) -> dict[str, Any]:
        """The memory of each layer as (sequences * memory, hidden), and whether to return one."""
        if use_mems not in (None, True, False):
            raise ValueError(f"use_mems is {use_mems!r}, expected True, False or None")
        details, extras = self.spec.details, {}
        if mems is not None:
            extras["mems"] = self._checked_memory(mems, packed.shape[0])
        if use_mems is None:
            use_mems = details.returns_memory if current_tape() is None else details.trains_with_memory
        if use_mems:
            extras["returns_memory"] = True
        if packed.keeps_padding and not packed.is_real.all():
            extras["visible"] = packed.is_real[:, None, :]
        return extras

    def _checked_memory(self, mems: Any, sequences: int) -> list[Any]:
        if not isinstance(mems, Sequence) and not hasattr(mems, "shape"):
            raise TypeError(f"mems is {type(mems).__name__}, expected an array for each layer")
        if len(mems) != self.spec.num_layers:
            raise ValueError(f"mems has {len(mems)} entries, expected {self.spec.num_layers}, one for each layer")
        arrays = [array if hasattr(array, "shape") else np.asarray(array) for array in mems]
        for index, array in enumerate(arrays):
            expected = (arrays[0].shape[0] if arrays[0].ndim else 0, sequences, self.spec.hidden_size)
            if array.shape != expected:
                raise ValueError(
                    f"mems[{index}] has shape {array.shape}, expected {expected}: (memory, sequences, hidden)"
                )
            if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
                raise TypeError(f"mems[{index}] holds {array.dtype}, expected floating-point numbers")
        return [kernels.to_backend(array.transpose(1, 0, 2).reshape(-1, array.shape[2])) for array in arrays]

    # --- who stands where, and sees whom --------------------------------------------------------------

    def _memories(self, inputs: EncoderInput, hidden: Any) -> list[Any]:
        """The memory of each layer in the dtype of the hidden states, or Nones."""
        mems = inputs.extras.get("mems")
        if mems is None or not mems[0].shape[0]:
            return [None] * self.spec.num_layers
        return [array.astype(value_of(hidden).dtype, copy=False) for array in mems]

    def _relations(self, inputs: EncoderInput, hidden: Any, memory: Any) -> tuple[Relations, int, int]:
        """The layers' relations, and the longest sequence and its memory."""
        sequences = len(inputs.cu_seqlens) - 1
        longest = int((inputs.cu_seqlens[1:] - inputs.cu_seqlens[:-1]).max()) if sequences else 0
        before = 0 if memory is None else memory.shape[0] // sequences
        first, last, distance_rows = self._distances(longest, before)
        dtype = str(value_of(hidden).dtype)
        table = kernels.to_backend(sinusoids(first, last, self.spec.hidden_size, dtype))
        relations = Relations(table, kernels.to_backend(distance_rows), inputs.cu_seqlens)
        if current_tape() is None:
            width = self.spec.num_layers * self.spec.num_heads * self.spec.details.head_dim
            nbytes = len(table) * width * table.dtype.itemsize
            relations.position_keys = self._kept_position_keys((first, last, dtype, kernels.get_backend(), nbytes))
        if before:
            keys = np.arange(sequences * (before + longest)).reshape(sequences, -1)
            order = np.empty_like(keys)
            order[:, :before] = np.arange(sequences * before).reshape(sequences, -1)
            order[:, before:] = np.arange(sequences * before, keys.size).reshape(sequences, -1)
            relations.key_rows = kernels.to_backend(order.reshape(-1))
            relations.query_rows = kernels.to_backend(np.ascontiguousarray(keys[:, before:]).reshape(-1))
            offsets = np.arange(sequences + 1, dtype=np.int32) * (before + longest)
            relations.cu_seqlens_k = kernels.to_backend(offsets.astype(np.int32))
        return relations, longest, before

    def _distances(self, longest: int, memory: int) -> tuple[int, int, np.ndarray]:
        """The lowest and the highest distance that are encoded, and the row of each, from the least to the greatest
        that there is. More are encoded, so that lengths that are nearly the same find the same ones."""
        details = self.spec.details
        highest = max(longest + memory - 1, 0)
        first, last = (distance // RANGE_STEP * RANGE_STEP for distance in (self._lowest(longest, highest), highest))
        last += RANGE_STEP - 1
        if details.clamp_length > 0:
            first, last = max(first, -details.clamp_length), min(last, details.clamp_length)
        rows = np.clip(np.arange(-highest, highest + 1), first, last) - first
        return first, last, rows.astype(np.int32)

    def _kept_position_keys(self, distances: tuple) -> dict:
        """What the layers made of the encodings of these distances when they last were the same; the last entry of
        `distances` is the number of bytes of that."""
        kept = self._position_keys
        if distances not in kept:
            most = MOST_KEPT - distances[-1]
            while kept and sum(nbytes for *_, nbytes in list(kept)) > most:
                kept.pop(next(iter(list(kept))), None)
            kept[distances] = {}
        return kept.get(distances, {})

    def forget_recordings(self) -> None:
        """Also of position keys, which depend on parameters, too."""
        super().forget_recordings()
        self._position_keys: dict[tuple, dict] = {}

    def _lowest(self, longest: int, highest: int) -> int:
        """The lowest distance that there is."""
        return 0 if self.spec.details.is_causal else min(1 - longest, 0)

    def _visible(self, inputs: EncoderInput, longest: int, memory: int) -> np.ndarray | None:
        """Which keys each query may see, (sequences or 1, longest, memory + longest) in host memory; None if all."""
        visible = inputs.extras.get("visible")
        if visible is None and inputs.key_mask is not None:
            mask = inputs.key_mask
            visible = (mask if isinstance(mask, np.ndarray) else mask.get())[:, 0]
        if visible is not None:
            columns = np.ones((*visible.shape[:2], memory), bool)
            visible = np.concatenate([columns, visible], axis=2)
        if self.spec.details.is_causal:
            ahead = np.arange(memory + longest) - np.arange(longest)[:, None]
            causal = ahead <= memory
            if self.spec.details.same_length:
                causal &= self._within_length(ahead, memory)
            visible = causal[None] if visible is None else visible & causal
        return visible

    def _within_length(self, ahead: np.ndarray, memory: int) -> np.ndarray:
        """With same_length: which keys are not too far back. `ahead` is a key's place minus the query's number."""
        raise NotImplementedError

    # --- what comes out -------------------------------------------------------------------------------

    def traced(self, packed: PackedBatch, inputs: EncoderInput, trace: Trace) -> dict[str, tuple | None]:
        """Beside hidden states and attentions, the memory for the next segment."""
        states, attentions = trace.hidden_states, trace.attentions
        mems, memory = None, 0
        if "mems" in inputs.extras and packed.shape[0]:
            memory = inputs.extras["mems"][0].shape[0] // packed.shape[0]
        if "layer_inputs" in trace.extras:
            old = inputs.extras.get("mems") or [None] * self.spec.num_layers
            given = trace.extras["layer_inputs"]
            mems = tuple(self._next_memory(state, before, packed) for state, before in zip(given, old, strict=True))
        return {
            "mems": mems,
            "hidden_states": None if states is None else self._padded_states(states, packed, inputs),
            "attentions": None if attentions is None else self._padded_attentions(attentions, packed, inputs, memory),
        }

    def _next_memory(self, state: Any, before: Any, packed: PackedBatch) -> Any:
        """(memory, sequences, hidden) of a layer, from what it was given in this call and the memory before it."""
        plain, sequences = value_of(state), packed.shape[0]
        state = plain.reshape(*packed.shape, plain.shape[1]) if packed.is_full else packed.pad(plain)
        state = self._remembered(state.transpose(1, 0, 2))
        xp = kernels.array_module(state)
        if before is not None and sequences:
            before = before.reshape(sequences, -1, state.shape[2]).transpose(1, 0, 2).astype(state.dtype, copy=False)
            state = xp.concatenate([before, state])
        length = self.spec.details.memory_length
        return xp.ascontiguousarray(state if length is None else state[max(len(state) - length, 0) :])

    def _remembered(self, state: Any) -> Any:
        """What is remembered of (length, sequences, hidden)."""
        return state

    def _padded_states(self, states: list, packed: PackedBatch, inputs: EncoderInput) -> tuple[Any, ...]:
        return tuple(packed.pad(value_of(state)) for state in states)

    def _padded_attentions(
        self, attentions: list, packed: PackedBatch, inputs: EncoderInput, memory: int
    ) -> tuple[Any, ...]:
        return tuple(packed.pad_attention(probabilities, memory) for probabilities in attentions)
