"""The inputs of a model, checked and packed."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import ArrayLike, NativeArray
from bertcore.models.spec import MOST_POSITIONS
from bertcore.nn.packing import FEWEST_TOKENS, IntegerBuffer, PackedBatch, capacity_for
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass

INTEGERS = ("input_ids", "token_type_ids", "position_ids", "cu_seqlens", "first_tokens", "last_tokens")


class Bounds(NamedTuple):
    """Facts known on the host that hold for every batch a captured pass is replayed with."""

    longest: int  # the most tokens of a sequence
    has_types: bool = True  # whether token types other than 0 may occur


@dataclass
class EncoderInput:
    """The packed tokens of a batch, in the memory of the backend in force; families derive from it for more inputs."""

    input_ids: Any  # integers, (tokens,)
    token_type_ids: Any  # integers, (tokens,); None if none are added
    # integers, (tokens,); None in a family without a position table if they count from each sequence's start
    position_ids: Any
    cu_seqlens: NativeArray  # int32 offsets, (sequences + 1,)
    # the packed indices of the first and last token of each non-empty sequence
    first_tokens: Any
    last_tokens: Any
    # booleans, (sequences, 1, 1, longest), False for tokens that no token attends to; None if there are no such tokens
    key_mask: Any = None
    packed: PackedBatch | None = None  # the layout of the batch; None if texts came without padding
    on_gpu: IntegerBuffer | None = None  # the integers again, in one array on the GPU; None if they are in host memory
    before_upload: EncoderInput | None = None  # the value of `on_host` if the arrays are on the GPU

    @property
    def on_host(self) -> EncoderInput:
        """The same batch in host memory, for decisions made there: reading from the GPU would wait for it."""
        return self if self.before_upload is None else self.before_upload

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return int(np.diff(self.on_host.cu_seqlens).max(initial=0))

    @property
    def tokens(self) -> int:
        """The number of tokens that pass the layers."""
        return len(self.input_ids)

    @property
    def is_plain(self) -> bool:
        """True without masks and without family-specific inputs that the host reads."""
        return self.key_mask is None

    @property
    def capacity(self) -> int:
        """The number of tokens for which the layers on the GPU have capacity."""
        return dict(self.on_gpu.capacities)["input_ids"]

    def bounds(self, reads: Collection[str]) -> Bounds:
        """Return the facts shared by batches like this one; `reads` is `Adapter.reads_on_host`."""
        longest = capacity_for(self.longest, FEWEST_TOKENS) if "longest" in reads else self.capacity
        types = self.on_host.token_type_ids
        has_types = "token_type_ids" not in reads or (types is not None and bool(types.any()))
        return Bounds(longest, has_types)

    def with_capacity(self, integers: NativeArray, bounds: Bounds) -> EncoderInput:
        """Return the batch of `integers`, laid out as `on_gpu`, with all tokens and sequences of the capacity.

        In inference, tokens behind the last sequence belong to no sequence. On the host, which does not know such a
        batch's content, it counts as one sequence of the greatest possible length.
        """
        offsets, types = np.array([0, bounds.longest], np.int32), np.array([bounds.has_types])
        on_host = EncoderInput(None, types, None, offsets, None, None)
        return self._with(self.on_gpu.with_capacity(integers), packed=None, on_gpu=None, before_upload=on_host)

    def groups(self, tokens: int) -> list[EncoderInput]:
        """Return the same sequences in groups of about `tokens` tokens (more only if one sequence has more)."""
        total = int(self.cu_seqlens[-1])
        count = round(total / tokens)
        if count < 2:
            return [self]
        even = [total * group // count for group in range(count + 1)]
        cuts = np.unique(np.searchsorted(self.cu_seqlens, even))
        return [self._sequences(first, last) for first, last in itertools.pairwise(cuts)]

    def _sequences(self, first: int, last: int) -> EncoderInput:
        offsets = self.cu_seqlens[first : last + 1]
        start, stop = offsets[0], offsets[-1]
        arrays = self.input_ids, self.token_type_ids, self.position_ids
        tokens = (None if array is None else array[start:stop] for array in arrays)
        inside = (self.first_tokens >= start) & (self.first_tokens < stop)
        ends = (array[inside] - start for array in (self.first_tokens, self.last_tokens))
        return EncoderInput(*tokens, offsets - start, *ends)

    def to_backend(self, run: Pass) -> EncoderInput:
        """Move the batch from host memory to the backend's memory; all integers go to a GPU in one copy."""
        if not run.on_gpu:
            return self
        buffer = self._buffer(run)
        mask = None if self.key_mask is None else run.to_backend(self.key_mask)
        return self._with(buffer.views(), key_mask=mask, on_gpu=buffer, before_upload=self)

    def _buffer(self, run: Pass) -> IntegerBuffer:
        return IntegerBuffer.of(run, {name: getattr(self, name) for name in INTEGERS}, len(self.cu_seqlens) - 1)

    def _with(self, integers: Mapping[str, Any], **others: Any) -> Self:
        """Return the batch with these integers, by their names in the buffer."""
        return replace(self, **integers, **others)


