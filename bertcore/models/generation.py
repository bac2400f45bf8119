"""Greedy generation: a causal model continues texts word by word."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.models.adapter import Adapter
from bertcore.models.inputs import EncoderInput, integer_batch, pack, places
from bertcore.models.with_heads import ModelWithHeads
from bertcore.nn.key_value_cache import KeyValueCache
from bertcore.nn.packing import PackedBatch


def generate(
    model: ModelWithHeads,
    input_ids: Any,
    attention_mask: Any = None,
    *,
    max_new_tokens: int = 20,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    do_sample: bool = False,
) -> Any:
    """Append to each sequence the word with the highest score until all have ended, as transformers' generate with
    do_sample=False.

    Keys and values of earlier tokens are kept, so that each step computes the new tokens alone.

    Args:
        model: an AutoModelForCausalLM.
        input_ids: (sequences, length) integers, each with a real token; those of different lengths padded on the left.
            (Padded on the right, a text goes on from its last real token, and the new words stand after the padding.)
        attention_mask: 1 for real tokens, 0 for padding. By default all are real but the call's or the config's
            pad_token_id, unless that is a word that ends texts.
        max_new_tokens: how many words to append at most.
        eos_token_id: the word, or the words, that end a text; by default the config's eos_token_id. With an empty list
            none does.
        pad_token_id: the word for padding; by default the config's pad_token_id.
        do_sample: only False: words are not drawn.

    Returns:
        (sequences, length + new tokens), int64: the ids that were given, and the new ones. What follows the end of a
        text is pad_token_id, or if there is none, the first word that ends texts.

    Raises:
        TypeError: for a model whose tokens see later ones, or whose layers keep no keys and values.
        TypeError, ValueError: which argument is wrong, where, and what was expected; if the model has fewer positions
            than the tokens need.
    """
    _check_family(model)
    if do_sample:
        raise ValueError(f"do_sample is {do_sample!r}, expected False: generation is greedy")
    ends, padding = _ends(model, eos_token_id), _padding(model, pad_token_id)
    ids = integer_batch("input_ids", input_ids)
    if attention_mask is None and padding is not None and padding not in ends:
        attention_mask = ids != padding
    if padding is None:
        padding = ends[0] if ends else 0
    with kernels.use_backend(kernels.resolve_backend(None, on_gpu=kernels.array_module(input_ids) is not np)):
        new = _Greedy(model, ids, attention_mask, _count(max_new_tokens), ends, padding).run()
        return kernels.to_backend(np.concatenate([ids.astype(np.int64), new], axis=1))


def _check_family(model: ModelWithHeads) -> None:
    start = f"models of type {model.family.model_type!r} cannot generate"
    if not all(layer.is_causal for layer in model.spec.layers):
        raise TypeError(f"{start}: their tokens see later ones")
    if model.family.adapter is not Adapter:
        raise TypeError(f"{start}: their layers keep no keys and values of single tokens")


def _ends(model: ModelWithHeads, eos_token_id: Any) -> list[int]:
    if eos_token_id is None:
        eos_token_id = model.config.get("eos_token_id", model.family.end_of_text)
    ends = [] if eos_token_id is None else eos_token_id
    ends = list(ends) if isinstance(ends, Sequence | np.ndarray) else [ends]
    wrong = [end for end in ends if not isinstance(end, int | np.integer) or isinstance(end, bool)]
    if wrong:
        raise TypeError(f"eos_token_id holds {wrong[0]!r}, expected integers")
    wrong = [end for end in ends if not -(2**63) <= end < 2**63]
    if wrong:
        raise ValueError(f"eos_token_id holds {wrong[0]}, expected words")
    return ends


def _padding(model: ModelWithHeads, pad_token_id: Any) -> int | None:
    if pad_token_id is None:
        return model.spec.pad_token_id
    if not isinstance(pad_token_id, int | np.integer) or isinstance(pad_token_id, bool):
        raise TypeError(f"pad_token_id is {pad_token_id!r}, expected an integer")
    return int(pad_token_id)


def _count(max_new_tokens: Any) -> int:
    if not isinstance(max_new_tokens, int | np.integer) or isinstance(max_new_tokens, bool) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens!r}, expected a positive integer")
    return int(max_new_tokens)


class _Greedy:
    """One run of generation."""

    def __init__(
        self, model: ModelWithHeads, ids: np.ndarray, attention_mask: Any, steps: int, ends: list[int], padding: int
    ):
        self._model, self._steps = model, steps
        self._ends, self._padding = np.array(ends, np.int64), padding
        self._packed, self._inputs = _prompts(model, ids, attention_mask, steps)
        self._cache = KeyValueCache(len(ids), int(self._packed.lengths.max(initial=0)) + steps)

    def run(self) -> np.ndarray:
        """The new words, (sequences, steps or less)."""
        going = np.ones(len(self._packed.lengths), bool)
        inputs, counts, columns = self._inputs, self._packed.lengths, []
        while len(columns) < self._steps and going.any():
            words = self._words(inputs, counts)
            column = np.full(len(going), self._padding, np.int64)
            column[going] = words
            columns.append(column)
            going = going & ~np.isin(column, self._ends)
            inputs, counts = self._one_each(column, going), going.astype(np.int64)
        return np.stack(columns, axis=1) if columns else np.zeros((len(going), 0), np.int64)

    def _words(self, inputs: EncoderInput, counts: np.ndarray) -> np.ndarray:
        """The best word after the last of the `counts` new tokens of each sequence that has any."""
        self._cache.begin(counts)
        hidden = self._model.encoder.extend(inputs, self._cache)
        words = self._model.heads[0](hidden[inputs.last_tokens]).argmax(axis=1)
        return words if isinstance(words, np.ndarray) else words.get()

    def _one_each(self, column: np.ndarray, going: np.ndarray) -> EncoderInput:
        """The words of `column` as tokens of the sequences that are `going`."""
        rows = np.arange(going.sum())
        offsets = np.concatenate([[0], np.cumsum(going)]).astype(np.int32)
        arrays = column[going], self._cache.lengths[going], offsets, rows, rows
        ids, positions, *others = map(kernels.to_backend, arrays)
        return EncoderInput(ids, None, positions, *others)


def _prompts(
    model: ModelWithHeads, ids: np.ndarray, attention_mask: Any, steps: int
) -> tuple[PackedBatch, EncoderInput]:
    """The given tokens, packed; positions count real tokens alone, as transformers' do here."""
    inputs = pack(model.spec, ids, attention_mask, position_ids=np.zeros_like(ids))
    packed = inputs.packed
    if not packed.has_tokens.all():
        raise ValueError(f"input_ids[{packed.has_tokens.argmin()}] has no real token to go on from")
    needed = packed.lengths.max(initial=0) + steps - 1  # the last word is not read
    if needed > model.spec.max_positions:
        raise ValueError(
            f"max_new_tokens is {steps} after {needed - steps + 1} tokens, the model has {model.spec.max_positions} "
            "positions"
        )
    inputs.position_ids = kernels.to_backend(places(packed.cu_seqlens))
    return packed, inputs
