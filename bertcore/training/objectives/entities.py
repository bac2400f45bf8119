"""Masked words and masked entities: texts with mentions, for LUKE."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_share
from bertcore.training.collators import DataCollatorForLanguageModeling
from bertcore.training.masking import IGNORED, Masking
from bertcore.training.objectives.language_modeling import DEFAULT, MaskedLM
from bertcore.training.objectives.objective import Batch, Collator, SpecialTokens, text_limit

SPANS, NAMES = "entity_spans", "entities"


class EntityMaskedLM(MaskedLM):
    """Masked words and masked entities (Yamada et al. 2020, arXiv:2010.01057, section 3.3).

    A fraction of each text's entities, rounded to a number, at least one, is replaced by the entity [MASK]; the words
    that mention them are masked as all others. Unknown entities are given as [UNK] and not predicted. The loss is the
    sum of two means, over masked words and over masked entities; its weight is the number of masked words.

    Args:
        masking: of the words, as for `MaskedLM`.
        entity_share: the fraction of entities.
        label_smoothing: of both, as for `Supervised`.

    Raises:
        ValueError: for a share outside 0 to 1.
    """

    def __init__(self, masking: Masking = DEFAULT, entity_share: float = 0.15, *, label_smoothing: float = 0.0):
        super().__init__(masking, label_smoothing=label_smoothing)
        self.entity_share = check_share("entity_share", entity_share)

    def examples(
        self, documents: Iterable[Mapping[str, Any]], tokenizer: Any, *, max_length: int, seed: int = 0
    ) -> Iterator[dict[str, Any]]:
        """Yield the tokens of each text in pieces of at most `max_length`, each with the entities within it.

        `documents` are mappings of text, a string; entity_spans, the first and the last + 1 character of each mention;
        and entities, their names in the tokenizer's entity_vocab. A mention cut by the end of a piece is left out.
        """
        special = SpecialTokens(tokenizer)
        limit = text_limit(max_length, len(special))
        for index, record in enumerate(documents):
            if not isinstance(record, Mapping):
                raise TypeError(f"documents[{index}] is {type(record).__name__}, expected a mapping with text")
            missing = [name for name in ("text", SPANS, NAMES) if name not in record]
            if missing:
                raise ValueError(f"documents[{index}] has no {missing[0]}, it has {', '.join(record)}")
            mentions = {SPANS: record[SPANS], NAMES: record[NAMES]}
            row = tokenizer(record["text"], **mentions, add_special_tokens=False)
            mentions_of = _by_piece(row["entity_ids"], row["entity_position_ids"], limit, special.before())
            for start in range(0, len(row["input_ids"]), limit):
                within = mentions_of[start // limit]
                entities = {"entity_ids": [entity for entity, _ in within]}
                entities["entity_position_ids"] = [places for _, places in within]
                yield special.around(row["input_ids"][start : start + limit]) | entities

    def collator(self, tokenizer: Any, *, seed: int = 0) -> Collator:
        collator = EntityCollator(tokenizer, self.entity_share, seed=seed)
        collator.masking = self.masking
        return collator

    def loss(self, model: Any, batch: Batch) -> Any:
        """Return the model's loss; of the words alone for a batch without a masked entity."""
        if not (kernels.to_host(batch["entity_labels"]) != IGNORED).any():
            batch = {name: value for name, value in batch.items() if name != "entity_labels"}
        return super().loss(model, batch)


def _by_piece(
    entities: Sequence[int], positions: Sequence[Sequence[int]], limit: int, before: int
) -> Mapping[int, list[tuple[int, list[int]]]]:
    """Return the (entity, places) of each piece of `limit` tokens that holds the whole mention, by its number."""
    found = defaultdict(list)
    for entity, some in zip(entities, positions, strict=True):
        places = [place for place in some if place >= 0]
        if places and places[0] // limit == places[-1] // limit:
            found[places[0] // limit].append((entity, [place % limit + before for place in places]))
    return found


class EntityCollator(DataCollatorForLanguageModeling):
    """Padded batches with masked words and masked entities.

    Args:
        tokenizer: of words and entities.
        share: of the entities of a text.
        seed: of the random choices.

    Raises:
        ValueError: for a tokenizer without entities, or one that pads on the left.
    """

    def __init__(self, tokenizer: Any, share: float, *, seed: int = 0):
        super().__init__(tokenizer, seed=seed)
        if not getattr(tokenizer, "entity_vocab", None):
            raise ValueError("tokenizer has no entity_vocab, which masked entities need")
        if tokenizer.padding_side == "left":
            raise ValueError("padding_side is 'left'; entities' positions count from a row's first column: 'right'")
        self.share, self.special = share, tokenizer.special_entity_ids

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the batch: words as in `DataCollatorForLanguageModeling`, and entities.

        These are entity_ids, entity_attention_mask and entity_labels, (examples, entities), and entity_position_ids,
        (examples, entities, most tokens of a mention), filled up with -1.
        """
        words = [{name: value for name, value in row.items() if not name.startswith("entity_")} for row in examples]
        batch = super().__call__(words)
        for index, row in enumerate(examples):
            missing = [name for name in ("entity_ids", "entity_position_ids") if name not in row]
            if missing:
                raise ValueError(f"examples[{index}] has no {missing[0]}")
        count = max(1, *(len(row["entity_ids"]) for row in examples))
        tokens = max((len(places) for row in examples for places in row["entity_position_ids"]), default=1)
        ids = np.full((len(examples), count), self.special["entity_pad_token"])
        mask, labels = np.zeros((2, *ids.shape), np.int64)
        positions = np.full((*ids.shape, tokens), -1)
        for index, row in enumerate(examples):
            here = slice(len(row["entity_ids"]))
            ids[index, here], labels[index, here] = self._masked(np.asarray(row["entity_ids"], np.int64))
            labels[index, here.stop :], mask[index, here] = IGNORED, 1
            for place, columns in enumerate(row["entity_position_ids"]):
                positions[index, place, : len(columns)] = columns
        named = {"entity_ids": ids, "entity_attention_mask": mask, "entity_position_ids": positions}
        return batch | named | {"entity_labels": labels}

    def masking_settings(self) -> dict[str, Any]:
        return super().masking_settings() | {"entity_share": self.share}

    def _masked(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (entities with some masked, labels) of one text."""
        known = np.flatnonzero(~np.isin(ids, list(self.special.values())))
        count = max(1, round(self.share * len(known))) if self.share else 0
        chosen = self.rng.permutation(known)[:count]
        labels, masked = np.full(len(ids), IGNORED), ids.copy()
        labels[chosen], masked[chosen] = ids[chosen], self.special["entity_mask_token"]
        return masked, labels
