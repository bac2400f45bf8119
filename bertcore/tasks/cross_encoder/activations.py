"""What is made of a cross-encoder's logits: functions, and the names that published configs give them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.checkpoint import CheckpointError
from bertcore.tasks.probabilities import sigmoid, softmax, unchanged

Activation = Callable[[np.ndarray], np.ndarray]


def _relu(logits: np.ndarray) -> np.ndarray:
    return np.maximum(logits, 0)


# (pairs, labels) -> (pairs, labels), by the lower-case name of PyTorch's class.
ACTIVATIONS: dict[str, Activation] = {
    "identity": unchanged,
    "relu": _relu,
    "sigmoid": sigmoid,
    "softmax": softmax,
    "tanh": np.tanh,
}


def chosen_activation(activation_fn: str | Activation) -> Activation:
    """The function that an argument names, or that it is.

    Raises ValueError for an unknown name, TypeError for what is neither.
    """
    if isinstance(activation_fn, str):
        if activation_fn not in ACTIVATIONS:
            raise ValueError(f"activation_fn is {activation_fn!r}, expected a function or one of {_known()}")
        return ACTIVATIONS[activation_fn]
    if not callable(activation_fn):
        raise TypeError(f"activation_fn is {activation_fn!r}, expected a function or one of {_known()}")
    return activation_fn


def published_activation(
    settings: tuple[Path, Mapping[str, Any]], config: tuple[Path, Mapping[str, Any]], num_labels: int
) -> str:
    """The name of the activation that a model was published with.

    It stands in `activation_fn` of the settings of the whole model, or of the config's section
    "sentence_transformers", or in the config's "sbert_ce_default_activation_function" (before version 4). Where none
    says it, it is the sigmoid for one label and the identity for several.

    Raises CheckpointError for a function that is not known here.
    """
    section = config[1].get("sentence_transformers")
    section = section if isinstance(section, dict) else {}
    old = "sbert_ce_default_activation_function"
    for file, stated in (
        (settings[0], settings[1].get("activation_fn")),
        (config[0], section.get("activation_fn")),
        (config[0], config[1].get(old)),
    ):
        if stated is not None:
            return _name_of(file, stated)
    return "sigmoid" if num_labels == 1 else "identity"


def _name_of(file: Path, stated: Any) -> str:
    name = stated.rpartition(".")[2].lower() if isinstance(stated, str) and stated.startswith("torch.") else ""
    if name not in ACTIVATIONS:
        raise CheckpointError(
            f"{file}: the activation is {stated!r}, known are PyTorch's {_known()}; activation_fn= chooses another"
        )
    return name


def _known() -> str:
    return ", ".join(ACTIVATIONS)
