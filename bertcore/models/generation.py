"""Text generation with a causal model: greedy search, sampling and beam search."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, check_number
from bertcore.kernels import checks
from bertcore.kernels.arrays import ArrayLike, NativeArray
from bertcore.models.adapter import Adapter
from bertcore.models.inputs import EncoderInput, integer_batch, pack, places
from bertcore.models.with_heads import ModelWithHeads
from bertcore.nn import functional
from bertcore.nn.packing import PackedBatch
from bertcore.passes import Pass
from bertcore.tape import Tensor


def generate(
    model: ModelWithHeads,
    input_ids: ArrayLike,
    attention_mask: ArrayLike | None = None,
    *,
    max_new_tokens: int = 20,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    num_beams: int = 1,
    length_penalty: float = 1.0,
    num_return_sequences: int = 1,
    seed: int | None = None,
) -> NativeArray:
    """Append words to each sequence until all have ended, as transformers' generate does.

    Each step takes the word with the highest score, a sampled word (do_sample), or the words of the best beams
    (num_beams). Keys and values of earlier tokens are cached, so each step computes only the new tokens.

    Args:
        input_ids: (sequences, length) integers, at least one real token per sequence; pad shorter sequences on the
            left. (With padding on the right, a text continues from its last real token, and the new words follow the
            padding.)
        attention_mask: 1 for real tokens, 0 for padding. By default every token is real except the pad_token_id of the
            call or the config, unless that token also ends texts.
        max_new_tokens: the maximum number of words to append.
        eos_token_id: the token or tokens that end a text; by default the config's eos_token_id. An empty list means
            that no token does.
        pad_token_id: the padding token; by default the config's pad_token_id.
        do_sample: whether to sample words by their probabilities.
        temperature: divides the scores before sampling; a low temperature favours likely words.
        top_k: sample only from this many of the likeliest words; None for all.
        top_p: of these, sample from the smallest set whose probabilities sum to at least this.
        num_beams: the number of beams. The continuations with the highest sum of log probabilities, divided by
            (new words) ** length_penalty, are returned.
        length_penalty: see num_beams; a value above 0 favours long texts.
        num_return_sequences: the number of continuations of each text: samples, or the best beams.
        seed: the seed for sampling; by default a new one for each call.

    Returns:
        (sequences * num_return_sequences, length + new tokens), int64: the given ids followed by the new ones. After
        the end of a text comes pad_token_id or, without one, the first of eos_token_id.

    Raises:
        TypeError: if the model's tokens attend to later ones, or its layers cannot cache keys and values.
        TypeError, ValueError: for a wrong argument, or if the tokens need more positions than the model has.
    """
    _check_family(model)
    check_count("max_new_tokens", max_new_tokens)
    _check_choice(do_sample, temperature, top_k, top_p, num_beams, length_penalty, num_return_sequences)
    if seed is not None:
        checks.seed("seed", seed)
    ends, padding = end_tokens(model, eos_token_id), model.spec.pad_token_id
    if pad_token_id is not None:
        padding = checks.integer_number("pad_token_id", pad_token_id)
    ids = integer_batch("input_ids", input_ids)
    if attention_mask is None and padding is not None and padding not in ends:
        attention_mask = (ids != padding).astype(np.int64)
    if padding is None:
        padding = ends[0] if ends else 0
    copies = num_return_sequences if num_beams == 1 else num_beams
    given = np.repeat(ids, copies, axis=0)
    mask = (
        None if attention_mask is None else np.repeat(integer_batch("attention_mask", attention_mask), copies, axis=0)
    )
    with kernels.on_device_of(input_ids):
        run = Pass.begin(input_ids)
        steps = Steps(run, model, given, mask, int(max_new_tokens))
        if num_beams > 1:
            new = search_beams(steps, ends, padding, num_beams, num_return_sequences, length_penalty)
        else:
            choose = _drawing(temperature, top_k, top_p, seed) if do_sample else _best
            new = _word_by_word(steps, choose, ends, padding)
        ids = np.repeat(ids, num_return_sequences, axis=0)
        return run.to_backend(np.concatenate([ids.astype(np.int64), new], axis=1))


def _drawing(temperature: float, top_k: int | None, top_p: float, seed: int | None) -> Callable[[Any], np.ndarray]:
    rng = np.random.default_rng(seed)

    def draw(scores: NativeArray) -> np.ndarray:
        scores = restricted_scores(kernels.to_host(scores), temperature, top_k, top_p)
        return sample_words(scores, rng.random(len(scores)))

    return draw


def _check_choice(do_sample: bool, temperature: float, top_k: int | None, top_p: float, num_beams: int,
                  length_penalty: float, returned: int) -> None:  # fmt: skip
    checks.boolean("do_sample", do_sample)
    counts = {"top_k": 1 if top_k is None else top_k, "num_beams": num_beams, "num_return_sequences": returned}
    for name, value in counts.items():
        check_count(name, value)
    check_number("temperature", temperature, above_zero=True)
    if check_number("top_p", top_p, above_zero=True) > 1:
        raise ValueError(f"top_p is {top_p}, expected at most 1")
    checks.finite_number("length_penalty", length_penalty)
    if num_beams > 1 and do_sample:
        raise ValueError(f"num_beams is {num_beams} and do_sample True, expected one of them")
    if not do_sample and returned > num_beams:
        raise ValueError(f"num_return_sequences is {returned}, expected at most num_beams, {num_beams}")


def _check_family(model: ModelWithHeads) -> None:
    start = f"models of type {model.family.model_type!r} cannot generate"
    if not all(layer.is_causal for layer in model.spec.layers):
        raise TypeError(f"{start}: their tokens attend to later ones")
    is_plain = all(
        layer.rotary is None and layer.window is None and layer.key_value_size == layer.attention_size
        for layer in model.spec.layers
    )
    if model.family.adapter is not Adapter or not is_plain:
        raise TypeError(f"{start}: their layers cannot cache keys and values of single tokens")


def end_tokens(model: ModelWithHeads, eos_token_id: int | Sequence[int] | None) -> list[int]:
    if eos_token_id is None:
        eos_token_id = model.config.get("eos_token_id", model.family.end_of_text)
    ends = [] if eos_token_id is None else eos_token_id
    ends = list(ends) if isinstance(ends, Sequence | np.ndarray) else [ends]
    wrong = [end for end in ends if not isinstance(end, int | np.integer) or isinstance(end, bool)]
    if wrong:
        raise TypeError(f"eos_token_id holds {wrong[0]!r}, expected integers")
    wrong = [end for end in ends if not -(2**63) <= end < 2**63]
    if wrong:
        raise ValueError(f"eos_token_id holds {wrong[0]}, expected token ids")
    return ends


class Steps:
    """The steps of one run of generation, at most `count`: scores of the words after the prompts and each word."""

    def __init__(self, run: Pass, model: ModelWithHeads, ids: np.ndarray, attention_mask: ArrayLike | None, count: int):
        self._model, self.count = model, count
        self._packed, self._inputs = _prompts(run, model, ids, attention_mask, count)
        self.sequences = len(self._packed.lengths)
        self._cache = KeyValueCache(self.sequences, int(self._packed.lengths.max(initial=0)) + count)
        self._run = replace(run, cache=self._cache)

    def first(self) -> NativeArray:
        """Return the scores of the words after the prompts, (sequences, words), in the active backend's memory."""
        return self._scores(self._inputs, self._packed.lengths)

    def following(self, words: np.ndarray, going: np.ndarray) -> NativeArray:
        """Return the scores after one more word of each sequence in `going`, (going sequences, words)."""
        rows = np.arange(going.sum())
        offsets = np.concatenate([[0], np.cumsum(going)]).astype(np.int32)
        inputs = EncoderInput(words[going], None, self._cache.lengths[going], offsets, rows, rows)
        return self._scores(inputs.to_backend(self._run), going.astype(np.int64))

    def reorder(self, order: np.ndarray) -> None:
        """Let sequence i continue from the current sequence order[i]."""
        self._cache.reorder(self._run, order)

    def _scores(self, inputs: EncoderInput, counts: np.ndarray) -> NativeArray:
        self._cache.begin(self._run, counts)
        return self._model.heads[0](self._run, self._model.encoder(self._run, inputs)[inputs.last_tokens])


