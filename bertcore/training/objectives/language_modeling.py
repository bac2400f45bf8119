"""Language modelling: words that are hidden, or that come next, and a preview of the examples."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, check_number
from bertcore.gradients import TrainedModel
from bertcore.models.outputs import Later, ModelOutput, ReplacedTokensOutput, SpanBoundaryOutput
from bertcore.models.pretraining import AutoModelForSpanBoundary
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.collators import (
    IGNORED,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    Masking,
    NumberedCollator,
    Words,
    ids_of,
)
from bertcore.training.objectives import objective as base
from bertcore.training.objectives.text_examples import Documents, SpecialTokens, document_ids, stream_pieces, text_limit

DEFAULT = Masking()


class MaskedLM(base.Supervised):
    """Masked words (Devlin et al. 2018, arXiv:1810.04805, section 3.1).

    Args:
        masking: how tokens are chosen and replaced: single ones, whole words or spans, anew in every batch or always
            the same.
        label_smoothing: as for `Supervised`.
    """

    model_class = "AutoModelForMaskedLM"

    def __init__(self, masking: Masking = DEFAULT, *, label_smoothing: float = 0.0):
        super().__init__(label_smoothing)
        self.masking = masking

    def examples(self, documents: Documents, tokenizer: Tokenizer, *, max_length: int, seed: int = 0) -> base.Examples:
        """Yield the tokens of each document in pieces of `max_length`, the last one shorter."""
        special = SpecialTokens(tokenizer)
        limit = text_limit(max_length, len(special))
        for document in document_ids(tokenizer, documents):
            ids = [token for sentence in document for token in sentence]
            for start in range(0, len(ids), limit):
                yield special.around(ids[start : start + limit])

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> base.Collator:
        collator = DataCollatorForLanguageModeling(tokenizer, seed=seed)
        collator.masking = self.masking
        return collator


class NextWords(base.Supervised):
    """The loss of a model in which each token predicts the next: `Supervised` with another weight."""

    def weight(self, batch: base.Batch) -> float:
        """Return the number of predicted tokens: those with a label and a token before them.

        With class_weights it is the sum of their weights.
        """
        labels = kernels.to_host(batch["labels"])
        if batch.get("target_mapping") is not None:  # XLNet, whose predictions have labels of their own
            return super().weight(batch)
        mask = batch.get("attention_mask")
        precedes = True if mask is None else kernels.to_host(mask)[:, :-1] != 0
        return super().weight({"labels": np.where(precedes, labels[:, 1:], IGNORED)})


class CausalLM(NextWords):
    """The next word (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners")."""

    model_class = "AutoModelForCausalLM"

    def examples(self, documents: Documents, tokenizer: Tokenizer, *, max_length: int, seed: int = 0) -> base.Examples:
        """Yield one stream of all documents, each followed by the end-of-text token, in pieces of `max_length` tokens.

        The last piece is shorter. Documents without tokens are left out.
        """
        if tokenizer.eos_token_id is None:
            raise ValueError("tokenizer has no eos_token, which ends a document")
        text_limit(max_length, 0)
        for piece in stream_pieces(tokenizer, documents, tokenizer.eos_token_id, max_length):
            if len(piece) > 1:  # a single token has nothing to predict
                yield {"input_ids": piece}

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> base.Collator:
        """Pad with the end-of-text token if there is no padding token: padding has no label, and no token sees it."""
        collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
        if collator.pad_token_id is None:
            collator.pad_token_id = tokenizer.eos_token_id
        return collator


SPANS = Masking(unit="span")


class SpanBoundary(MaskedLM):
    """Masked words, each also predicted from the boundaries of its span (Joshi et al. 2020, arXiv:1907.10529).

    The loss is the sum of two means of cross entropies: over the masked tokens, from the token itself, and over those
    whose span has a boundary on both sides, from these two tokens and the position in the span. Its weight is the
    number of the masked tokens. See `bertcore.AutoModelForSpanBoundary` for spans. `loss` raises TypeError for a model
    without that head.

    Args:
        masking: how tokens are chosen and replaced; spans of words by default.
        label_smoothing: of both, as for `Supervised`.
    """

    model_class = "AutoModelForSpanBoundary"

    def __init__(self, masking: Masking = SPANS, *, label_smoothing: float = 0.0):
        super().__init__(masking, label_smoothing=label_smoothing)

    def counts(self, model: TrainedModel, batch: base.Batch) -> tuple[float, ...]:
        if not isinstance(model, AutoModelForSpanBoundary):  # `loss` raises the error
            return super().counts(model, batch)
        return self.weight(batch), model.count_boundaries(kernels.to_host(batch["labels"]), base.real_tokens(batch))

    def loss(self, model: TrainedModel, batch: base.Batch) -> ModelOutput:
        out = super().loss(model, batch)
        if not isinstance(out, SpanBoundaryOutput):  # its loss covers only the masked tokens
            raise TypeError(f"SpanBoundary needs an {self.model_class}, the model returned {type(out).__name__}")
        return out


class PermutationLM(base.Supervised):
    """The last tokens of a random order of a text (Yang et al. 2019, arXiv:1906.08237, sections 2.2 and 2.3).

    A fraction of the tokens is predicted: whole words, in spans of neighbours, in random order. Each is predicted from
    the other tokens, special ones among them, and from the predicted ones before it in the order. Tokens that are not
    predicted come first in the order and see each other.

    The sizes of spans, their probabilities and the context around them follow the authors' code (zihangdai/xlnet,
    data_utils.py: at most 5, K = 6). There a span begins with a word and is counted in tokens; here it is counted in
    words, and ends with one.

    Args:
        share: the fraction of a text's ordinary tokens, rounded to at least one token: 1 / K in the paper.
        longest_span: in words; spans of n words have a probability proportional to 1 / n.
        label_smoothing: as for `Supervised`.

    Raises ValueError for a share that is not above 0 and at most 1, and a longest_span below 1.
    """

    model_class = "AutoModelForCausalLM"

    def __init__(self, share: float = 1 / 6, longest_span: int = 5, *, label_smoothing: float = 0.0):
        super().__init__(label_smoothing)
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
            raise ValueError(f"share is {share!r}, expected a number above 0, at most 1")
        self.share, self.longest_span = share, check_count("longest_span", longest_span)

    def examples(self, documents: Documents, tokenizer: Tokenizer, *, max_length: int, seed: int = 0) -> base.Examples:
        """Yield one stream of all documents, each followed by the separator, in pieces of `max_length` tokens."""
        special, end = SpecialTokens(tokenizer), tokenizer.sep_token_id
        if end is None:
            raise ValueError("tokenizer has no sep_token, which ends a document")
        limit = text_limit(max_length, len(special))
        for piece in stream_pieces(tokenizer, documents, end, limit):
            if any(token != end for token in piece):
                yield special.around(piece)

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> base.Collator:
        return PermutationCollator(tokenizer, self, seed=seed)

    def order(self, ids: np.ndarray, words: Words, rng: np.random.Generator) -> np.ndarray:
        """Return the predicted tokens of one text in the order of prediction: (predictions,) indices."""
        is_ordinary = ~words.is_special[ids]
        goal = max(1, round(self.share * int(is_ordinary.sum()))) if is_ordinary.any() else 0
        is_predicted = self.choose_spans(words.units(ids, by_word=True), goal, rng)
        others = rng.permutation(np.flatnonzero(is_ordinary & ~is_predicted))
        return rng.permutation(np.append(np.flatnonzero(is_predicted), others[: goal - is_predicted.sum()]))

    def choose_spans(self, words: np.ndarray, goal: int, rng: np.random.Generator) -> np.ndarray:
        """Return which tokens are in spans of words, together at most `goal`; `words` has each token's word, or -1."""
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
    """Padded batches with orders chosen by `objective`: perm_mask, target_mapping, labels of predicted tokens."""

    def __init__(self, tokenizer: Tokenizer, objective: PermutationLM, *, seed: int = 0):
        super().__init__(tokenizer)
        self.objective, self.words = objective, Words.of(tokenizer)
        self.rng = np.random.default_rng(check_count("seed", seed, 0))

    def masking_settings(self) -> dict[str, Any]:
        return {"share": self.objective.share, "longest_span": self.objective.longest_span}

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the batch: the per-token inputs, (examples, length) each, and the orders.

        perm_mask is True where a token (the second axis) must not see another one (the third), (examples, length,
        length): tokens that are not predicted see each other. target_mapping is 1 where the token (the third axis) is
        the target of a prediction (the second), (examples, predictions, length) float32, in the order of prediction.
        labels are the predicted words, (examples, predictions), filled up with -100.
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


MASKING = Masking(mask_share=1.0, random_share=0.0)


class ReplacedToken(base.Objective):
    """Replaced-token detection, for a `bertcore.ReplacedTokenModel` (Clark et al. 2020, arXiv:2003.10555, section 2).

    The loss is the generator's loss of masked words plus, weighted, the discriminator's mean binary cross entropy over
    all real tokens of the text that the generator filled in. The generator's words are sampled by random numbers in the
    batch, which follow from the seed and the number of the batch; no gradient flows through them. Examples and weight
    are those of `MaskedLM`.

    Args:
        masking: how tokens are chosen and replaced; by default 15 % of them, all by the mask.
        discriminator_weight: of the discriminator's loss.
    """

    model_class = "ReplacedTokenModel"

    def __init__(self, masking: Masking = MASKING, *, discriminator_weight: float = 50.0):
        self.masking, self.source = masking, MaskedLM(masking)
        self.discriminator_weight = check_number("discriminator_weight", discriminator_weight)

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> DataCollatorForReplacedTokens:
        collator = DataCollatorForReplacedTokens(tokenizer, seed=seed)
        collator.masking = self.masking
        return collator

    def counts(self, model: TrainedModel, batch: base.Batch) -> tuple[float, ...]:
        return self.weight(batch), float(np.count_nonzero(base.real_tokens(batch)))

    def loss(self, model: Any, batch: base.Batch) -> ReplacedTokensOutput:
        return model(**batch, discriminator_weight=self.discriminator_weight)

    def forward(self, model: Any, batch: base.Batch) -> ReplacedTokensOutput:
        """Return the output with the generator's scores of all words, computed when first read."""
        out = self.loss(model, batch)
        texts = {name: value for name, value in batch.items() if name not in ("labels", "draws")}
        out.generator_logits = Later(lambda: model.generator(**texts).logits)
        return out


class DataCollatorForReplacedTokens(DataCollatorForLanguageModeling):
    """Batches for masked language models, with random numbers "draws" that sample the generator's words."""

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        batch = super().__call__(examples)
        return batch | {"draws": self.rng.random(batch["input_ids"].shape)}


WIDTH = 100
MASKS = {
    "masked words, static: the same in every epoch": MaskedLM(Masking(is_static=True)),
    "masked words, dynamic: anew in every epoch": MaskedLM(),
    "whole words": MaskedLM(Masking(unit="word")),
    "spans of words: each also predicted from the tokens beside its span (span boundaries)": MaskedLM(SPANS),
}
WORDS_AT_RANDOM = MaskedLM(Masking(mask_share=0.0, random_share=1.0))
LEGEND = (
    "GIVEN/WANTED: a token in the model's input, and the one to be predicted there. Of ten chosen tokens, eight "
    "become [MASK], one becomes another word and one stays. A token without / is given as it is and not predicted."
)
ORDER = (
    "permutation: TOKEN/N is the Nth to be predicted, from tokens without a number and those with a lower one; the "
    "model sees no mask, and no token that is predicted later"
)
REPLACED = (
    "replaced tokens: TOKEN/! is not the text's own; the discriminator decides this for every token (words drawn at "
    "random stand in for a generator's)"
)


def preview(text: str, tokenizer: Tokenizer, *, epochs: int = 3, seed: int = 0) -> str:
    """Return a text as objectives present it to a model, over some epochs, as printable lines.

    They show masked words, static beside dynamic, whole words and spans (Devlin et al. 2018; Liu et al. 2019; Joshi et
    al. 2020), the order of permutation language modelling (Yang et al. 2019), and replaced tokens (Clark et al. 2020).

        print(preview("the cat sat on the mat", tokenizer))

    Args:
        text: the text, which is not cut.
        tokenizer: with a mask token.
        epochs: how often the text is presented.
        seed: of the random choices.

    Raises:
        TypeError: unless text is a string.
        ValueError: for a tokenizer without a mask, and fewer than one epoch.
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {type(text).__name__}, expected a string")
    numbers = range(check_count("epochs", epochs))
    example = tokenizer(text)
    lines = textwrap.wrap(LEGEND, WIDTH)
    options = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * 5}
    sections = [(title, objective, _masked) for title, objective in MASKS.items()]
    sections += (ORDER, PermutationLM(), _ordered), (REPLACED, WORDS_AT_RANDOM, _replaced)
    for title, objective, shown in sections:
        lines += ["", *textwrap.wrap(title, WIDTH)]
        collate = NumberedCollator(objective.collator(tokenizer), seed)
        for epoch in numbers:  # batches are numbered as `Trainer` does
            tokens = " ".join(shown(collate([example], epoch), tokenizer))
            lines += textwrap.wrap(tokens, WIDTH, initial_indent=f"  {epoch + 1}  ", **options)
    return "\n".join(lines)


def _masked(batch: Mapping[str, Any], tokenizer: Tokenizer) -> list[str]:
    """Return the tokens of a masked batch: the given one, and the wanted one where there is a label."""
    given, labels = batch["input_ids"][0], batch["labels"][0]
    wanted = tokenizer.convert_ids_to_tokens(np.where(labels == IGNORED, given, labels).tolist())
    given = tokenizer.convert_ids_to_tokens(given.tolist())
    rows = zip(given, wanted, labels, strict=True)
    return [token if label == IGNORED else f"{token}/{own}" for token, own, label in rows]


def _ordered(batch: Mapping[str, Any], tokenizer: Tokenizer) -> list[str]:
    """Return the tokens of a permutation batch, the predicted ones with their place in the order."""
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    for place, column in np.argwhere(batch["target_mapping"][0]):
        tokens[column] += f"/{place + 1}"
    return tokens


def _replaced(batch: Mapping[str, Any], tokenizer: Tokenizer) -> list[str]:
    """Return the tokens of a batch with random words, the replaced ones marked."""
    given, labels = batch["input_ids"][0], batch["labels"][0]
    is_replaced = (labels != IGNORED) & (labels != given)
    tokens = tokenizer.convert_ids_to_tokens(given.tolist())
    return [f"{token}/!" if replaced else token for token, replaced in zip(tokens, is_replaced, strict=True)]
