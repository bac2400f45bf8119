"""Open and save checkpoints: a mapping from tensor names to arrays, over one file of weights or several."""

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from .files import (
    CONFIG_NAME,
    CheckpointError,
    checkpoint_folder,
    listed,
    locked,
    made_folder,
    missing_file,
    read_json_object,
    replace_files,
)
from .pickle_file import PickleFile
from .safetensors_file import SafetensorsFile, TensorInfo, write_safetensors

WEIGHTS_NAME = "model.safetensors"
# In order of preference.
WEIGHTS_NAMES = (WEIGHTS_NAME, "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
LONGEST_NAME = 255  # bytes of a file's name

ORIGINAL = ".parametrizations.weight.original"
FACTORS = (".parametrizations.weight.0.lora_A", ".parametrizations.weight.0.lora_B")
PEFT_NAME = re.compile(r"base_model\.model\.(?:model\.)?(.+?)(?:\.base_layer)?\.lora_([AB])(?:\.\w+)?\.weight")
NOT_READ = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out")
STORABLE = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)

TensorFile = SafetensorsFile | PickleFile


class Checkpoint(Mapping[str, np.ndarray]):
    """The tensors of a checkpoint, by their names in the file: `checkpoint[name]` reads one.

    Arrays are read-only views of the memory-mapped files, in the stored dtype (bfloat16 as ml_dtypes.bfloat16); nothing
    is read before it is asked for.

    Attributes:
        source: the file or index that the checkpoint was opened from.
        info: name -> TensorInfo (file, dtype, shape), without reading the tensor.
        metadata: the text entries of the files' headers.
    """

    def __init__(self, source: Path, files: list[TensorFile], owner: Mapping[str, TensorFile]):
        self.source = source
        self.metadata = {key: value for file in files for key, value in file.metadata.items()}
        self._owner = dict(owner)
        self.info: dict[str, TensorInfo] = {name: file.info[name] for name, file in self._owner.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._owner[name].read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.info)

    def __len__(self) -> int:
        return len(self.info)

    def __contains__(self, name) -> bool:
        return name in self.info  # Mapping's own would read the tensor to find out

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.source)!r}, {len(self)} tensors)"


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open the weights at `path`: a folder, a file of weights, or the index of several files.

    In a folder the first of these is taken: model.safetensors; the shards in model.safetensors.index.json;
    pytorch_model.bin; the shards in pytorch_model.bin.index.json. Pickles (.bin, .pt) are read without running any code
    in them (see `pickle_machine`).

    Raises CheckpointError, naming the file and the problem, if there are no such weights, a shard is missing, or a file
    is truncated, corrupt, or holds something other than tensors.
    """
    path = Path(path)
    with locked(path.parent if path.is_file() else path, shared=True):
        if not path.is_file():
            files = [checkpoint_folder(path) / name for name in WEIGHTS_NAMES]
            path = next(filter(os.path.lexists, files), files[-1])
            if not path.is_file():
                raise missing_file(path, f"has none of {', '.join(WEIGHTS_NAMES)}")
        if path.name.endswith(".json"):
            return _open_shards(path)
        file = _open_file(path)
        return Checkpoint(path, [file], dict.fromkeys(file.info, file))


def _open_file(file: Path) -> TensorFile:
    return SafetensorsFile(file) if file.name.endswith(".safetensors") else PickleFile(file)


def _open_shards(index: Path) -> Checkpoint:
    weight_map = read_weight_map(index)
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(f"{index} names {len(names)} files; {len(missing)} are missing: {listed(missing)}")
    shards = {name: _open_file(index.parent / name) for name in names}
    absent = [f"{tensor} (in {file})" for tensor, file in weight_map.items() if tensor not in shards[file].info]
    if absent:
        raise CheckpointError(f"{index} places tensors in files that lack them: {listed(absent)}")
    # The index decides which file a tensor is read from; tensors that it omits still belong to the checkpoint.
    owner = {name: shard for shard in shards.values() for name in shard.info}
    owner.update({tensor: shards[file] for tensor, file in weight_map.items()})
    return Checkpoint(index, list(shards.values()), owner)


def read_weight_map(index: Path) -> dict[str, str]:
    """Read the file of each tensor from the index of a sharded checkpoint."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map of tensor names to file names")
    for file in set(weight_map.values()):
        # An index is downloaded data: it may not point outside its own folder.
        if PurePosixPath(file).name != file or file in ("", ".", "..") or "\\" in file or ":" in file:
            raise CheckpointError(f"{index} names the file {file!r}, expected a plain name in the same folder")
        if not file.isprintable() or len(file.encode()) > LONGEST_NAME:
            raise CheckpointError(f"{index} names the file {file[:40]!r}..., which no file system can hold")
    return weight_map


