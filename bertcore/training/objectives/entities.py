"""Losses of models of entities: masked words and entities (LUKE), and the spans and labels of GLiNER."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, check_number, check_share
from bertcore.gradients import TrainedModel, with_loss
from bertcore.kernels import checks
from bertcore.kernels.arrays import Array
from bertcore.models.gliner import GLiNERModel, GLiNEROutput
from bertcore.models.outputs import ModelOutput
from bertcore.tokenization.mentions import PromptedText, PromptReader, as_batch, split_words
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.collators import IGNORED, DataCollatorForLanguageModeling, Masking
from bertcore.training.data.files import Rows, wrong_record
from bertcore.training.data.spans import LabelledEntities
from bertcore.training.objectives.language_modeling import DEFAULT, MaskedLM
from bertcore.training.objectives.objective import Batch, Collator, Examples, Objective
from bertcore.training.objectives.text_examples import SpecialTokens, text_limit

SPANS, NAMES = "entity_spans", "entities"


class EntityMaskedLM(MaskedLM):
    """Masked words and masked entities (Yamada et al. 2020, arXiv:2010.01057, section 3.3).

    A fraction of each text's entities, rounded to a whole number of at least one, is replaced by the entity [MASK]; the
    words that mention them are masked like all others. Unknown entities are given as [UNK] and not predicted. The loss
    is the sum of two means, over masked words and over masked entities; its weight is the number of masked words.

    Args:
        masking: of the words, as for `MaskedLM`.
        entity_share: the fraction of entities.
        entity_samples: estimate the loss of entities from the batch's own and this many others, drawn anew for each
            batch (LUKE has 500,000). The sum over all entities in the softmax is estimated without bias, by
            importance sampling with the correction by log Q (Bengio and Senecal 2008; Jean et al. 2015,
            arXiv:1412.2007; Yi et al. 2019). None for all entities, the exact loss.
        label_smoothing: of both, as for `Supervised`.

    Raises ValueError for a share outside 0 to 1, and for label smoothing with samples.
    """

    def __init__(
        self,
        masking: Masking = DEFAULT,
        entity_share: float = 0.15,
        *,
        entity_samples: int | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__(masking, label_smoothing=label_smoothing)
        self.entity_share = check_share("entity_share", entity_share)
        self.entity_samples = None if entity_samples is None else check_count("entity_samples", entity_samples)
        if self.entity_samples and label_smoothing:
            raise ValueError(f"label_smoothing is {label_smoothing}, expected 0 with entity_samples")

    def examples(self, documents: Rows, tokenizer: Tokenizer, *, max_length: int, seed: int = 0) -> Examples:
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

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> Collator:
        collator = EntityCollator(tokenizer, self.entity_share, samples=self.entity_samples, seed=seed)
        collator.masking = self.masking
        return collator

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        """Return the model's loss; only the words' loss for a batch without a masked entity."""
        if not (kernels.to_host(batch["entity_labels"]) != IGNORED).any():
            batch = {name: value for name, value in batch.items() if name not in ("entity_labels", "entity_sample")}
        return super().loss(model, batch)


def _by_piece(entities: Sequence[int], positions: Sequence[Sequence[int]], limit: int, before: int) -> dict[int, list]:
    """Return {number of a piece of `limit` tokens: (entity, places) of each mention that is wholly in it}."""
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
        samples: entities drawn for the loss of each batch; None for none.
        seed: of the random choices.

    Raises ValueError for a tokenizer without entities, or one that pads on the left, or for more samples than entities.
    """

    def __init__(self, tokenizer: Tokenizer, share: float, *, samples: int | None = None, seed: int = 0):
        super().__init__(tokenizer, seed=seed)
        if not getattr(tokenizer, "entity_vocab", None):
            raise ValueError("tokenizer has no entity_vocab, which masked entities need")
        if tokenizer.padding_side == "left":
            raise ValueError("padding_side is 'left', expected 'right': entity positions count from the first column")
        self.share, self.special, self.samples = share, tokenizer.special_entity_ids, samples
        self.entities = len(tokenizer.entity_vocab)
        if samples is not None and samples > self.entities:
            raise ValueError(f"entity_samples is {samples}, expected at most the {self.entities} entities")

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the batch: words as in `DataCollatorForLanguageModeling`, and entities.

        These are entity_ids, entity_attention_mask and entity_labels, (examples, entities), and entity_position_ids,
        (examples, entities, most tokens of a mention), filled up with -1; with samples entity_sample, (samples,).
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
        if self.samples:
            named["entity_sample"] = self.rng.choice(self.entities, self.samples, replace=False)
        return batch | named | {"entity_labels": labels}

    def masking_settings(self) -> dict[str, Any]:
        own = {"entity_share": self.share} | ({"entity_samples": self.samples} if self.samples else {})
        return super().masking_settings() | own

    def _masked(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (entities with some masked, labels) of one text."""
        known = np.flatnonzero(~np.isin(ids, list(self.special.values())))
        count = max(1, round(self.share * len(known))) if self.share else 0
        chosen = self.rng.permutation(known)[:count]
        labels, masked = np.full(len(ids), IGNORED), ids.copy()
        labels[chosen], masked[chosen] = ids[chosen], self.special["entity_mask_token"]
        return masked, labels


EPS = 1e-6  # the least argument of a logarithm
MASKING = "none", "global", "label", "span"
MOST_OTHERS = 100  # labels of a batch that are drawn for its texts


class GLiNEREntities(Objective):
    """The focal loss of spans, or of starts, ends and insides; its names and values follow the package gliner.

    Examples are {"text", "spans": [[first, last + 1, label], ...]}, in characters; an entity takes the whole words that
    it touches. A text is read beside its own labels and a random number of the batch's others, in random order. An
    example may give them: "labels" are all labels to read, "negatives" those beside its own.

    Args:
        model: the model that is trained, whose config has `max_types`, the most labels of a text, and
            `max_neg_type_ratio`, the most other labels for each of its entities.
        alpha, gamma: of the focal loss (Lin et al. 2017, arXiv:1708.02002): the weight of spans that are entities (-1
            for no weights) and the power of the error. The defaults give the binary cross entropy.
        prob_margin: subtracted from the probability of spans that are not entities.
        label_smoothing: e, which makes targets (1 - e) t + e / 2.
        reduction: "sum", or "mean" over spans (for the token kind over words and labels).
        masking: which parts of the loss that are not of entities count only with probability `negatives`: "none",
            all ("global"), those of labels without an entity in the text ("label"), or of spans without a label
            ("span"). Models of the token kind have "none".
        negatives: see `masking`.

    Raises TypeError or ValueError for a wrong model or number.
    """

    targets = ("targets", "weights")

    def __init__(
        self,
        model: GLiNERModel,
        *,
        alpha: float = -1.0,
        gamma: float = 0.0,
        prob_margin: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "sum",
        masking: str = "none",
        negatives: float = 1.0,
    ):
        if not isinstance(model, GLiNERModel):
            raise TypeError(f"model is {type(model).__name__}, expected a GLiNERModel")
        self.spec, self._positions = model.gliner, model.spec.longest_sequence
        self.alpha = check_share("alpha", alpha) if alpha != -1 else -1.0
        self.gamma, self.prob_margin = check_number("gamma", gamma), check_share("prob_margin", prob_margin)
        self.label_smoothing = check_share("label_smoothing", label_smoothing)
        checks.choice("reduction", reduction, ("sum", "mean"))
        checks.choice("masking", masking, MASKING)
        if masking != "none" and self.spec.kind == "token":
            raise ValueError(f"masking is {masking!r}, expected 'none' for a model of the token kind")
        self.reduction, self.masking, self.negatives = reduction, masking, check_share("negatives", negatives)

    def collator(self, tokenizer: Tokenizer, *, seed: int = 0) -> GLiNERCollator:
        return GLiNERCollator(PromptReader.of(tokenizer, self.spec, self._positions), self, seed=seed)

    def weight(self, batch: Batch) -> float:
        """Return the number that the loss is a mean over; 1 for a sum."""
        if self.reduction == "sum":
            return 1.0
        words = kernels.to_host(batch["text_lengths"])[:, 0]
        if self.spec.kind == "span":
            return float(sum(np.maximum(words - width, 0).sum() for width in range(self.spec.max_width)))
        return float((words * (kernels.to_host(batch["input_ids"]) == self.spec.class_token).sum(axis=1)).sum())

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        inputs = {name: array for name, array in batch.items() if name not in self.targets}

        def of_output(out: GLiNEROutput) -> tuple[Any, Mapping[str, Any]]:
            xp, count = kernels.array_module(out.logits), self.weight(batch)
            targets, weights = (xp.asarray(batch[name]).astype("float64") for name in self.targets)
            losses, slopes = self.of_logits(out.logits.astype("float64"), targets)
            value, grad = (losses * weights).sum() / max(count, 1), slopes * weights / max(count, 1)
            return xp.asarray(value, out.logits.dtype), {"logits": grad.astype(out.logits.dtype)}

        return with_loss(model(**inputs), of_output)

    def of_logits(self, logits: Array, targets: Array) -> tuple[Array, Array]:
        """Return the loss of each logit and its derivative, for targets of 0 and 1."""
        xp = kernels.array_module(logits)
        targets = targets * (1 - self.label_smoothing) + self.label_smoothing / 2
        p = 0.5 + xp.tanh(logits / 2) / 2
        kept, is_kept = (p - self.prob_margin).clip(0, 1), p >= self.prob_margin
        value = -targets * xp.log(p.clip(EPS)) - (1 - targets) * xp.log((1 - kept).clip(EPS))
        slope = (1 - targets) * is_kept * (1 - kept >= EPS) / (1 - kept).clip(EPS) - targets * (p >= EPS) / p.clip(EPS)
        if self.gamma:
            error = 1 - p * targets - (1 - kept) * (1 - targets)
            factor = error.clip(0) ** self.gamma
            of_factor = self.gamma * error.clip(EPS) ** (self.gamma - 1) * ((1 - targets) * is_kept - targets)
            value, slope = value * factor, slope * factor + value * of_factor
        if self.alpha >= 0:
            share = self.alpha * targets + (1 - self.alpha) * (1 - targets)
            value, slope = share * value, share * slope
        return value, slope * p * (1 - p)


class GLiNERCollator:
    """Batches of a GLiNERModel from texts with spans; see `GLiNEREntities`.

    `rng` draws the labels beside a text's own, their order, and the parts of the loss that count.
    """

    def __init__(self, reader: PromptReader, objective: GLiNEREntities, *, seed: int = 0):
        self._reader, self._objective, self.rng = reader, objective, np.random.default_rng(seed)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return input_ids, attention_mask, words_mask, text_lengths, and the targets and weights of the logits.

        Raises MalformedRecord, a ValueError, naming a malformed record.
        """
        columns = LabelledEntities(nested=True)
        entities = [columns.entities(record, number) for number, record in enumerate(examples)]
        labels = self._labels(examples, entities)
        words = [list(split_words(record["text"])) for record in examples]
        given = [[record["text"][slice(*word)] for word in some] for record, some in zip(examples, words, strict=True)]
        rows, spec = self._reader.read(given, labels), self._objective.spec
        batch = as_batch(rows, self._reader.tokenizer.pad_token_id)
        most = max((len(row.words) for row in rows), default=0), max(map(len, labels), default=0)
        sides = (most[0], spec.max_width, most[1]) if spec.kind == "span" else (*most, 3)
        targets, weights = np.zeros((2, len(rows), *sides), np.float32)
        for number, (row, names) in enumerate(zip(rows, labels, strict=True)):
            found = [(*_of_words(span, words[number], row), kind) for span, kind in entities[number]]
            self._fill(targets[number], weights[number], found, names, len(row.words))
        return batch | {"targets": targets, "weights": self._masked(targets, weights)}

    def _labels(self, examples: Sequence[Mapping[str, Any]], entities: Sequence[Any]) -> list[list[str]]:
        known = sorted({kind for some in entities for _, kind in some})
        others, found = self.rng.permutation(np.array(known, object))[:MOST_OTHERS].tolist(), []
        for number, (record, some) in enumerate(zip(examples, entities, strict=True)):
            ratio = self.rng.integers(0, self._objective.spec.max_negatives, endpoint=True)
            own, beside = _names(record, number, "labels"), _names(record, number, "negatives")
            if own is None:
                beside = others[: len(some) * int(ratio)] if beside is None else beside
                every = dict.fromkeys([*(kind for _, kind in some), *beside])
                own = self.rng.permutation(np.array(list(every), object))[: self._objective.spec.max_types].tolist()
            found.append(list(dict.fromkeys(own)) or [""])
        return found

    def _fill(self, targets: np.ndarray, weights: np.ndarray, found: list, names: list[str], words: int) -> None:
        """Write the targets of one text, and weights of 1 where it has logits."""
        is_of_tokens, width = self._objective.spec.kind == "token", targets.shape[1]
        if is_of_tokens:
            weights[:words, : len(names)] = 1
        else:
            is_within = np.arange(words)[:, None] + np.arange(width) < words
            weights[:words, :, : len(names)] = is_within[:, :, None]
        for first, last, name in found:
            if first < 0 or last < 0 or name not in names:
                continue
            label = names.index(name)
            if is_of_tokens:
                targets[first, label, 0] = targets[last, label, 1] = targets[first : last + 1, label, 2] = 1
            elif last - first < width:
                targets[first, last - first, label] = 1

    def _masked(self, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        if self._objective.masking == "none":
            return weights
        axes = {"global": (), "label": (1, 2), "span": (3,)}[self._objective.masking]
        is_positive = targets.any(axis=axes, keepdims=True) if axes else targets > 0
        return weights * (is_positive | (self.rng.random(targets.shape) < self._objective.negatives))

    def masking_settings(self) -> dict[str, Any]:
        return {"masking": self._objective.masking, "negatives": self._objective.negatives}


def _names(record: Mapping[str, Any], number: int, key: str) -> list[str] | None:
    names = record.get(key)
    if names is not None and not (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)):
        raise wrong_record(record, number, f"{key!r} is {names!r:.60}, expected a list of strings")
    return None if names is None else list(names)


def _of_words(span: tuple[int, int], words: Sequence[tuple[int, int]], row: PromptedText) -> tuple[int, int]:
    """Return the numbers of the first and the last word that a span touches, -1 for a word not read."""
    touched = [number for number, (first, last) in enumerate(words) if first < span[1] and span[0] < last]
    places = {number: place for place, number in enumerate(row.words[: max(row.words_mask)])}
    return (places.get(touched[0], -1), places.get(touched[-1], -1)) if touched else (-1, -1)
