"""A checkpoint as a mapping from tensor names to arrays."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from .files import (
    CONFIG_NAME,
    CheckpointError,
    checkpoint_folder,
    listed,
    made_folder,
    missing_file,
    read_json_object,
    replace_files,
)
from .pickle_file import PickleFile
from .safetensors_file import SafetensorsFile, TensorInfo, write_safetensors

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
PICKLED_NAME = "pytorch_model.bin"
PICKLED_INDEX_NAME = "pytorch_model.bin.index.json"

# Where a folder may have its weights; the first that is there is taken.
WEIGHTS_NAMES = (WEIGHTS_NAME, INDEX_NAME, PICKLED_NAME, PICKLED_INDEX_NAME)

LONGEST_NAME = 255  # bytes of a file's name

TensorFile = SafetensorsFile | PickleFile


class Checkpoint(Mapping[str, np.ndarray]):
    """The tensors of a checkpoint, by the names they have in the file: `checkpoint[name]` reads one.

    Arrays are read-only views of the memory-mapped files, in the stored dtype (bfloat16 as ml_dtypes.bfloat16);
    nothing is read before it is asked for. `info` maps each name to its TensorInfo (file, dtype, shape) without reading
    it; `source` is the file or index the checkpoint was opened from.
    """

    def __init__(self, source: Path, files: list[TensorFile], owner: Mapping[str, TensorFile]):
        self.source = source
        self.metadata = {key: value for file in files for key, value in file.metadata.items()}
        self._owner = dict(owner)
        self.info: dict[str, TensorInfo] = {name: file.info[name] for name, file in self._owner.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._owner[name].read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._owner)

    def __len__(self) -> int:
        return len(self._owner)

    def __contains__(self, name) -> bool:
        return name in self._owner  # Mapping's own would read the tensor to find out

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.source)!r}, {len(self)} tensors)"


def open_checkpoint(path) -> Checkpoint:
    """Opens the weights at `path`: those in a folder, or a file of weights, or the index of several.

    In a folder these are, the first that is there: model.safetensors; the shards that model.safetensors.index.json
    names; pytorch_model.bin; the shards that pytorch_model.bin.index.json names. Pickles (.bin, .pt) are read without
    running anything in them (see `pickle_machine`).

    Raises CheckpointError, naming the file and the problem, when there are no such weights, when a shard is missing,
    and when a file is truncated, corrupt, or holds something other than tensors.
    """
    path = Path(path)
    if not path.is_file():
        path = _weights_in(checkpoint_folder(path))
    if path.name.endswith(".json"):
        return _open_shards(path)
    file = _open_file(path)
    return Checkpoint(path, [file], dict.fromkeys(file.info, file))


def _weights_in(folder: Path) -> Path:
    for file in (folder / name for name in WEIGHTS_NAMES):
        if file.is_file():
            return file
        if os.path.lexists(file):
            break
    raise missing_file(file, f"has none of {', '.join(WEIGHTS_NAMES)}")


def _open_file(file: Path) -> TensorFile:
    return SafetensorsFile(file) if file.name.endswith(".safetensors") else PickleFile(file)


def _open_shards(index: Path) -> Checkpoint:
    weight_map = read_weight_map(index)
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index} names {len(names)} files, of which {len(missing)} are missing: {listed(missing)}"
        )
    shards = {name: _open_file(index.parent / name) for name in names}
    absent = [f"{tensor} (in {file})" for tensor, file in weight_map.items() if tensor not in shards[file].info]
    if absent:
        raise CheckpointError(f"{index} places tensors in files that lack them: {listed(absent)}")
    # The index decides which file a tensor is read from; one that it forgets still belongs to the checkpoint.
    owner = {name: shard for shard in shards.values() for name in shard.info}
    owner.update({tensor: shards[file] for tensor, file in weight_map.items()})
    return Checkpoint(index, list(shards.values()), owner)


def read_weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, from the index of a sharded checkpoint."""
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


PARAMETRIZED = ".parametrizations.weight."
ORIGINAL, FACTORS = f"{PARAMETRIZED}original", (f"{PARAMETRIZED}0.lora_A", f"{PARAMETRIZED}0.lora_B")


@dataclass(frozen=True)
class Adapters:
    """What a config says of the adapters in its checkpoint.

    Attributes:
        tasks: their names, in the order in which they are stacked.
        scale: what the product of two factors is multiplied by.
    """

    tasks: tuple[str, ...] = ()
    scale: float = 1.0