def integer_batch(name: str, values: ArrayLike, axes: tuple[str, ...] = ("sequences", "length")) -> np.ndarray:
    """Return `values` (lists, or a NumPy or CuPy array) as an integer array with these axes in host memory."""
    array = _host_array(name, values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype}, expected integers")
    for index, row in enumerate(values if isinstance(values, list | tuple) else ()):
        if _holds_flags(row):  # NumPy silently reads Booleans among integers as 0 or 1
            raise TypeError(f"{name}[{index}] holds bool, expected integers")
    if array.ndim < len(axes) and array.size == 0:
        array = array.reshape(*array.shape[:-1], *[0] * (len(axes) + 1 - array.ndim))
    if array.ndim != len(axes):
        raise ValueError(f"{name} has shape {array.shape}, expected ({', '.join(axes)})")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _host_array(name: str, values: ArrayLike) -> np.ndarray:
    if isinstance(values, list | tuple):
        _check_rectangular(name, values)
        try:
            return np.array(values, dtype=np.int64 if len(values) == 0 or len(values[0]) == 0 else None)
        except ValueError as error:  # lists of different lengths further in
            raise ValueError(f"{name} is not a table of integers, expected (sequences, length): {error}") from error
    if kernels.array_module(values) is not np:
        return kernels.to_host(values)
    array = np.asarray(values)
    if (array.dtype == object or not array.ndim) and not isinstance(values, np.ndarray):  # NumPy accepts anything
        raise TypeError(f"{name} is {type(values).__name__}, expected (sequences, length): lists or an array")
    return array


def _holds_flags(row: Any) -> bool:
    if hasattr(row, "dtype"):
        return row.dtype == bool
    return not {bool, np.bool_}.isdisjoint(map(type, row))


def _check_rectangular(name: str, rows: Sequence[Any]) -> None:
    for index, row in enumerate(rows):
        if not hasattr(row, "__len__") or isinstance(row, str):
            raise TypeError(f"{name}[{index}] is {row!r}, expected a list of integers: {name} is a list of sequences")
        if len(row) != len(rows[0]):
            raise ValueError(
                f"{name} is ragged: {name}[0] has {len(rows[0])} entries, {name}[{index}] has {len(row)}; "
                "pad them to one length (tokenizer(texts, padding=True)) and give an attention_mask"
            )


def pack(
    spec: EncoderSpec,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None = None,
    token_type_ids: ArrayLike | None = None,
    position_ids: ArrayLike | None = None,
    *,
    keep_padding: bool = False,
) -> EncoderInput:
    """Check a batch against the spec and strip its padding; the arrays stay in host memory (`to_backend`).

    Where distances between columns matter (spec.is_relative), padding within a sequence stays, as tokens that no token
    attends to; with `keep_padding` all padding stays.
    """
    ids = integer_batch("input_ids", input_ids)
    mask, types = mask_and_types(ids, attention_mask, token_type_ids)
    kept = np.ones_like(mask) if keep_padding else mask
    if spec.is_relative and not keep_padding:  # everything from the first to the last real token of each sequence
        kept = np.logical_or.accumulate(mask, 1) & np.logical_or.accumulate(mask[:, ::-1], 1)[:, ::-1]
    packed = PackedBatch(kept, mask, keeps_padding=keep_padding)
    words = packed.strip(ids)
    if position_ids is not None:
        positions = like("input_ids", ids, "position_ids", position_ids)
        check_range("position_ids", positions, kept, spec.max_positions or MOST_POSITIONS, "positions")
        positions = packed.strip(positions)
    elif keep_padding and not spec.max_positions:
        positions = None  # all columns are kept, and distances between them count, as in transformers
    else:
        positions = _positions(spec, words, packed.strip(mask), packed.cu_seqlens, packed.position_ids)
    check_range("input_ids", ids, kept, spec.vocab_size, "words")
    rows, what = (spec.vocab_size, "words") if spec.words_as_types else (spec.type_vocab_size, "token types")
    if rows:
        check_range("token_type_ids", types, kept, rows, what)
    types = None if spec.words_as_types and token_type_ids is None else packed.strip(types)
    ends = packed.first_tokens(), packed.last_tokens()
    return EncoderInput(words, types, positions, packed.cu_seqlens, *ends, packed.key_mask(), packed)


