"""The modules that may follow the pooling: linear maps, layer norms, scaling to length 1."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.checkpoint import Checkpoint, CheckpointError, open_checkpoint
from bertcore.checkpoint.files import CONFIG_NAME, read_json_object
from bertcore.nn.layers import LayerNorm, Linear
from bertcore.nn.parameter import Block, Parameter
from bertcore.tasks.folder import Module, flag, positive_integer
from bertcore.tasks.probabilities import unchanged
from bertcore.tasks.similarity import normalized

# PyTorch's class, by the last part of its name -> the name that `kernels.linear` knows.
ACTIVATIONS = {"Identity": None, "GELU": "gelu", "ReLU": "relu", "SiLU": "silu", "Tanh": "tanh"}
NAMES_OF_VECTORS = (None, "sentence_embedding")  # which vectors a module reads and writes

Map = Callable[[Any], Any]


class Dense(Block):
    """activation(linear(rows)), plus the rows themselves, or a linear map of them, with `residual`."""

    def __init__(self, sizes: Mapping[str, int], *, activation: str | None, bias: bool, residual: bool):
        self.linear = Linear("linear", **sizes, activation=activation, bias=bias)
        self.has_residual, self.residual = residual, None
        if residual and sizes["in_features"] != sizes["out_features"]:
            self.residual = Linear("residual", **sizes, bias=False)

    def __call__(self, rows: Any) -> Any:
        """(texts, in_features) -> (texts, out_features)."""
        if not self.has_residual:
            return self.linear(rows)
        return self.linear(rows, rows if self.residual is None else self.residual(rows))


def read_maps(modules: tuple[Module, ...], width: int, dtype: str) -> tuple[list[Map], int]:
    """The functions of the modules that follow the pooling, and the width of what the last one returns.

    Args:
        modules: of kinds that MAPS has.
        width: of the vectors that the first one is given.
        dtype: of the weights, "float32" or "float64".

    Raises CheckpointError: which file is wrong, and how.
    """
    maps = []
    for module in modules:
        found, width = MAPS[module.kind](module.folder, width, dtype)
        maps.append(found)
    return maps, width


def _dense(folder: Path, width: int, dtype: str) -> tuple[Map, int]:
    file = folder / CONFIG_NAME
    config = read_json_object(file)
    sizes = {key: positive_integer(file, config, key) for key in ("in_features", "out_features")}
    for key, value in sizes.items():
        if value is None or (key == "in_features" and value != width):
            expected = "a positive integer" if key == "out_features" else f"{width}, the width before it"
            raise CheckpointError(f"{file}: {key} is {value!r}, expected {expected}")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in NAMES_OF_VECTORS:
            raise CheckpointError(f"{file}: {key} is {config[key]!r}, supported is 'sentence_embedding'")
    stated = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = stated.rpartition(".")[2] if isinstance(stated, str) and stated.startswith("torch.") else None
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise CheckpointError(f"{file}: activation_function is {stated!r}, supported are PyTorch's {known}")
    options = {"bias": flag(file, config, "bias", True), "residual": flag(file, config, "use_residual")}
    dense = Dense(sizes, activation=ACTIVATIONS[name], **options)
    _fill(dense, open_checkpoint(folder), dtype)
    return dense, sizes["out_features"]


def _layer_norm(folder: Path, width: int, dtype: str) -> tuple[Map, int]:
    file = folder / CONFIG_NAME
    stated = positive_integer(file, read_json_object(file), "dimension")
    if stated != width:
        raise CheckpointError(f"{file}: dimension is {stated!r}, expected {width}, the width before it")
    norm = LayerNorm("norm", features=width, eps=1e-5)  # PyTorch's default, and nothing states another
    _fill(norm, open_checkpoint(folder), dtype)
    return norm, width


def _fill(block: Block, checkpoint: Checkpoint, dtype: str) -> None:
    """Give the block's parameters the values of the file, each seen to have its shape."""
    for parameter in block.parameters():
        _check(parameter, checkpoint)
        parameter.fill({name: np.asarray(checkpoint[name], dtype) for name in parameter.names}, dtype)


def _check(parameter: Parameter, checkpoint: Checkpoint) -> None:
    for name in parameter.names:
        found = checkpoint.info[name].shape if name in checkpoint else None
        if found is None or tuple(found) != tuple(parameter.shape):
            what = "is missing" if found is None else f"has shape {tuple(found)}"
            raise CheckpointError(f"{checkpoint.source}: {name} {what}, expected {tuple(parameter.shape)}")


# A module's kind -> its function and the width that this returns, of the folder, the width before it and the dtype.
MAPS: dict[str, Callable[[Path, int, str], tuple[Map, int]]] = {
    "Dense": _dense,
    "Dropout": lambda folder, width, dtype: (unchanged, width),  # which is for training
    "LayerNorm": _layer_norm,
    "Normalize": lambda folder, width, dtype: (normalized, width),
}
