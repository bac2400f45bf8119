"""Checkpoints: config.json, weights (safetensors or pickles, one file or shards), names, saving, hub ids."""

from .config import INPUT_SCALE, SCALE, naming_config, read_config, split_dtype, with_dtype
from .files import CheckpointError, copied
from .hub import resolve
from .parameters import NameRules, load_parameters
from .safetensors_file import TensorInfo
from .weights import Adapters, Checkpoint, open_checkpoint, save_checkpoint

__all__ = [
    "INPUT_SCALE", "SCALE", "Adapters", "Checkpoint", "CheckpointError", "NameRules", "TensorInfo", "copied",
    "load_parameters", "naming_config", "open_checkpoint", "read_config", "resolve", "save_checkpoint", "split_dtype",
    "with_dtype",
]  # fmt: skip