def places(cu_seqlens: np.ndarray) -> np.ndarray:
    """Return the index of each packed token within its sequence, int32."""
    if len(cu_seqlens) == 2:  # one text: here the overhead of NumPy's calls matters
        return np.arange(cu_seqlens[1], dtype=np.int32)
    return (np.arange(cu_seqlens[-1]) - np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))).astype(np.int32)


def _positions(
    spec: EncoderSpec, ids: np.ndarray, is_real: np.ndarray | bool, cu_seqlens: np.ndarray, columns: np.ndarray
) -> np.ndarray | None:
    """Return the position of each packed token, counted as in the family; `columns` count from the first real token.

    `is_real` is (tokens,), or True for all. Returns None in a family without a position table if tokens are contiguous.
    """
    positions = columns
    if spec.positions_after_padding:
        words = (ids != spec.pad_token_id) & is_real
        before = np.concatenate([[0], np.cumsum(words)])
        counted = before[1:] - np.repeat(before[cu_seqlens[:-1]], np.diff(cu_seqlens)) + spec.position_offset - 1
        positions = np.where(words, counted, spec.pad_token_id).astype(np.int32)
    if not spec.max_positions:
        return None if (positions == places(cu_seqlens)).all() else positions
    if positions.max(initial=0) >= spec.max_positions:
        sequence = np.searchsorted(cu_seqlens, positions.argmax(), side="right") - 1
        raise _too_long(sequence, positions.max() + 1 - spec.position_offset, spec)
    return positions


def pack_sequences(
    run: Pass, spec: EncoderSpec, input_ids: Sequence[Any], seen: Sequence[Any] | None = None
) -> tuple[EncoderInput, np.ndarray]:
    """Check sequences of ids (lists or 1-D integer arrays, of any lengths) and join them without padding.

    `seen` are booleans of the same lengths: a token with False is computed, but no token attends to it.

    Returns the encoder's input, in the memory of the backend in force, and the offsets of the sequences in host memory.
    """
    if not isinstance(input_ids, list) and (isinstance(input_ids, str | bytes | Mapping) or not np.iterable(input_ids)):
        raise TypeError(f"input_ids is {type(input_ids).__name__}, expected a list of sequences of integers")
    rows = [_ids(index, sequence) for index, sequence in enumerate(input_ids)]
    lengths = [len(row) for row in rows]
    cu_seqlens = np.array([0, *itertools.accumulate(lengths)], np.int32)
    ids, columns = np.concatenate(rows) if rows else np.zeros(0, np.int64), places(cu_seqlens)
    longest = max(lengths, default=0)
    if spec.max_positions and longest > spec.longest_sequence:
        raise _too_long(lengths.index(longest), longest, spec)
    if ids.view(np.uint64).max(initial=0) >= spec.vocab_size:  # as an unsigned number, a negative id is large
        wrong = np.flatnonzero((ids < 0) | (ids >= spec.vocab_size))
        index = np.searchsorted(cu_seqlens, wrong[0], side="right") - 1
        raise ValueError(
            f"input_ids[{index}][{columns[wrong[0]]}] is {ids[wrong[0]]}, expected 0 to {spec.vocab_size - 1}: "
            f"the model has {spec.vocab_size} words"
        )
    positions = columns if spec.max_positions else None
    if spec.positions_after_padding:
        positions = _positions(spec, ids, True, cu_seqlens, columns)
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
    has_tokens = ends > starts
    first_tokens, last_tokens = starts[has_tokens], ends[has_tokens] - 1
    types = None if spec.words_as_types else np.zeros(ids.shape, ids.dtype)
    inputs = EncoderInput(ids, types, positions, cu_seqlens, first_tokens, last_tokens)
    if seen is not None:
        inputs.packed = _with_unseen(seen, np.array(lengths, np.int64))
        inputs.key_mask = inputs.packed.key_mask()
    return inputs.to_backend(run), cu_seqlens