def _word_by_word(steps: Steps, choose: Callable[[Any], np.ndarray], ends: list[int], padding: int) -> np.ndarray:
    """Return the new words, (sequences, at most count), each chosen by the scores at its position."""
    going, columns = np.ones(steps.sequences, bool), []
    while len(columns) < steps.count and going.any():
        scores = steps.following(columns[-1], going) if columns else steps.first()
        column = np.full(len(going), padding, np.int64)
        column[going] = choose(scores)
        columns.append(column)
        going = going & ~np.isin(column, np.array(ends, np.int64))
    return np.stack(columns, axis=1) if columns else np.zeros((len(going), 0), np.int64)


def _best(scores: NativeArray) -> np.ndarray:
    return kernels.to_host(scores.argmax(axis=1))


def search_beams(
    steps: Steps, ends: list[int], padding: int, beams: int, returned: int, length_penalty: float
) -> np.ndarray:
    """Return the new words of the `returned` best continuations of each text, (texts * returned, words).

    Like transformers' beam search, this keeps the `beams` best. A text is done when it has `beams` finished
    continuations and no unfinished one has a higher score for its current length.
    """
    texts, kept = steps.sequences // beams, max(2, 1 + len(ends)) * beams
    running = np.full((texts, beams), -1e9)
    running[:, 0] = 0.0  # all beams start equal: only the first counts
    words = np.zeros((texts, beams, 0), np.int64)
    found: list[list[tuple[float, np.ndarray]]] = [[] for _ in range(texts)]
    is_done = np.zeros(texts, bool)
    while words.shape[2] < steps.count and not is_done.all():
        is_first = words.shape[2] == 0
        flat = words.reshape(texts * beams, -1)
        scores = steps.first() if is_first else steps.following(flat[:, -1], np.ones(len(flat), bool))
        parents, chosen, sums = _best_continuations(kernels.to_host(scores), running, kept)
        made = np.concatenate([np.take_along_axis(words, parents[:, :, None], axis=1), chosen[:, :, None]], axis=2)
        length = made.shape[2]
        has_ended = np.isin(chosen, ends) | (length == steps.count)
        for text in np.flatnonzero(~is_done):
            ranks = [rank for rank in range(beams) if has_ended[text, rank]]
            found[text] += [(sums[text, rank] / length**length_penalty, made[text, rank]) for rank in ranks]
            found[text] = sorted(found[text], key=lambda each: -each[0])[:beams]
        going = np.argsort(has_ended, axis=1, kind="stable")[:, :beams]
        words = np.take_along_axis(made, going[:, :, None], axis=1)
        running = np.take_along_axis(sums, going, axis=1)
        order = np.take_along_axis(parents, going, axis=1) + np.arange(texts)[:, None] * beams
        steps.reorder(order.reshape(-1))
        for text in range(texts):
            is_full = len(found[text]) == beams
            is_done[text] |= is_full and running[text, 0] / length**length_penalty <= found[text][-1][0]
    best = [row for rows in found for _, row in rows[:returned]]
    new = np.full((len(best), max(map(len, best), default=0)), padding, np.int64)
    for row, each in enumerate(best):
        new[row, : len(each)] = each
    return new


