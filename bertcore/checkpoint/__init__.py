"""Checkpoints: config.json, weights (safetensors or pickles, one file or shards), names, saving; ids on the hub."""

from .adapters import AdaptedCheckpoint, Adapters
from .config import naming_config, read_config
from .dtypes import INPUT_SCALE, SCALE, split_dtype, with_dtype
from .errors import CheckpointError
from .hub import resolve
from .names import NameRules
from .parameters import load_parameters
from .reading import Checkpoint, open_checkpoint
from .safetensors_file import TensorInfo
from .saving import save_checkpoint

__all__ = [
    "INPUT_SCALE",
    "SCALE",
    "AdaptedCheckpoint",
    "Adapters",
    "Checkpoint",
    "CheckpointError",
    "NameRules",
    "TensorInfo",
    "load_parameters",
    "naming_config",
    "open_checkpoint",
    "read_config",
    "resolve",
    "save_checkpoint",
    "split_dtype",
    "with_dtype",
]
