"""Checkpoints on disk: config.json, safetensors weights (one file or shards), names, saving."""

from .config import read_config
from .errors import CheckpointError
from .names import NameRules
from .parameters import load_parameters
from .reading import Checkpoint, open_checkpoint
from .safetensors_file import TensorInfo
from .saving import save_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "NameRules",
    "TensorInfo",
    "load_parameters",
    "open_checkpoint",
    "read_config",
    "save_checkpoint",
]
