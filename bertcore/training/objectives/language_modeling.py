"""Language modelling: words that are hidden, or that come next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.training.collators import DataCollatorForLanguageModeling
from bertcore.training.masking import IGNORED, Masking
from bertcore.training.objectives.objective import Batch, Collator
from bertcore.training.objectives.supervised import Supervised
from bertcore.training.objectives.texts import SpecialTokens, check_room, document_ids, stream_pieces

DEFAULT = Masking()


class MaskedLM(Supervised):
    """The words behind masks (Devlin et al. 2018, arXiv:1810.04805, section 3.1).

    Args:
        masking: how tokens are chosen and replaced: single ones, whole words or spans, anew in every batch or always
            alike.
        label_smoothing: as for `Supervised`.
    """

    model_class = "AutoModelForMaskedLM"

    def __init__(self, masking: Masking = DEFAULT, *, label_smoothing: float = 0.0):
        super().__init__(label_smoothing)
        self.masking = masking

    def examples(
        self, documents: Iterable[Iterable[str]], tokenizer: Any, *, max_length: int, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """The tokens of each document in pieces of `max_length`, the last one shorter."""
        special = SpecialTokens(tokenizer)
        room = check_room(max_length, len(special))
        for document in document_ids(tokenizer, documents):
            ids = [token for sentence in document for token in sentence]
            for start in range(0, len(ids), room):
                yield special.around(ids[start : start + room])

    def collator(self, tokenizer: Any, *, seed: int = 0) -> Collator:
        collator = DataCollatorForLanguageModeling(tokenizer, seed=seed)
        collator.masking = self.masking
        return collator


class NextWords(Supervised):
    """The labels of a model whose tokens predict the one after them: `Supervised`, but for its weight."""

    def weight(self, batch: Batch) -> float:
        """The tokens that are predicted: those with a label that another one precedes; with class_weights the sum of
        their weights."""
        labels = kernels.to_host(batch["labels"])
        if batch.get("target_mapping") is not None:  # XLNet, whose predictions have labels of their own
            return super().weight(batch)
        mask = batch.get("attention_mask")
        precedes = True if mask is None else kernels.to_host(mask)[:, :-1] != 0
        return super().weight({"labels": np.where(precedes, labels[:, 1:], IGNORED)})


class CausalLM(NextWords):
    """The next word (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners")."""

    model_class = "AutoModelForCausalLM"

    def examples(
        self, documents: Iterable[Iterable[str]], tokenizer: Any, *, max_length: int, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """One stream of all documents, each followed by the end-of-text token, in pieces of `max_length` tokens, the
        last one shorter. Documents without tokens are left out."""
        if tokenizer.eos_token_id is None:
            raise ValueError("tokenizer has no eos_token, which ends a document")
        check_room(max_length, 0)
        for piece in stream_pieces(tokenizer, documents, tokenizer.eos_token_id, max_length):
            if len(piece) > 1:  # a single token has nothing to predict
                yield {"input_ids": piece}

    def collator(self, tokenizer: Any, *, seed: int = 0) -> Collator:
        """Without a padding token the end-of-text token pads: padding has no label, and no token sees it."""
        collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
        if collator.pad_token_id is None:
            collator.pad_token_id = tokenizer.eos_token_id
        return collator
