"""The members that are compared, and their batches."""

import functools
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.peers.cases import SHAPES, Batch, random_batch
from bertcore.models.auto import AutoModel
from bertcore.models.figures import flops_per_token
from bertcore.models.registry import known_families
from bertcore.presets import PRESETS, preset_config
from tests.tiny_families import tiny_config

BERT = "bert-base-uncased"
# Presets; those of families that are not there yet are left out of a run.
MEMBERS = (
    BERT, "minilm-l6-h384", "distilbert-base-uncased", "roberta-base", "albert-base-v2", "electra-base-discriminator",
    "mobilebert-uncased", "deberta-base", "deberta-v3-base", "xlnet-base-cased", "luke-base", "gpt2",
)  # fmt: skip
NO_PEER = ("transfo-xl",)  # families that transformers no longer has


def comparable() -> list[str]:
    """The presets whose family bertcore and transformers have."""
    families = set(known_families()) - set(NO_PEER)
    return [name for name, preset in PRESETS.items() if preset.config["model_type"] in families]


@dataclass(frozen=True)
class Case:
    """A member on one batch, as `bench.peers.compare` takes it; `quick` is its small model."""

    model: str
    shape: str
    quick: bool = False

    @property
    def config(self) -> Mapping[str, Any]:
        return config_of(self.model, self.quick)

    @property
    def lengths(self) -> tuple[int, ...]:
        return SHAPES[self.shape]

    @functools.cached_property
    def flops(self) -> int:
        """FLOPs of the products in the encoder, on real tokens."""
        model = AutoModel(self.config)
        return sum(length * flops_per_token(model, length) for length in self.lengths)

    def batch(self) -> Batch:
        """Random ids, the same in every run."""
        seed, padding = zlib.crc32(self.shape.encode()), self.config.get("pad_token_id") or 0
        return random_batch(self.lengths, self.config["vocab_size"], seed, padding)


def config_of(model: str, quick: bool) -> dict[str, Any]:
    """The config of a preset, or of its small model."""
    return tiny_config(model) if quick else preset_config(model)
