"""A checkpoint folder as a mapping from tensor names to arrays."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from .config import checkpoint_folder, no_file, read_json_object
from .errors import CheckpointError, listed
from .safetensors_file import SafetensorsFile, TensorInfo

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
PICKLED_NAMES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


class Checkpoint(Mapping[str, np.ndarray]):
    """The tensors of a checkpoint, by the names they have in the file: `checkpoint[name]` reads one.

    Arrays are read-only views of the memory-mapped files, in the stored dtype (bfloat16 is widened to float32); nothing
    is read before it is asked for. `info` maps each name to its TensorInfo (file, dtype, shape) without reading it;
    `source` is the file or index the checkpoint was opened from.
    """

    def __init__(self, source: Path, files: list[SafetensorsFile], owner: Mapping[str, SafetensorsFile]):
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


def open_checkpoint(folder) -> Checkpoint:
    """Opens the weights in `folder`: model.safetensors, or the shards named by model.safetensors.index.json.

    Raises CheckpointError, naming the file and the problem, when there are no such weights, when a shard is missing,
    and when a file is truncated or corrupt.
    """
    folder = checkpoint_folder(folder)
    if (folder / WEIGHTS_NAME).is_file():
        file = SafetensorsFile(folder / WEIGHTS_NAME)
        return Checkpoint(file.file, [file], dict.fromkeys(file.info, file))
    if (folder / INDEX_NAME).is_file():
        return _open_shards(folder / INDEX_NAME)
    raise CheckpointError(_no_weights(folder))


def _open_shards(index: Path) -> Checkpoint:
    weight_map = _read_weight_map(index)
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{index} names {len(names)} files, of which {len(missing)} are missing: {listed(missing)}"
        )
    shards = {name: SafetensorsFile(index.parent / name) for name in names}
    absent = [f"{tensor} (in {file})" for tensor, file in weight_map.items() if tensor not in shards[file].info]
    if absent:
        raise CheckpointError(f"{index} places tensors in files that lack them: {listed(absent)}")
    # The index decides which file a tensor is read from; one that it forgets still belongs to the checkpoint.
    owner = {name: shard for shard in shards.values() for name in shard.info}
    owner.update({tensor: shards[file] for tensor, file in weight_map.items()})
    return Checkpoint(index, list(shards.values()), owner)


def _read_weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map of tensor names to file names")
    for file in set(weight_map.values()):
        # An index is downloaded data: it may not point outside its own folder.
        if PurePosixPath(file).name != file or file in ("", ".", "..") or "\\" in file or ":" in file:
            raise CheckpointError(f"{index} names the file {file!r}; expected a plain name in the same folder")
    return weight_map


def _no_weights(folder: Path) -> str:
    in_its_place = no_file(folder / WEIGHTS_NAME) or no_file(folder / INDEX_NAME)
    if in_its_place is not None:
        return in_its_place
    for name in PICKLED_NAMES:
        if (folder / name).is_file():
            return (
                f"{folder} has its weights in {name} (a pickle, which bertcore does not read); convert it once with "
                f"transformers: AutoModel.from_pretrained({str(folder)!r}).save_pretrained(...) writes {WEIGHTS_NAME}"
            )
    here = sorted(entry.name for entry in folder.iterdir())
    return f"{folder} has neither {WEIGHTS_NAME} nor {INDEX_NAME}; it holds {listed(here) or 'nothing'}"
