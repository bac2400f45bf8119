"""A checkpoint as a mapping from tensor names to arrays."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from .config import checkpoint_folder, no_file, read_json_object
from .errors import CheckpointError, listed
from .pickle_file import PickleFile
from .safetensors_file import SafetensorsFile, TensorInfo

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
        if (in_its_place := no_file(file)) is not None:
            raise CheckpointError(in_its_place)
    here = sorted(entry.name for entry in folder.iterdir())
    raise CheckpointError(f"{folder} has none of {', '.join(WEIGHTS_NAMES)}; it holds {listed(here) or 'nothing'}")


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
