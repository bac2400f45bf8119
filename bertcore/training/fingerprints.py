"""Fingerprints of weights, by which a run knows whether it goes on with those that it had."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np


def _fingerprint(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.blake2b()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()[:16]


def fingerprint_of(model: Any | None) -> str | None:
    """The fingerprint of a model's weights; None without a model."""
    return None if model is None else _fingerprint(model.state_dict().values())


def fingerprint_beyond_checkpoints(model: Any) -> str | None:
    """The fingerprint of the weights that a checkpoint of the model does not hold, those beside adapters; None if it
    holds all."""
    held = model.expected_tensors()
    others = [parameter.array() for parameter in model.parameters() if not held.keys() >= set(parameter.names)]
    return _fingerprint(others) if others else None