class AdaptedCheckpoint(Checkpoint):
    """A checkpoint of adapted weights under their plain names, each with a low-rank adapter (Hu et al. 2021) added.

    For an adapted weight of (rows, columns) a file has NAME.parametrizations.weight.original and two stacks of factors:
    NAME.parametrizations.weight.0.lora_A (adapters, rank, columns) and lora_B (adapters, rows, rank). In embedding
    tables lora_A has the rows. PyTorch writes parametrized weights so.

    Args:
        checkpoint: as it was opened.
        adapter: the index of the adapter; None reads the original weights.
        scale: as in Adapters.

    Raises CheckpointError, naming the tensor, for an adapter that is not there and factors that do not fit.
    """

    def __init__(self, checkpoint: Checkpoint, adapter: int | None, scale: float):
        self.source, self.metadata = checkpoint.source, checkpoint.metadata
        self._checkpoint, self._adapter, self._scale = checkpoint, adapter, scale
        self._names = {
            name.replace(ORIGINAL, ".weight"): name for name in checkpoint if not name.endswith(FACTORS)
        }  # plain -> the file's
        self.info = {plain: self._info(name) for plain, name in self._names.items()}
        if adapter is not None and not any(map(self._is_adapted, self._names.values())):
            raise CheckpointError(f"{self.source} holds no adapters, though its config lists some")

    def _is_adapted(self, name: str) -> bool:
        return self._adapter is not None and name.endswith(ORIGINAL)

    def _info(self, name: str):
        info = self._checkpoint.info[name]
        if not self._is_adapted(name):
            return info
        self._order(name, info.shape)
        return dataclasses.replace(info, dtype="F32")

    def _order(self, name: str, shape: tuple[int, ...]) -> tuple[str, str]:
        """The names of the factors, in the order in which they are multiplied."""
        names = [name.replace(ORIGINAL, factor) for factor in FACTORS]
        stacks = [self._checkpoint.info[factor].shape if factor in self._checkpoint else None for factor in names]
        for first, second in ((1, 0), (0, 1)):
            left, right = stacks[first], stacks[second]
            if _fit(left, right, shape) and self._adapter < left[0]:
                return names[first], names[second]
        raise CheckpointError(
            f"{self.source}: {names[0]} and lora_B have the shapes {stacks[0]} and {stacks[1]}, expected at least "
            f"{self._adapter + 1} pairs of factors of a matrix of {shape}"
        )

    def __getitem__(self, name: str) -> np.ndarray:
        stored = self._names[name]
        array = self._checkpoint[stored]
        if not self._is_adapted(stored):
            return array
        left, right = (
            self._checkpoint[factor][self._adapter].astype(np.float32) for factor in self._order(stored, array.shape)
        )
        return array.astype(np.float32) + self._scale * (left @ right)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name) -> bool:
        return name in self._names


def _fit(left: tuple[int, ...] | None, right: tuple[int, ...] | None, shape: tuple[int, ...]) -> bool:
    """Whether stacks of these shapes hold factors of a matrix of `shape`."""
    if left is None or right is None or not len(left) == len(right) == 3:
        return False
    return left[0] == right[0] and left[2] == right[1] and (left[1], right[2]) == shape


STORABLE = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)


def save_checkpoint(
    folder,
    config: Mapping[str, Any],
    parameters: Mapping[str, np.ndarray],
    *,
    config_name: str = CONFIG_NAME,
    weights_name: str = WEIGHTS_NAME,
) -> None:
    """Writes config.json and model.safetensors (or files of other names) into `folder`, made when it is not there.

    Both are written completely under temporary names and then take their places together (`replace_files`): a failure
    (a full disk, an interrupt) leaves the old files as they were, and a process that is killed the old ones, the new
    ones, or a config.json that says that saving was interrupted; never the config of one model beside the weights of
    another. An index of a sharded checkpoint, which the new file replaces, is removed; other files in the folder are
    not touched.

    Raises TypeError for a parameter that is not a NumPy array of numbers (device arrays are copied by the caller) and
    for a config that JSON cannot hold, before anything is written; OSError, naming the file, when it cannot be written.
    """
    arrays = {name: _storable(name, array) for name, array in parameters.items()}
    config_text = json.dumps(dict(config), indent=2, sort_keys=True) + "\n"
    folder = made_folder(folder)
    replace_files(
        folder,
        {
            config_name: lambda file: file.write_text(config_text, encoding="utf-8"),
            weights_name: lambda file: write_safetensors(file, arrays),
        },
    )
    (folder / f"{weights_name}.index.json").unlink(missing_ok=True)


def _storable(name: str, array) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"parameter {name} is {type(array).__module__}.{type(array).__name__}, expected a NumPy array")
    if array.dtype.name not in STORABLE:
        raise TypeError(f"parameter {name} has dtype {array.dtype}, expected one of {', '.join(sorted(STORABLE))}")
    # safetensors writes the buffer as it lies: a transposed view would be stored scrambled, without an error.
    # (ascontiguousarray would turn a scalar into one element.)
    return np.require(array, requirements="C")
