"""Permutation language modelling: the last tokens of a random order, each from those before it in that order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertcore.arguments import check_count
from bertcore.training.collators import DataCollatorWithPadding, ids_of
from bertcore.training.masking import IGNORED, Words
from bertcore.training.objectives.objective import Collator
from bertcore.training.objectives.supervised import Supervised
from bertcore.training.objectives.texts import SpecialTokens, check_room, stream_pieces


class PermutationLM(Supervised):
    """The last tokens of a random order of a text (Yang et al. 2019, arXiv:1906.08237, sections 2.2 and 2.3).

    A share of the tokens is predicted: whole words, side by side in spans. Their order is random. Each is predicted
    from the tokens that are not, special ones among them, and from the predicted ones before it in the order. What is
    not predicted comes first in the order and sees all of itself.

    The sizes of spans, their chances and the room around them are those of the authors' code (zihangdai/xlnet,
    data_utils.py: at most 5, K = 6). There a span begins with a word and is counted in tokens; here it is in words, and
    ends with one.

    Args:
        share: of the ordinary tokens of a text, rounded to a number of tokens, at least one: 1 / K of the paper.
        longest_span: in words; spans of n words have a chance in proportion to 1 / n.
        label_smoothing: as for `Supervised`.

    Raises:
        ValueError: for a share that is not above 0 and at most 1, and a longest_span below 1.
    """

    model_class = "AutoModelForCausalLM"

    def __init__(self, share: float = 1 / 6, longest_span: int = 5, *, label_smoothing: float = 0.0):
        super().__init__(label_smoothing)
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
            raise ValueError(f"share is {share!r}, expected a number above 0, at most 1")
        self.share, self.longest_span = share, check_count("longest_span", longest_span)

    def examples(
        self, documents: Iterable[Iterable[str]], tokenizer: Any, *, max_length: int, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """One stream of all documents, each followed by the separator, in pieces of `max_length` tokens."""
        special, end = SpecialTokens(tokenizer), tokenizer.sep_token_id
        if end is None:
            raise ValueError("tokenizer has no sep_token, which ends a document")
        room = check_room(max_length, len(special))
        for piece in stream_pieces(tokenizer, documents, end, room):
            if any(token != end for token in piece):
                yield special.around(piece)

    def collator(self, tokenizer: Any, *, seed: int = 0) -> Collator:
        return PermutationCollator(tokenizer, self, seed=seed)

    def order(self, ids: np.ndarray, words: Words, rng: np.random.Generator) -> np.ndarray:
        """The tokens of one text that are predicted, in the order of the prediction: (predictions,) indices."""
        is_ordinary = ~words.is_special[ids]
        goal = max(1, round(self.share * int(is_ordinary.sum()))) if is_ordinary.any() else 0
        is_predicted = self._spans(words.units(ids, by_word=True), goal, rng)
        others = rng.permutation(np.flatnonzero(is_ordinary & ~is_predicted))
        return rng.permutation(np.append(np.flatnonzero(is_predicted), others[: goal - is_predicted.sum()]))

    def _spans(self, words: np.ndarray, goal: int, rng: np.random.Generator) -> np.ndarray:
        """Which tokens are in spans of words, together at most `goal`; `words` is each token's word, -1 for none.

        From the left to the right: a span of n words stands at random among n / share tokens around it.
        """
        is_predicted = np.zeros(len(words), bool)
        starts = np.flatnonzero((words >= 0) & (words != np.append(-1, words[:-1])))
        lengths = np.arange(1, self.longest_span + 1)
        place, left = 0, goal
        while left:
            length = rng.choice(lengths, p=(1 / lengths) / (1 / lengths).sum())
            around = round(length / self.share)
            before = rng.integers(around)
            first = np.searchsorted(starts, place + before)
            if first == len(starts):
                break
            start = end = starts[first]
            word = words[start]
            while end < len(words) and word <= words[end] < word + length:  # up to a special token, too
                end += 1
            if end - start > left:
                break
            is_predicted[start:end] = True
            place, left = end + around - before, left - (end - start)
        return is_predicted


class PermutationCollator(DataCollatorWithPadding):
    """Padded batches with orders: perm_mask, target_mapping, and labels of the predicted tokens.

    Args:
        tokenizer: of the texts.
        objective: what chooses the orders.
        seed: of the random choices.
    """

    def __init__(self, tokenizer: Any, objective: PermutationLM, *, seed: int = 0):
        super().__init__(tokenizer)
        self.objective, self.words = objective, Words.of(tokenizer)
        self.rng = np.random.default_rng(check_count("seed", seed, 0))

    def masking_settings(self) -> dict[str, Any]:
        """What a run goes on with that began with it."""
        return {"share": self.objective.share, "longest_span": self.objective.longest_span}

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """The batch: besides what the tokens have, (examples, length) each,

        perm_mask: whether a token (the second axis) must not see another one (the third): (examples, length, length)
            booleans. Those that are not predicted see all that are not.
        target_mapping: 1 where the token (the third axis) is the one of a prediction (the second), (examples,
            predictions, length) float32. Predictions come in their order.
        labels: the predicted words, (examples, predictions), -100 where a text has fewer than others.
        """
        orders = []
        for index, example in enumerate(examples):
            ids = ids_of(example, index)
            self.words.check(ids, f"examples[{index}]['input_ids']")
            orders.append(self.objective.order(ids, self.words, self.rng))
        batch = super().__call__(examples)
        count, length = batch["input_ids"].shape
        most = max(1, *map(len, orders))
        perm_mask, labels = np.zeros((count, length, length), bool), np.full((count, most), IGNORED)
        target_mapping = np.zeros((count, most, length), np.float32)
        for row, order in enumerate(orders):
            first = length - len(examples[row]["input_ids"]) if self.tokenizer.padding_side == "left" else 0
            columns, places = first + order, np.arange(len(order))
            rank = np.full(length, -1)
            rank[columns] = places
            perm_mask[row] = (rank >= 0) & (rank >= rank[:, None])
            target_mapping[row, places, columns] = 1
            labels[row, places] = batch["input_ids"][row, columns]
        return batch | {"perm_mask": perm_mask, "target_mapping": target_mapping, "labels": labels}
