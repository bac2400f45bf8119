"""One file of torch.save (pytorch_model.bin, *.pt), memory-mapped, read without running any code in it.

The first bytes distinguish two formats:

- since PyTorch 1.6 an uncompressed zip archive: NAME/data.pkl, the pickle; NAME/data/KEY, the bytes of each storage;
  NAME/byteorder, "little" or "big" (absent: little);
- before, a stream: pickles of a magic number, a protocol version, a dict about the machine, the value itself and the
  list of the storages' keys; then for each key its number of elements, 8 bytes, and its bytes.

`pickle_machine` states what the pickle may hold, and why reading it is safe. The file must hold a state dict: names
with tensors. Only data.pkl is checked against its checksum, as the tensors are read later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .files import CheckpointError, content_of, listed
from .pickle_machine import Refused, kind, read_pickle, shown
from .pickle_tensors import ITEM_SIZES, KNOWN_NAMES, Storage, Tensor
from .safetensors_file import TensorInfo, native, numpy_dtype
from .zip_members import ArchiveMember, BadArchive, read_members

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
ZIP_START = b"PK\3\4"
PICKLE_START = b"\x80"
TAR_NAME = slice(257, 262)  # where a tar archive says "ustar"


@dataclass(frozen=True, slots=True)
class _Content:
    """A file's tensors by name, the place of each storage (first byte, number of bytes), and the byte order."""

    tensors: dict[str, Tensor]
    storages: Mapping[str, tuple[int, int]]
    byte_order: str


class PickleFile:
    """The tensors of one file of torch.save: `info` maps each name to its TensorInfo, `read(name)` gives its array.

    Raises CheckpointError, naming the file and the problem, for anything that is not an intact file of tensors by name.
    """

    def __init__(self, file: Path):
        self.file = file
        self.metadata: dict[str, str] = {}
        try:
            with file.open("rb") as stream:
                _check_start(stream.read(TAR_NAME.stop))
                self._bytes = content_of(stream)
            content = _read_zip(self._bytes) if self._bytes[:4] == ZIP_START else _read_stream(self._bytes)
            self._tensors = content.tensors
            self.info = {name: _info(file, content, tensor) for name, tensor in content.tensors.items()}
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
        except (Refused, BadArchive) as error:
            raise CheckpointError(f"{file} is not a readable file of tensors: {error}") from error
        self._byte_order = ">" if content.byte_order == "big" else "<"

    def read(self, name: str) -> np.ndarray:
        """Read a tensor as a read-only array in the machine's byte order; bfloat16 is the dtype of ml_dtypes.

        It is a view of the mapped file, with the tensor's own strides, if the file has it aligned and in that order.
        """
        info, tensor = self.info[name], self._tensors[name]
        dtype = numpy_dtype(name, info).newbyteorder(self._byte_order)
        if tensor.span == 0:
            array = np.empty(info.shape, dtype)
        else:
            flat = np.frombuffer(self._bytes, dtype, tensor.span // dtype.itemsize, info.offset)
            strides = [step * dtype.itemsize for step in tensor.stride]
            array = np.lib.stride_tricks.as_strided(flat, info.shape, strides, writeable=False)
        return native(array, info.dtype)


def _check_start(start: bytes) -> None:
    """Raise Refused for files that are something else, by their first bytes."""
    if not start:
        raise Refused("it is empty")
    if start.startswith(b"version https://git"):
        raise Refused("it is a git-lfs pointer; fetch the weights themselves with `git lfs pull`")
    if start[TAR_NAME] == b"ustar":
        raise Refused("it is a tar archive, as PyTorch wrote before version 0.2; load and save it with a later one")
    if not start.startswith((ZIP_START, PICKLE_START)):
        raise Refused(f"it starts with {start[:8]!r}, neither a zip archive nor a pickle of protocol 2 or later")


def _read_zip(data) -> _Content:
    members = read_members(data)
    pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise Refused(f"the archive has {len(pickles)} pickles NAME/data.pkl, expected one as torch.save writes it")
    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}constants.pkl" in members:
        raise Refused("it is a TorchScript program (torch.jit.save); save its state_dict() with torch.save instead")
    value, _ = read_pickle(members[pickles[0]].read(data), KNOWN_NAMES)
    start = f"{folder}data/"
    found = {name.removeprefix(start): member for name, member in members.items() if name.startswith(start)}
    storages = {key: (member.start, member.stop - member.start) for key, member in found.items()}
    return _Content(_state_dict(value), storages, _byte_order(data, members.get(f"{folder}byteorder")))