def _best_continuations(
    scores: np.ndarray, running: np.ndarray, kept: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the beams, words and sums of the `kept` best continuations of each text, (texts, kept) each."""
    scores = scores.astype(np.float64)
    highest = scores.max(axis=1, keepdims=True)
    logs = scores - highest - np.log(np.exp(scores - highest).sum(axis=1, keepdims=True))
    sums = (logs.reshape(*running.shape, -1) + running[:, :, None]).reshape(len(running), -1)
    kept = min(kept, sums.shape[1])
    best = np.argpartition(-sums, kept - 1, axis=1)[:, :kept]
    of_best = np.take_along_axis(sums, best, axis=1)
    order = np.lexsort((best, -of_best), axis=1)
    best, of_best = (np.take_along_axis(each, order, axis=1) for each in (best, of_best))
    parents, words = np.divmod(best, scores.shape[1])
    return parents, words, of_best


def _prompts(
    run: Pass, model: ModelWithHeads, ids: np.ndarray, attention_mask: ArrayLike | None, steps: int
) -> tuple[PackedBatch, EncoderInput]:
    """Pack the given tokens; positions count only real tokens, as in transformers' generate."""
    inputs = pack(model.spec, ids, attention_mask, position_ids=np.zeros_like(ids))
    packed = inputs.packed
    if not packed.has_tokens.all():
        raise ValueError(f"input_ids[{packed.has_tokens.argmin()}] has no real token, expected at least one")
    needed = packed.lengths.max(initial=0) + steps - 1  # the last word is not read
    if needed > model.spec.max_positions:
        most = f"the model has {model.spec.max_positions} positions"
        raise ValueError(f"max_new_tokens is {steps} after {needed - steps + 1} tokens, {most}")
    return packed, replace(inputs.on_host, position_ids=places(packed.cu_seqlens)).to_backend(run)


BLOCK = 256  # words whose probabilities are summed at once


def sample_words(scores: NativeArray, draws: np.ndarray) -> np.ndarray:
    """Return a sampled word for each row of `scores`, (rows, words): integers in host memory, (rows,).

    The word is the first at which the cumulative sum of the softmax exceeds the row's draw, a number in [0, 1),
    (rows,).

    Inverting the distribution function takes one draw and one pass over the row; Gumbel noise would take a draw and two
    logarithms per word. Only words with a probability above 0 are drawn.
    """
    probabilities = kernels.softmax(scores)
    if not isinstance(probabilities, np.ndarray):
        probabilities = probabilities.get()
    starts = np.arange(0, probabilities.shape[1], BLOCK)
    sums = np.add.reduceat(probabilities, starts, axis=1) if len(draws) else np.zeros((0, len(starts)))
    block, rest = _passed(sums, draws)
    width = min(BLOCK, probabilities.shape[1])
    first = np.minimum(starts[block], probabilities.shape[1] - width)  # the last block begins early
    columns = first[:, None] + np.arange(width)
    inside = np.take_along_axis(probabilities, columns, axis=1)
    inside[columns < starts[block][:, None]] = 0
    return first + _passed(inside, rest)[0]


def _passed(shares: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row the non-empty share that its draw falls into, and the position within it, in [0, 1)."""
    sums = np.cumsum(shares, axis=1, dtype=np.float64)
    total = sums[:, -1:]
    target = draws[:, None] * total
    found = np.minimum((sums <= target).sum(axis=1), (sums < total).sum(axis=1))
    before = np.take_along_axis(np.pad(sums, [(0, 0), (1, 0)]), found[:, None], axis=1)
    size = np.take_along_axis(sums, found[:, None], axis=1) - before
    with np.errstate(invalid="ignore"):  # NaN scores yield no word
        into = np.clip((target - before) / size, 0, np.nextafter(1, 0))
    return found, into[:, 0]


def restricted_scores(scores: np.ndarray, temperature: float, top_k: int | None, top_p: float) -> np.ndarray:
    """Return the scores (rows, words), float64, divided by the temperature, and -inf for words that are excluded.

    top_k: keep the words with the highest scores, including ties with the last; None for all. top_p: of these, keep the
    smallest set whose probabilities sum to at least this (Holtzman et al. 2020, arXiv:1904.09751), at least one word.
    """
    scores = scores.astype(np.float64) / temperature
    if top_k is not None and top_k < scores.shape[1]:
        least = np.partition(scores, -top_k, axis=1)[:, -top_k]
        scores[scores < least[:, None]] = -np.inf
    if top_p < 1:
        order = np.argsort(-scores, axis=1, kind="stable")
        weights = np.exp(np.take_along_axis(scores, order, axis=1) - scores.max(axis=1, keepdims=True))
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        is_beyond = np.cumsum(probabilities, axis=1) - probabilities >= top_p  # the words before it suffice
        is_beyond[:, 0] = False
        np.put_along_axis(
            scores, order, np.where(is_beyond, -np.inf, np.take_along_axis(scores, order, axis=1)), axis=1
        )
    return scores


class KeyValueCache:
    """Keys and values of every layer, for `sequences` sequences of at most `capacity` tokens each.

    Every sequence has its own `capacity` rows: a new token's key is written to its row, and nothing is moved. To
    attention, unused rows are sequences of keys without queries.
    """

    def __init__(self, sequences: int, capacity: int):
        self.lengths = np.zeros(sequences, np.int64)  # tokens with keys in each sequence
        self._capacity = capacity
        self._layers: dict[int, tuple[Any, Any]] = {}

    def begin(self, run: Pass, counts: np.ndarray) -> None:
        """Reserve counts[s] new tokens of each sequence s; each layer then calls `attend` once.

        Raises ValueError for more tokens than the capacity, or several for a sequence that already has keys.
        """
        if (self.lengths + counts > self._capacity).any() or (counts[self.lengths > 0] > 1).any():
            raise ValueError(f"counts is {counts} after {self.lengths} tokens, expected 1 each up to {self._capacity}")
        self._is_first = not self.lengths.any()
        starts = np.arange(len(counts)) * self._capacity
        order = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self._rows = run.to_backend(np.repeat(starts + self.lengths, counts) + order)
        self.lengths = self.lengths + counts
        self._queries = _offsets(run, counts, np.zeros_like(counts))
        self._keys = _offsets(run, self.lengths, self._capacity - self.lengths)
        self._cu_seqlens = run.to_backend(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))

    def reorder(self, run: Pass, order: np.ndarray) -> None:
        """Let sequence i continue sequence order[i]; `order` is (sequences,) in host memory."""
        if np.array_equal(order, np.arange(len(self.lengths))):
            return
        rows = run.to_backend((order[:, None] * self._capacity + np.arange(self._capacity)).reshape(-1))
        self.lengths = self.lengths[order]
        self._layers = {layer: (keys[rows], values[rows]) for layer, (keys, values) in self._layers.items()}

    def attend(
        self, run: Pass, layer: int, qkv: Tensor, *, num_heads: int, scale: float | None, compute_dtype: str | None
    ) -> Tensor:
        """Store the new tokens' keys and values, and return their attention to all keys of their sequences so far.

        Maps concatenated query, key and value of the new tokens, sequence after sequence, (tokens, 3 * hidden), to
        (tokens, hidden). Options are as for `functional.self_attention`.
        """
        query, key, value = functional.split_heads(qkv, num_heads=num_heads)
        if layer not in self._layers:
            xp, shape = kernels.array_module(qkv), (len(self.lengths) * self._capacity, *key.shape[1:])
            self._layers[layer] = xp.zeros(shape, qkv.dtype), xp.zeros(shape, qkv.dtype)
        keys, values = self._layers[layer]
        keys[self._rows], values[self._rows] = key, value
        options = {"scale": scale, "compute_dtype": compute_dtype}
        if self._is_first:
            where = {"cu_seqlens": self._cu_seqlens, "is_causal": True}
            return functional.self_attention(run, qkv, num_heads=num_heads, **where, **options)
        where = {"cu_seqlens": self._queries, "cu_seqlens_k": self._keys}
        return kernels.attention(query, keys, values, backend=run.backend, **where, **options).reshape(len(query), -1)


def _offsets(run: Pass, counts: np.ndarray, gaps: np.ndarray) -> NativeArray:
    """Return offsets of sequences of `counts` rows, each followed by one of `gaps` rows."""
    both = np.stack([counts, gaps], axis=1).reshape(-1)
    return run.to_backend(np.concatenate([[0], np.cumsum(both)]).astype(np.int32))
