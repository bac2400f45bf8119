"""Pairs of segments of texts: whether one follows the other, or which comes first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from bertcore import kernels
from bertcore.gradients import TrainedModel
from bertcore.models import losses
from bertcore.models.outputs import ModelOutput
from bertcore.passes import Pass
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.objectives import objective as base
from bertcore.training.objectives.language_modeling import MaskedLM
from bertcore.training.objectives.text_examples import Documents, SpecialTokens, document_ids, text_limit

AT_ONCE = 1000  # documents among which others are drawn
Sentences = list[list[int]]
PackedPairs = Iterator[tuple[list[int], list[int], int]]


class SentencePairs(base.Objective):
    """Base of objectives of two segments of texts, with or without masked words.

    Segments are consecutive sentences. Both together have at most `max_length` tokens; the end of the longer one is cut
    if they have more.
    """

    label = ""  # the name of the labels, in examples and in batches

    def examples(self, documents: Documents, tokenizer: Tokenizer, *, max_length: int, seed: int = 0) -> base.Examples:
        special, rng = SpecialTokens(tokenizer, 2), np.random.default_rng(seed)
        limit = text_limit(max_length, len(special), 2)
        documents, before = filter(None, document_ids(tokenizer, documents)), []
        while sentences := list(islice(documents, AT_ONCE)):
            for index, document in enumerate(sentences):
                others = [*sentences[:index], *sentences[index + 1 :]] or before
                for first, second, label in self.pairs(document, others, limit, rng):
                    cut_pair(first, second, limit)
                    yield special.around(first, second) | {self.label: label}
            before = sentences

    def pairs(self, document: Sentences, others: list[Sentences], limit: int, rng: np.random.Generator) -> PackedPairs:
        """Yield (first segment, second segment, label) from a document; `others` are some other documents."""
        raise NotImplementedError(f"{type(self).__name__} does not define its pairs")

    def weight(self, batch: base.Batch) -> float:
        return base.count_labels(batch, self.label)

    @property
    def pairing(self) -> SentencePairs:
        return self

    def __add__(self, other: base.Objective) -> base.Objective:
        return MaskedLMAndPairs(other, self) if type(other) is MaskedLM else super().__add__(other)

    def added_to(self, first: base.Objective) -> base.Objective:
        return MaskedLMAndPairs(first, self) if type(first) is MaskedLM else super().added_to(first)


class NextSentence(SentencePairs):
    """Next-sentence prediction: the second segment follows the first (0), or is from another document (1).

    Half of the pairs are of each kind (Devlin et al. 2018, arXiv:1810.04805, section 3.1).
    """

    model_class = "AutoModelForNextSentencePrediction"
    label = "next_sentence_label"
    targets = (label,)

    def loss(self, model: TrainedModel, batch: base.Batch) -> ModelOutput:
        rest = {name: value for name, value in batch.items() if name != self.label}
        return model(**rest, labels=batch[self.label])

    def pairs(self, document: Sentences, others: list[Sentences], limit: int, rng: np.random.Generator) -> PackedPairs:
        """Leave out a single last sentence: it has no next one, so the labels would not be balanced."""
        if not others:
            raise ValueError("documents has only one document, expected others to take sentences from")
        start = 0
        while start + 1 < len(document):
            some = document[start : max(_end(document, start, limit), start + 2)]
            middle, follows = int(rng.integers(1, len(some))), rng.random() < 0.5
            first = _joined(some[:middle])
            if follows:
                second = _joined(some[middle:])
            else:
                other = others[int(rng.integers(len(others)))]
                at = int(rng.integers(len(other)))
                second = _joined(other[at : _end(other, at, max(limit - len(first), 1))])
            yield first, second, int(not follows)
            start += len(some) if follows else middle  # unused sentences begin the next pair


class SentenceOrder(SentencePairs):
    """Sentence-order prediction: two consecutive segments are in order (0) or exchanged (1).

    Half of the pairs are of each kind (Lan et al. 2019, arXiv:1909.11942, section 3.1).
    """

    model_class = "AutoModelForPreTraining"
    label = "sentence_order_label"
    targets = (label,)

    def loss(self, model: TrainedModel, batch: base.Batch) -> ModelOutput:
        out = model(**{name: value for name, value in batch.items() if name != self.label})
        run = Pass.begin(batch["input_ids"])
        out.loss = losses.sequence_loss(run, out.sop_logits, batch[self.label], 2, name=self.label)
        return out

    def pairs(self, document: Sentences, others: list[Sentences], limit: int, rng: np.random.Generator) -> PackedPairs:
        """Leave out a single last sentence."""
        start = 0
        while start + 1 < len(document):
            some = document[start : max(_end(document, start, limit), start + 2)]
            middle, exchanged = int(rng.integers(1, len(some))), int(rng.random() < 0.5)
            both = _joined(some[:middle]), _joined(some[middle:])
            yield *(both[::-1] if exchanged else both), exchanged
            start += len(some)


class MaskedLMAndPairs(base.Supervised):
    """`MaskedLM() + NextSentence()` or `MaskedLM() + SentenceOrder()`: both losses of one pass, added.

    The loss is the sum of two means, over masked tokens and over pairs, also where a step has several batches; its
    weight is the number of masked tokens.
    """

    model_class = "AutoModelForPreTraining"

    def __init__(self, words: MaskedLM, pairs: SentencePairs):
        super().__init__(words.label_smoothing)
        self.words, self.pairing = words, pairs

    def examples(self, documents: Documents, tokenizer: Tokenizer, *, max_length: int, seed: int = 0) -> base.Examples:
        return self.pairing.examples(documents, tokenizer, max_length=max_length, seed=seed)

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> base.Collator:
        return self.words.collator(tokenizer, seed=seed)


def _end(document: Sentences, start: int, limit: int) -> int:
    """Return the end of the sentences from `start` that fill `limit` tokens: the last may exceed them."""
    end, length = start, 0
    while end < len(document) and length < limit:
        length += len(document[end])
        end += 1
    return end


def _joined(sentences: Sentences) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def cut_pair(first: list[int], second: list[int], limit: int) -> None:
    """Remove tokens from the end of the longer segment until both fit."""
    while len(first) + len(second) > limit:
        (first if len(first) > len(second) else second).pop()


RESTART = "restart"


class TranslationLM(MaskedLM):
    """Masked words in a text and its translation, side by side: a masked word may be found in the other language.

    Source: Conneau and Lample 2019, arXiv:1901.07291, section 3.3. As in the paper, positions restart: the
    translation's first token has the position of the text's first token. The special tokens are the tokenizer's for a
    pair; the authors' code (facebookresearch/XLM, utils.py) has </s> before and after each text, and restarts at the
    translation's first </s>. A model without a table of positions sees no restart. There are no language embeddings, as
    in XLM-R and mBERT; token types, if any, distinguish the two texts, not their languages.
    """

    targets = (RESTART,)

    def examples(self, documents: Documents, tokenizer: Tokenizer, *, max_length: int, seed: int = 0) -> base.Examples:
        """Yield both texts of each pair, the longer one cut at its end if they are too long together.

        `documents` are pairs of texts. A pair with a text without tokens is left out. "restart" of an example is the
        token where positions restart, and its position.
        """
        special = SpecialTokens(tokenizer, 2)
        limit = text_limit(max_length, len(special), 2)
        for texts in document_ids(tokenizer, _pairs(documents)):
            if len(texts) == 2:
                first, second = texts
                cut_pair(first, second, limit)
                restart = [special.before(1) + len(first), special.before()]
                yield special.around(first, second) | {RESTART: restart}

    def loss(self, model: TrainedModel, batch: base.Batch) -> ModelOutput:
        texts = {name: value for name, value in batch.items() if name != RESTART}
        if model.spec.max_positions:
            ids = kernels.to_host(batch["input_ids"])
            is_real = kernels.to_host(batch.get("attention_mask", np.ones_like(ids))) != 0
            places, (first, position) = np.cumsum(is_real, axis=1) - 1, kernels.to_host(batch[RESTART]).T[:, :, None]
            places = np.where(places >= first, places - first + position, places)
            texts["position_ids"] = np.where(is_real, places, 0) + model.spec.position_offset
        return super().loss(model, texts)


def _pairs(documents: Documents) -> Iterator[list[str]]:
    for index, document in enumerate(documents):
        if isinstance(document, str):
            raise TypeError(f"documents[{index}] is {document!r:.60}, expected a pair of texts")
        pair = list(document)
        if len(pair) != 2:
            raise ValueError(f"documents[{index}] has {len(pair)} texts, expected 2: a text and its translation")
        yield pair