def _byte_order(data, member: ArchiveMember | None) -> str:
    if member is None:
        return "little"
    order = data[member.start : min(member.stop, member.start + 8)]
    if order not in (b"little", b"big"):
        raise Refused(f"its byte order is {order!r}, expected little or big")
    return order.decode()


def _read_stream(data) -> _Content:
    magic, place = read_pickle(data, KNOWN_NAMES)
    if magic != MAGIC:
        raise Refused("it is a pickle, but not one of torch.save")
    version, place = read_pickle(data, KNOWN_NAMES, place)
    if version != PROTOCOL:
        found = version if type(version) is int else f"a {kind(version)}"
        raise Refused(f"its format has the version {found}, expected {PROTOCOL}")
    machine, place = read_pickle(data, KNOWN_NAMES, place)
    little = machine.get("little_endian") if type(machine) is dict else None
    if type(little) is not bool:
        raise Refused("it does not say whether little_endian is True or False")
    value, place = read_pickle(data, KNOWN_NAMES, place)
    tensors = _state_dict(value)
    keys, place = read_pickle(data, KNOWN_NAMES, place)
    items = {tensor.storage.key: ITEM_SIZES[tensor.storage.dtype] for tensor in tensors.values()}
    return _Content(tensors, _stream_storages(data, keys, items, place), "little" if little else "big")


def _stream_storages(data, keys: Any, items: Mapping[str, int], place: int) -> dict[str, tuple[int, int]]:
    """Return the places of consecutive storages from byte `place` on; `items` has the size of their elements."""
    if type(keys) is not list or not all(type(key) is str for key in keys):
        raise Refused("its list of storages is not a list of keys")
    storages: dict[str, tuple[int, int]] = {}
    for key in keys:
        if key in storages or key not in items:
            raise Refused(f"its storage {shown(key)} is {'listed twice' if key in storages else 'of no tensor'}")
        size = int.from_bytes(data[place : place + 8], "little") * items[key]
        place += 8
        if place + size > len(data):
            raise Refused(f"it ends inside its storage {shown(key)} (truncated or still downloading?)")
        storages[key] = (place, size)
        place += size
    return storages


def _state_dict(value: Any) -> dict[str, Tensor]:
    if type(value) is not dict:
        raise Refused(f"it holds a {kind(value)}, expected a state dict: names with tensors")
    others = [f"{shown(name)} is a {kind(each)}" for name, each in value.items() if type(each) is not Tensor]
    if others:
        raise Refused(f"expected a state dict, names with tensors; but {listed(others)}")
    return value


def _info(file: Path, content: _Content, tensor: Tensor) -> TensorInfo:
    first = _storage_start(content.storages, tensor.storage)
    return TensorInfo(file, tensor.dtype, tensor.shape, first + tensor.start)


def _storage_start(storages: Mapping[str, tuple[int, int]], storage: Storage) -> int:
    """Return the first byte of `storage` in the file. Raises Refused unless its size is as in the pickle."""
    if storage.size == 0:
        return 0
    if storage.key not in storages:
        raise Refused(f"it lacks the storage {shown(storage.key)} of a tensor")
    first, size = storages[storage.key]
    if size != storage.size:
        raise Refused(f"its storage {shown(storage.key)} has {size} bytes, its pickle says {storage.size}")
    return first