def _with_unseen(seen: Sequence[Any], lengths: np.ndarray) -> PackedBatch:
    """Return the layout of sequences in which no token attends to some tokens."""
    rows = [np.asarray(row) for row in seen]
    if [row.shape for row in rows] != [(length,) for length in lengths] or any(row.dtype != bool for row in rows):
        raise ValueError(f"seen does not have rows of {lengths.tolist()} booleans, expected one for each token")
    stays = np.arange(lengths.max(initial=0)) < lengths[:, None]
    is_real = np.zeros_like(stays)
    is_real[stays] = np.concatenate([np.zeros(0, bool), *rows])
    return PackedBatch(stays, is_real, keeps_padding=True)


def _ids(index: int, sequence: ArrayLike) -> np.ndarray:
    array = np.asarray(sequence)
    if array.dtype == object and not isinstance(sequence, np.ndarray | list | tuple):
        raise TypeError(f"input_ids[{index}] is {type(sequence).__name__}, expected a list of integers or an array")
    if isinstance(sequence, list | tuple) and _holds_flags(sequence):
        raise TypeError(f"input_ids[{index}] holds bool, expected integers")
    if array.shape == (0,):  # NumPy makes an empty list floating point
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        error = ValueError if array.dtype.kind in "iu" and array.ndim else TypeError
        raise error(f"input_ids[{index}] is {array.dtype} of shape {array.shape}, expected integers, (tokens,)")
    return array.astype(np.int64, copy=False)  # joined, uint64 and int64 would become floating point


def _too_long(sequence: int, tokens: int, spec: EncoderSpec) -> ValueError:
    return ValueError(
        f"input_ids[{sequence}] has {tokens} tokens, the model has {spec.longest_sequence} positions: "
        "truncate it (tokenizer(texts, truncation=True))"
    )


def like(ids_name: str, ids: np.ndarray, name: str, values: ArrayLike) -> np.ndarray:
    """Return `values` as an integer array of the shape of `ids`."""
    array = integer_batch(name, values)
    if array.shape != ids.shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {ids.shape} as {ids_name} has")
    return array


def mask_and_types(
    ids: np.ndarray, attention_mask: ArrayLike | None, token_type_ids: ArrayLike | None, *, kind: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Return a Boolean mask of the real `ids`, and the token types: by default all are real, and types are 0.

    `kind` is "entity_" for entities, the prefix of their inputs' names.
    """
    mask, types, ids_name = np.ones(ids.shape, bool), np.zeros(ids.shape, np.int64), f"{kind or 'input_'}ids"
    if attention_mask is not None:
        mask = mask_like(ids_name, ids, f"{kind}attention_mask", attention_mask)
    if token_type_ids is not None:
        types = like(ids_name, ids, f"{kind}token_type_ids", token_type_ids)
    return mask, types


def mask_like(ids_name: str, ids: np.ndarray, name: str, values: ArrayLike) -> np.ndarray:
    """Return `values` (integers, Booleans, or floating-point 0 and 1) as Booleans of the shape of `ids`."""
    mask = _host_array(name, values)
    if mask.dtype.kind == "b" or (mask.dtype.kind == "f" and np.isin(mask, (0, 1)).all()):  # 0.0 and 1.0 are common
        mask = mask.astype(np.int64)
    mask = like(ids_name, ids, name, mask)
    refuse_where((mask != 0) & (mask != 1), name, mask, "0 or 1")
    return mask.astype(bool)


def check_range(name: str, values: np.ndarray, mask: np.ndarray, size: int, what: str) -> None:
    """Raise ValueError if the value of a real token is not in [0, size); padding may hold anything."""
    wrong = mask & ((values < 0) | (values >= size))
    if wrong.any():  # here, since a call for each array of a batch takes time
        refuse_where(wrong, name, values, f"0 to {size - 1}: the model has {size} {what}")


def refuse_where(wrong: np.ndarray, name: str, values: np.ndarray, expected: str) -> None:
    """Raise ValueError for the first of `values` that is wrong."""
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0])
        raise ValueError(f"{name}[{', '.join(map(str, where))}] is {values[where]}, expected {expected}")
