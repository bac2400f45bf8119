"""What users hand to a model, checked and packed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.models.encoder import EncoderInput
from bertcore.models.spec import EncoderSpec
from bertcore.nn.packing import PackedBatch


def integer_batch(name: str, values: Any, axes: tuple[str, ...] = ("sequences", "length")) -> np.ndarray:
    """`values` (lists, or a NumPy or CuPy array) as an integer array with these axes in host memory."""
    array = _host_array(name, values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {array.dtype}, expected integers")
    if isinstance(values, list | tuple):
        _check_no_flags(name, values)
    if array.ndim < len(axes) and array.size == 0:
        array = array.reshape(*array.shape[:-1], *[0] * (len(axes) + 1 - array.ndim))
    if array.ndim != len(axes):
        raise ValueError(f"{name} has shape {array.shape}, expected ({', '.join(axes)})")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _host_array(name: str, values: Any) -> np.ndarray:
    if isinstance(values, list | tuple):
        _check_rectangular(name, values)
        try:
            return np.array(values, dtype=np.int64 if len(values) == 0 or len(values[0]) == 0 else None)
        except ValueError as error:  # lists of different lengths further in
            raise ValueError(f"{name} is no (sequences, length) table of integers: {error}") from error
    if kernels.array_module(values) is not np:
        return values.get()
    array = np.asarray(values)
    if array.dtype == object and not isinstance(values, np.ndarray):  # None, a generator, a set: NumPy takes anything
        raise TypeError(f"{name} is {type(values).__name__}, expected (sequences, length): lists or an array")
    return array


def _check_no_flags(name: str, rows: Any) -> None:
    """Among integers NumPy counts a Boolean as 0 or 1, without a word."""
    for index, row in enumerate(rows):
        if _holds_flags(row):
            raise TypeError(f"{name}[{index}] holds bool, expected integers")


def _holds_flags(row: Any) -> bool:
    if hasattr(row, "dtype"):
        return row.dtype == bool
    return not {bool, np.bool_}.isdisjoint(map(type, row))


def _check_rectangular(name: str, rows: Any) -> None:
    for index, row in enumerate(rows):
        if not hasattr(row, "__len__") or isinstance(row, str):
            raise ValueError(f"{name}[{index}] is {row!r}, expected a list of integers: {name} is a list of sequences")
        if len(row) != len(rows[0]):
            raise ValueError(
                f"{name} is ragged: {name}[0] has {len(rows[0])} entries, {name}[{index}] has {len(row)}; "
                "pad them to one length (tokenizer(texts, padding=True)) and give an attention_mask"
            )


def pack(
    spec: EncoderSpec,
    input_ids: Any,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    position_ids: Any = None,
    *,
    keep_padding: bool = False,
) -> tuple[PackedBatch, EncoderInput]:
    """Check a batch against the spec and strip its padding; the arrays go to the memory of the backend in force.

    Where distances between columns matter (spec.is_relative), padding within a sequence stays as tokens that nothing
    sees; with `keep_padding` all padding does.
    """
    ids = integer_batch("input_ids", input_ids)
    mask, types = mask_and_types(ids, attention_mask, token_type_ids)
    kept = np.ones_like(mask) if keep_padding else _without_holes(mask) if spec.is_relative else mask
    packed = PackedBatch(kept, mask, keeps_padding=keep_padding)
    if position_ids is not None:
        positions = like("input_ids", ids, "position_ids", position_ids)
        if spec.max_positions:
            check_range("position_ids", positions, kept, spec.max_positions, "positions")
        positions = packed.strip(positions)
    else:
        positions = _positions(spec, ids, packed)
    check_range("input_ids", ids, kept, spec.vocab_size, "words")
    rows, what = (spec.vocab_size, "words") if spec.words_as_types else (spec.type_vocab_size, "token types")
    if rows:
        check_range("token_type_ids", types, kept, rows, what)
    ends = packed.first_tokens(), packed.last_tokens()
    types = None if spec.words_as_types and token_type_ids is None else packed.strip(types)
    arrays = (packed.strip(ids), types, positions, packed.cu_seqlens, *ends, packed.key_mask())
    return packed, EncoderInput(*(None if array is None else kernels.to_backend(array) for array in arrays))


def _without_holes(mask: np.ndarray) -> np.ndarray:
    """True from the first to the last real token of each sequence."""
    return np.logical_or.accumulate(mask, 1) & np.logical_or.accumulate(mask[:, ::-1], 1)[:, ::-1]


def _positions(spec: EncoderSpec, ids: np.ndarray, packed: PackedBatch) -> np.ndarray:
    """The position of each packed token, counted as the family does."""
    positions = packed.position_ids
    if spec.positions_after_padding:
        words = (ids != spec.pad_token_id) & packed.is_real
        positions = packed.strip(words * (words.cumsum(axis=1) + spec.position_offset - 1))
        positions = np.where(packed.strip(words), positions, spec.pad_token_id).astype(np.int32)
    if spec.max_positions and positions.max(initial=0) >= spec.max_positions:
        sequence = np.searchsorted(packed.cu_seqlens, positions.argmax(), side="right") - 1
        raise _too_long(sequence, positions.max() + 1 - spec.position_offset, spec)
    return positions


def pack_sequences(spec: EncoderSpec, input_ids: Sequence[Any]) -> tuple[EncoderInput, np.ndarray]:
    """Check sequences of ids (lists or 1-D integer arrays, of any lengths) and join them; no padding is ever made.

    Returns the encoder's input, in the memory of the backend in force, and the offsets of the sequences in host memory.
    """
    rows = [_ids(index, sequence) for index, sequence in enumerate(input_ids)]
    lengths = np.array([row.size for row in rows], np.int64)
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids = np.concatenate([np.zeros(0, np.int64), *rows])
    positions = (np.arange(ids.size) - np.repeat(cu_seqlens[:-1], lengths)).astype(np.int32)
    if spec.longest_sequence and lengths.max(initial=0) > spec.longest_sequence:
        raise _too_long(lengths.argmax(), lengths.max(), spec)
    wrong = np.flatnonzero((ids < 0) | (ids >= spec.vocab_size))
    if wrong.size:
        index = np.searchsorted(cu_seqlens, wrong[0], side="right") - 1
        raise ValueError(
            f"input_ids[{index}][{positions[wrong[0]]}] is {ids[wrong[0]]}, expected 0 to {spec.vocab_size - 1}: "
            f"the model has {spec.vocab_size} words"
        )
    if spec.positions_after_padding:
        words = ids != spec.pad_token_id
        before = np.concatenate([[0], np.cumsum(words)])
        positions = before[1:] - np.repeat(before[cu_seqlens[:-1]], lengths) + spec.position_offset - 1
        positions = np.where(words, positions, spec.pad_token_id).astype(np.int32)
    first_tokens, last_tokens = cu_seqlens[:-1][lengths > 0], cu_seqlens[1:][lengths > 0] - 1
    types = None if spec.words_as_types else np.zeros_like(ids)
    arrays = (ids, types, positions, cu_seqlens, first_tokens, last_tokens)
    return EncoderInput(*(None if array is None else kernels.to_backend(array) for array in arrays)), cu_seqlens


def _ids(index: int, sequence: Any) -> np.ndarray:
    array = np.asarray(sequence)
    if array.dtype == object and not isinstance(sequence, np.ndarray | list | tuple):
        raise ValueError(f"input_ids[{index}] is {type(sequence).__name__}, expected a list of integers or an array")
    if isinstance(sequence, list | tuple) and _holds_flags(sequence):
        raise ValueError(f"input_ids[{index}] holds bool, expected integers")
    if array.shape == (0,):  # an empty list is floating point to NumPy
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"input_ids[{index}] is {array.dtype} of shape {array.shape}, expected integers, (tokens,)")
    return array.astype(np.int64, copy=False)  # joined, uint64 and int64 would become floating point


def _too_long(sequence: int, tokens: int, spec: EncoderSpec) -> ValueError:
    return ValueError(
        f"input_ids[{sequence}] has {tokens} tokens, the model has {spec.longest_sequence} positions: "
        "truncate it (tokenizer(texts, truncation=True))"
    )


def like(ids_name: str, ids: np.ndarray, name: str, values: Any) -> np.ndarray:
    """`values` as an integer array of the shape of `ids`."""
    array = integer_batch(name, values)
    if array.shape != ids.shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {ids.shape} as {ids_name} has")
    return array


def mask_and_types(
    ids: np.ndarray, attention_mask: Any, token_type_ids: Any, *, kind: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Which of the `ids` are real, Booleans, and their token types: all and 0 by default.

    `kind` is "entity_" for entities: so the names of their inputs begin.
    """
    mask, types, ids_name = np.ones(ids.shape, bool), np.zeros(ids.shape, np.int64), f"{kind or 'input_'}ids"
    if attention_mask is not None:
        mask = mask_like(ids_name, ids, f"{kind}attention_mask", attention_mask)
    if token_type_ids is not None:
        types = like(ids_name, ids, f"{kind}token_type_ids", token_type_ids)
    return mask, types


def mask_like(ids_name: str, ids: np.ndarray, name: str, values: Any) -> np.ndarray:
    """`values`, integers, Booleans or floating-point numbers of 0 and 1, as Booleans of the shape of `ids`."""
    mask = _host_array(name, values)
    if mask.dtype.kind == "b" or (mask.dtype.kind == "f" and np.isin(mask, (0, 1)).all()):  # 0.0 and 1.0 are common
        mask = mask.astype(np.int64)
    mask = like(ids_name, ids, name, mask)
    wrong = np.argwhere((mask != 0) & (mask != 1))
    if len(wrong):
        where = tuple(wrong[0])
        raise ValueError(f"{name}[{where[0]}, {where[1]}] is {mask[where]}, expected 0 or 1")
    return mask.astype(bool)


def check_range(name: str, values: np.ndarray, mask: np.ndarray, size: int, what: str) -> None:
    """Values of real tokens lie in [0, size); what stands under padding does not matter."""
    wrong = np.argwhere(mask & ((values < 0) | (values >= size)))
    if len(wrong):
        where = tuple(wrong[0])
        raise ValueError(
            f"{name}[{', '.join(map(str, where))}] is {values[where]}, expected 0 to {size - 1}: "
            f"the model has {size} {what}"
        )
