"""What is trained: models, the lengths of their texts, and the work of a step."""

import functools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bench.peers.cases import random_batch
from bench.texts import ragged_lengths
from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification
from bertcore.models.figures import flops_per_token
from bertcore.presets import preset_config
from tests.tiny_families import tiny_config

MASKED_LM, CLASSIFICATION = "MaskedLM", "SequenceClassification"
TASKS = {MASKED_LM: AutoModelForMaskedLM, CLASSIFICATION: AutoModelForSequenceClassification}
LABELLED = 0.15  # of the tokens, in masked language modelling
BATCHES = 4  # that take turns

SHAPES = {
    "8x64": (64,) * 8,
    "64x64": (64,) * 64,
    "8x128": (128,) * 8,
    "ragged": ragged_lengths(64),
}

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One model on batches of one shape; `quick` is its small model, `changes` are those of the preset's config."""

    model: str
    shape: str
    task: str = MASKED_LM
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    quick: bool = False

    @property
    def name(self) -> str:
        return f"{self.model}/{self.shape}"

    @property
    def lengths(self) -> tuple[int, ...]:
        return SHAPES[self.shape]

    @property
    def config(self) -> dict[str, Any]:
        config = tiny_config(self.model) if self.quick else preset_config(self.model)
        return config | self.changes

    @functools.cached_property
    def flops(self) -> float:
        """FLOPs of the products of a step: three times those of a forward that scores labelled tokens alone."""
        model = AutoModel(self.config)
        encoder = sum(length * flops_per_token(model, length) for length in self.lengths)
        head = 0.0
        if self.task == MASKED_LM:
            width, rows = model.spec.hidden_size, LABELLED * sum(self.lengths)
            head = 2 * rows * width * (width + model.spec.vocab_size)
        return 3 * (encoder + head)

    def batches(self) -> list[Batch]:
        """Random ids and labels, the same in every run."""
        seed = zlib.crc32(self.name.encode())
        return [self._batch(np.random.default_rng(seed + number)) for number in range(BATCHES)]

    def _batch(self, rng: np.random.Generator) -> Batch:
        words, config = self.config["vocab_size"], self.config
        ids, mask = random_batch(self.lengths, words, rng.integers(2**32), config.get("pad_token_id") or 0)
        if self.task == CLASSIFICATION:
            labels = rng.integers(0, 2, len(ids))
        else:
            is_chosen = (rng.random(ids.shape) < LABELLED) & (mask == 1)
            ids, labels = np.where(is_chosen, words - 1, ids), np.where(is_chosen, ids, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


_LONGER = {"max_position_embeddings": 128}
CASES = (
    Case("mini-bert", "8x64"),
    Case("mini-bert", "64x64"),
    Case("mini-bert", "ragged", changes=_LONGER),
    Case("bert-base-uncased", "8x128"),
    Case("deberta-v3-base", "8x128", CLASSIFICATION, {"num_hidden_layers": 4}),
)


def find_case(name: str, quick: bool = False) -> Case:
    """The case of that name."""
    (found,) = (case for case in CASES if case.name == name)
    return replace(found, quick=quick)