@dataclass(frozen=True)
class Adapters:
    """The low-rank adapters of a checkpoint, as its config describes them."""

    tasks: tuple[str, ...] = ()  # their names, in the order in which they are stacked
    scale: float = 1.0  # the factor of the product of two factors
    folder: str | None = None  # has a folder of PEFT's files for each task, if the weights do not hold them

    def applied(self, checkpoint: Checkpoint, task: str | None) -> Checkpoint:
        """Return the checkpoint with the adapter of `task`. Raises ValueError for an unknown task."""
        if task is not None and task not in self.tasks:
            known = ", ".join(self.tasks) or "none: the checkpoint has no task adapters"
            raise ValueError(f"task is {task!r}, known are {known}")
        if not self.tasks or (self.folder is not None and task is None):
            return checkpoint
        if self.folder is not None:
            return PeftCheckpoint(checkpoint, checkpoint.source.parent / self.folder / task)
        return AdaptedCheckpoint(checkpoint, task and self.tasks.index(task), self.scale)


class RenamedCheckpoint(Checkpoint):
    """A checkpoint under other names, each with the file's names of its parts, whose rows are one below the other."""

    def __init__(self, checkpoint: Checkpoint, parts: Mapping[str, Sequence[str]]):
        self.source, self.metadata = checkpoint.source, checkpoint.metadata
        self._checkpoint, self._parts = checkpoint, parts
        self.info = {name: self._joined_info(some) for name, some in parts.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        first, *others = (self._checkpoint[part] for part in self._parts[name])
        return np.concatenate([first, *others]) if others else first

    def _joined_info(self, parts: Sequence[str]) -> TensorInfo:
        first, *others = (self._checkpoint.info[part] for part in parts)
        if not others:
            return first
        if any(other.shape[1:] != first.shape[1:] or other.dtype != first.dtype for other in others):
            problem = "differ in width or dtype, expected parts of one tensor"
            raise CheckpointError(f"{self.source}: {listed(parts)} {problem}")
        rows = sum(part.shape[0] for part in (first, *others))
        return dataclasses.replace(first, shape=(rows, *first.shape[1:]))


class AdaptedCheckpoint(Checkpoint):
    """A checkpoint of adapted weights under their plain names, each with a low-rank adapter (Hu et al. 2021) added.

    For an adapted weight of (rows, columns) a file has NAME.parametrizations.weight.original and two stacks of factors:
    NAME.parametrizations.weight.0.lora_A (adapters, rank, columns) and lora_B (adapters, rows, rank). In embedding
    tables lora_A has the rows. This is PyTorch's form of parametrized weights. `adapter` is the number of the adapter;
    None reads the original weights.

    Raises CheckpointError, naming the tensor, for a missing adapter and for factors that do not fit.
    """

    def __init__(self, checkpoint: Checkpoint, adapter: int | None, scale: float):
        self.source, self.metadata, self.info = checkpoint.source, checkpoint.metadata, {}
        self._checkpoint, self._adapter, self._scale = checkpoint, adapter, scale
        self._names, self._factors = {}, {}  # plain -> the file's
        for name in (name for name in checkpoint if not name.endswith(FACTORS)):
            plain, info = name.replace(ORIGINAL, ".weight"), checkpoint.info[name]
            if adapter is not None and name.endswith(ORIGINAL):
                self._factors[plain] = self._order(name, info.shape)
                info = dataclasses.replace(info, dtype="F32")
            self._names[plain], self.info[plain] = name, info
        if adapter is not None and not self._factors:
            raise CheckpointError(f"{self.source} holds no adapters, though its config lists some")

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._checkpoint[self._names[name]]
        if name not in self._factors:
            return array
        left, right = (self._checkpoint[it][self._adapter].astype(np.float32) for it in self._factors[name])
        return array.astype(np.float32) + self._scale * (left @ right)

    def _order(self, name: str, shape: tuple[int, ...]) -> tuple[str, str]:
        """Return the names of the factors, in the order in which they are multiplied."""
        names = [name.replace(ORIGINAL, factor) for factor in FACTORS]
        stacks = [self._checkpoint.info[factor].shape if factor in self._checkpoint else None for factor in names]
        for first, second in ((1, 0), (0, 1)):
            left, right = stacks[first], stacks[second]
            are_stacks = left is not None and right is not None and len(left) == len(right) == 3
            if are_stacks and left[0] == right[0] and left[2] == right[1] and (left[1], right[2]) == shape:
                if self._adapter >= left[0]:
                    break
                return names[first], names[second]
        found = f"{names[0]} and lora_B have the shapes {stacks[0]} and {stacks[1]}"
        expected = f"at least {self._adapter + 1} pairs of factors of a matrix of {shape}"
        raise CheckpointError(f"{self.source}: {found}, expected {expected}")


class PeftCheckpoint(Checkpoint):
    """A checkpoint whose weights have a low-rank adapter added, which the library PEFT wrote into a folder.

    Names may have the prefix "model." in the checkpoint and not in the adapter, or the reverse.

    Raises CheckpointError, naming the file, for missing or damaged files, another kind of adapter, and tensors that do
    not fit.
    """

    def __init__(self, checkpoint: Checkpoint, folder: Path):
        self.source, self.metadata, self._checkpoint = checkpoint.source, checkpoint.metadata, checkpoint
        config = read_json_object(folder / "adapter_config.json")
        rank, alpha = config.get("r"), config.get("lora_alpha")
        numbers = (rank, int), (alpha, int | float)
        if any(isinstance(value, bool) or not isinstance(value, kind) or value <= 0 for value, kind in numbers):
            raise CheckpointError(f"{folder}: r is {rank!r} and lora_alpha {alpha!r}, expected positive numbers")
        plain = {"peft_type": "LORA", "bias": "none"} | dict.fromkeys(NOT_READ, False)
        for key, value in plain.items():
            if (config.get(key) or value) != value:
                raise CheckpointError(f"{folder}: {key} is {config[key]!r}, expected {value!r}")
        self._scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        self._factors = open_checkpoint(folder / "adapter_model.safetensors")
        names = {name.removeprefix("model."): name for name in checkpoint}
        pairs: dict[str, dict[str, str]] = {}
        for name in self._factors:
            found = PEFT_NAME.fullmatch(name)
            if found is None or f"{found[1]}.weight" not in names:
                raise CheckpointError(f"{self._factors.source}: {name} is not a factor of one of the model's weights")
            pairs.setdefault(names[f"{found[1]}.weight"], {})[found[2]] = name
        self._pairs, self.info = pairs, dict(checkpoint.info)
        for name, pair in pairs.items():
            shapes = [self._factors.info[pair[part]].shape if part in pair else None for part in "BA"]
            info = checkpoint.info[name]
            if len(info.shape) != 2 or shapes != [(info.shape[0], rank), (rank, info.shape[1])] or info.dtype == "I8":
                expected = f"factors of rank {rank} for {info.dtype} {info.shape}, floating point"
                found = f"the factors of {name} have the shapes {shapes}"
                raise CheckpointError(f"{self._factors.source}: {found}, expected {expected}")
            self.info[name] = dataclasses.replace(info, dtype="F32")

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._checkpoint[name]
        if name not in self._pairs:
            return array
        left, right = (self._factors[self._pairs[name][part]].astype(np.float32) for part in "BA")
        return array.astype(np.float32) + np.float32(self._scale) * (left @ right)


def save_checkpoint(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    parameters: Mapping[str, np.ndarray],
    *,
    config_name: str = CONFIG_NAME,
    weights_name: str = WEIGHTS_NAME,
) -> None:
    """Write config.json and model.safetensors (or files of other names), which transformers and bertcore read.

    The folder is made if it does not exist. Both files are written completely under temporary names and then take their
    places together (`replace_files`): a failure (a full disk, an interrupt) leaves the old files as they were, and a
    killed process the old ones, the new ones, or a config.json that says that saving was interrupted; never the config
    of one model beside the weights of another. The index of a sharded checkpoint that the new file replaces is removed;
    other files in the folder are not touched.

    Raises TypeError for a parameter that is not a NumPy array of numbers (the caller copies device arrays) and for a
    config that JSON cannot hold, before anything is written; OSError, naming the file, if it cannot be written.
    """
    arrays = {name: _storable(name, array) for name, array in parameters.items()}
    for key, value in config.items():
        try:
            json.dumps(value, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            found = f"config[{key!r}] is {type(value).__name__}"
            raise TypeError(f"{found}, expected what JSON can hold: {error}") from error
    config_text, folder = json.dumps(dict(config), indent=2, sort_keys=True) + "\n", made_folder(folder)
    writers = {config_name: lambda file: file.write_text(config_text, encoding="utf-8")}
    replace_files(folder, writers | {weights_name: lambda file: write_safetensors(file, arrays)})
    (folder / f"{weights_name}.index.json").unlink(missing_ok=True)


def _storable(name: str, array: object) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"parameter {name} is {type(array).__module__}.{type(array).__name__}, expected a NumPy array")
    if array.dtype.name not in STORABLE:
        raise TypeError(f"parameter {name} has dtype {array.dtype}, expected one of {', '.join(sorted(STORABLE))}")
    # safetensors writes the buffer as it lies: a transposed view would be stored scrambled, without an error.
    # (ascontiguousarray would turn a scalar into one element.)
    return np.require(array, requirements="C")
