"""Translation language modelling: masked words of a text and its translation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.training.objectives.language_modeling import MaskedLM
from bertcore.training.objectives.objective import Batch
from bertcore.training.objectives.sentence_pairs import cut_pair
from bertcore.training.objectives.texts import SpecialTokens, check_room, document_ids

RESTART = "restart"


class TranslationLM(MaskedLM):
    """The words behind masks in a text and its translation, side by side (Conneau and Lample 2019, arXiv:1901.07291,
    section 3.3): a word that is masked in one language can be found in the other.

    As in the paper positions start again: the translation's first token has the position of the text's first one, and
    what follows counts on from there. The special tokens are those that the tokenizer puts around a pair; the authors'
    code (facebookresearch/XLM, utils.py) has </s> before and after each of the two texts, and positions start again at
    the translation's first </s>. A model without a table of positions keeps its distances. Embeddings of languages
    there are none, as in XLM-R and mBERT; where a model has token types, they tell the two texts apart, not their
    languages.
    """

    targets = (RESTART,)

    def examples(
        self, documents: Iterable[Iterable[str]], tokenizer: Any, *, max_length: int, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Both texts of each pair, the longer one cut at its end where they are too long together.

        `documents` are pairs of texts. A pair with a text without tokens is left out. "restart" of an example is the
        token at which positions start again, and the position that it has.
        """
        special = SpecialTokens(tokenizer, 2)
        room = check_room(max_length, len(special), 2)
        for texts in document_ids(tokenizer, _pairs(documents)):
            if len(texts) == 2:
                first, second = texts
                cut_pair(first, second, room)
                restart = [special.before(1) + len(first), special.before()]
                yield special.around(first, second) | {RESTART: restart}

    def loss(self, model: Any, batch: Batch) -> Any:
        texts = {name: value for name, value in batch.items() if name != RESTART}
        if model.spec.max_positions:
            ids = kernels.to_host(batch["input_ids"])
            mask = kernels.to_host(batch.get("attention_mask", np.ones_like(ids)))
            texts["position_ids"] = restarted(mask, kernels.to_host(batch[RESTART])) + model.spec.position_offset
        return super().loss(model, texts)


def restarted(mask: np.ndarray, restart: np.ndarray) -> np.ndarray:
    """Positions from 0 on, (examples, length), 0 at padding; each example's token restart[:, 0] has restart[:, 1]."""
    places = np.cumsum(mask != 0, axis=1) - 1
    first, position = restart[:, :1], restart[:, 1:]
    return np.where(mask != 0, np.where(places >= first, places - first + position, places), 0)


def _pairs(documents: Iterable[Iterable[str]]) -> Iterator[list[str]]:
    for index, document in enumerate(documents):
        if isinstance(document, str):
            raise TypeError(f"documents[{index}] is {document!r:.60}, expected a pair of texts")
        pair = list(document)
        if len(pair) != 2:
            raise ValueError(f"documents[{index}] has {len(pair)} texts, expected 2: a text and its translation")
        yield pair
