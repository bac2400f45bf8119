"""Replaced tokens: one model puts words in the place of masks, another one tells which are not the text's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertcore.arguments import check_number
from bertcore.models.outputs import Later
from bertcore.training.collators import DataCollatorForLanguageModeling
from bertcore.training.masking import Masking
from bertcore.training.objectives.language_modeling import MaskedLM
from bertcore.training.objectives.objective import Batch, Objective

MASKING = Masking(mask_share=1.0, random_share=0.0)


class ReplacedToken(Objective):
    """Replaced token detection (Clark et al. 2020, arXiv:2003.10555, section 2): the generator's loss of masked words,
    plus, weighted, the discriminator's mean binary cross entropy over all real tokens of the text that the generator
    filled in. For a `bertcore.ReplacedTokenModel`.

    The generator's words are drawn by random numbers that are in the batch, and so follow from the seed and the
    number of the batch; no gradient flows through them.

    Args:
        masking: how tokens are chosen and replaced; by default 15 % of them, all by the mask.
        discriminator_weight: of the discriminator's loss.
    """

    model_class = "ReplacedTokenModel"

    def __init__(self, masking: Masking = MASKING, *, discriminator_weight: float = 50.0):
        self.words = MaskedLM(masking)
        self.discriminator_weight = check_number("discriminator_weight", discriminator_weight)

    def examples(
        self, documents: Iterable[Iterable[str]], tokenizer: Any, *, max_length: int, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """The examples of `MaskedLM`."""
        return self.words.examples(documents, tokenizer, max_length=max_length, seed=seed)

    def collator(self, tokenizer: Any, *, seed: int = 0) -> DataCollatorForReplacedTokens:
        collator = DataCollatorForReplacedTokens(tokenizer, seed=seed)
        collator.masking = self.words.masking
        return collator

    def loss(self, model: Any, batch: Batch) -> Any:
        return model(**batch, discriminator_weight=self.discriminator_weight)

    def forward(self, model: Any, batch: Batch) -> Any:
        """With the generator's scores of all words, computed if they are read."""
        out = self.loss(model, batch)
        texts = {name: value for name, value in batch.items() if name not in ("labels", "draws")}
        out.generator_logits = Later(lambda: model.generator(**texts).logits)
        return out

    def weight(self, batch: Batch) -> float:
        """The masked tokens."""
        return self.words.weight(batch)

    def __add__(self, other: Objective) -> Objective:
        _check_no_words(other)
        return super().__add__(other)

    def added_to(self, first: Objective) -> Objective:
        _check_no_words(first)
        return super().added_to(first)


def _check_no_words(other: Any) -> None:
    """ValueError for masked words beside replaced tokens."""
    if isinstance(other, MaskedLM):
        raise ValueError(
            "ReplacedToken has the generator's loss of masked words in it, beside the discriminator's, which "
            "discriminator_weight weighs: take it without MaskedLM"
        )


class DataCollatorForReplacedTokens(DataCollatorForLanguageModeling):
    """Batches for masked language models, with "draws", by which the generator's words are chosen."""

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """The batch; see `ReplacedTokenModel`."""
        batch = super().__call__(examples)
        return batch | {"draws": self.rng.random(batch["input_ids"].shape)}
