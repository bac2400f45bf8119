"""Runs that leave the finite numbers: what is kept to find out why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.checkpoint.files import naming
from bertcore.training.checkpoints import write_folder


class TrainingDiverged(RuntimeError):
    """The loss or a gradient is inf or NaN; `folder` has the batches and the model of the step."""

    def __init__(self, message: str, folder: Path):
        super().__init__(message)
        self.folder = folder


def non_finite(grads: Mapping[str, Any]) -> list[str]:
    """The names of the gradients that hold inf or NaN."""
    return [name for name, array in grads.items() if not bool(kernels.array_module(array).isfinite(array).all())]


def keep_for_post_mortem(
    folder: Path, model: Any, batches: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> None:
    """Write the model as it was before the step, its batches (batch-0.npz, ...) and what is known (failure.json)."""

    def fill(new: Path) -> None:
        model.save_pretrained(new)
        for number, batch in enumerate(batches):
            np.savez(new / f"batch-{number}.npz", **{name: np.asarray(value) for name, value in batch.items()})
        (new / "failure.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")

    with naming(folder):
        write_folder(folder, fill)
