"""One file of torch.save (pytorch_model.bin, *.pt), memory-mapped, read without running any code in it.

The first bytes distinguish two formats:

- since PyTorch 1.6 an uncompressed zip archive: NAME/data.pkl, the pickle; NAME/data/KEY, the bytes of each storage;
  NAME/byteorder, "little" or "big" (absent: little);
- before, a stream: pickles of a magic number, a protocol version, a dict about the machine, the value itself and the
  list of the storages' keys; then for each key its number of elements, 8 bytes, and its bytes.

`pickle_machine` states what the pickle may hold, and why reading it is safe. The file must hold a state dict: names
with tensors. Only data.pkl is checked against its checksum, as the tensors are read later.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .files import CheckpointError, content_of, listed
from .pickle_machine import Function, KnownNames, Refused, check_key, kind, read_pickle, shown
from .safetensors_file import LARGEST, MOST_DIMENSIONS, NUMPY_DTYPES, TensorInfo, could_be_array, native, numpy_dtype
from .zip_members import BadArchive, read_members

ITEM_SIZES = {name: np.dtype(code).itemsize for name, code in NUMPY_DTYPES.items()} | {"F8_E4M3": 1, "F8_E5M2": 1}


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype, in the spelling of safetensors ("F32")."""

    name: str


@dataclass(frozen=True, slots=True)
class StorageType:
    """A class of storages, by the dtype of their elements."""

    dtype: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes that tensors share, or a view of them."""

    key: str  # its name in the file
    dtype: str  # the dtype of its elements, in the spelling of safetensors
    size: int  # the number of its bytes in the file
    start: int  # the first byte that this view covers
    stop: int  # the byte after the last that it covers


@dataclass(frozen=True, slots=True)
class Tensor:
    """A strided view of a storage, inside its bounds: `start` in bytes, `shape` and `stride` in elements."""

    storage: Storage
    dtype: str
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def span(self) -> int:
        """The number of bytes from the beginning of its first to the end of its last element."""
        if 0 in self.shape:
            return 0
        steps = ((count - 1) * step for count, step in zip(self.shape, self.stride, strict=True))
        return (sum(steps) + 1) * ITEM_SIZES[self.dtype]


def _checked(what: str, value: object) -> int:
    """Return `value` if it is a sensible size, stride or offset."""
    if type(value) is not int or not 0 <= value < LARGEST:
        found = str(value) if type(value) is int else f"a {kind(value)}"
        raise Refused(f"{what} is {found}, expected an integer of 0 to 2**48 - 1")
    return value


def _storage(reference: object) -> Storage:
    """Return the storage that torch.save refers to by ("storage", its class, key, device, number of elements).

    The format before PyTorch 1.6 has a sixth entry: None, or (key, first element, number of elements) of a view.
    """
    if type(reference) is not tuple or len(reference) not in (5, 6) or reference[0] != "storage":
        raise Refused("the pickle refers to something other than a storage of a tensor (a model saved as a whole?)")
    _, storage_type, key, _, length, *views = reference
    if type(storage_type) is not StorageType or type(key) is not str:
        raise Refused("the pickle refers to a storage without its type and key")
    size = _checked(f"the length of the storage {shown(key)}", length)
    first, count = 0, size
    for view in views:
        if view is not None:
            if type(view) is not tuple or len(view) != 3:
                raise Refused(f"a view of the storage {shown(key)} without its bounds")
            first, count = (_checked(f"a bound of a view of the storage {shown(key)}", bound) for bound in view[1:])
            if first + count > size:
                raise Refused(f"a view of the storage {shown(key)} ends at element {first + count} of {size}")
    item = ITEM_SIZES[storage_type.dtype]
    return Storage(key, storage_type.dtype, size * item, first * item, (first + count) * item)


def _rebuild_tensor(storage: object, offset: object, size: object, stride: object, dtype: str | None = None) -> Tensor:
    if type(storage) is not Storage or type(size) is not tuple or type(stride) is not tuple:
        raise Refused(f"a tensor made of a {kind(storage)}, a {kind(size)} and a {kind(stride)}")
    if len(size) != len(stride) or len(size) > MOST_DIMENSIONS:
        raise Refused(f"a tensor of {len(size)} sizes and {len(stride)} strides, expected at most {MOST_DIMENSIONS}")
    for count, step in zip(size, stride, strict=True):
        _checked("the size of a tensor", count)
        _checked("the stride of a tensor", step)
    dtype = dtype or storage.dtype
    item = ITEM_SIZES[dtype]
    start = storage.start + _checked("the offset of a tensor", offset) * item
    tensor, elements = Tensor(storage, dtype, start, size, stride), (storage.stop - storage.start) // item
    where = f"a tensor of shape {size} and stride {stride}"
    if start + tensor.span > storage.stop:
        raise Refused(f"{where} ends after its storage {shown(storage.key)} of {elements} elements")
    if math.prod(size) > elements:  # with strides of 0
        raise Refused(f"{where} has more elements than its storage {shown(storage.key)}, {elements}")
    if not could_be_array(size):
        raise Refused(f"{where} is too large")
    return tensor


def _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks, metadata=None) -> Tensor:
    _check_no_metadata(metadata)
    return _rebuild_tensor(storage, offset, size, stride)


def _rebuild_tensor_v3(storage, offset, size, stride, requires_grad, backward_hooks, dtype, metadata=None) -> Tensor:
    _check_no_metadata(metadata)
    if type(dtype) is not DType:
        raise Refused(f"a tensor whose dtype is a {kind(dtype)}")
    return _rebuild_tensor(storage, offset, size, stride, dtype.name)


def _check_no_metadata(metadata: object) -> None:
    if metadata is not None and metadata != {}:
        raise Refused("a tensor that is to be conjugated or negated when it is read, which is not supported")


def _rebuild_parameter(data, requires_grad, backward_hooks, state=None) -> Tensor:
    if type(data) is not Tensor:
        raise Refused(f"a parameter made of a {kind(data)}")
    return data


def _size(sizes) -> tuple:
    if type(sizes) is not tuple:
        raise Refused(f"a torch.Size made of a {kind(sizes)}")
    return sizes


def _ordered_dict(*items) -> dict:
    """Make the dict of an OrderedDict: Python 3 fills an empty one; Python 2 passed a list of [key, value]."""
    result = {}
    for pairs in items:
        if type(pairs) is not list or not all(type(pair) is list and len(pair) == 2 for pair in pairs):
            raise Refused("an OrderedDict made of something other than a list of [key, value]")
        for key, value in pairs:
            check_key(key)
            result[key] = value
        pairs.clear()  # taken over, not copied: a pickle can name one long list a million times
    return result


_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip

KNOWN_NAMES = KnownNames(
    reference=_storage,
    names={
        ("collections", "OrderedDict"): Function(_ordered_dict, 0, 1),
        ("torch", "Size"): Function(_size, 1, 1),
        ("torch._utils", "_rebuild_tensor"): Function(_rebuild_tensor, 4, 4),
        ("torch._utils", "_rebuild_tensor_v2"): Function(_rebuild_tensor_v2, 6, 7),
        ("torch._utils", "_rebuild_tensor_v3"): Function(_rebuild_tensor_v3, 7, 8),
        ("torch._utils", "_rebuild_parameter"): Function(_rebuild_parameter, 3, 3),
        ("torch._utils", "_rebuild_parameter_with_state"): Function(_rebuild_parameter, 4, 4),
        ("torch.storage", "UntypedStorage"): StorageType("U8"),
        **{
            (module, name): StorageType(dtype)
            for module in ("torch", "torch.cuda")
            for name, dtype in _STORAGES.items()
        },
        **{("torch", name): DType(dtype) for name, dtype in _DTYPES.items()},
    },
)


MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
ZIP_START = b"PK\3\4"
PICKLE_START = b"\x80"
TAR_NAME = slice(257, 262)  # where a tar archive says "ustar"


# A file's tensors by name, the place of each storage (first byte, number of bytes), and the byte order.
_Content = tuple[dict[str, Tensor], Mapping[str, tuple[int, int]], str]


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
            read = _read_zip if self._bytes[:4] == ZIP_START else _read_stream
            self._tensors, storages, order = read(self._bytes)
            places = {name: _storage_start(storages, tensor.storage) for name, tensor in self._tensors.items()}
            self.info = {
                name: TensorInfo(file, tensor.dtype, tensor.shape, places[name] + tensor.start)
                for name, tensor in self._tensors.items()
            }
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
        except (Refused, BadArchive) as error:
            raise CheckpointError(f"{file} is not a readable file of tensors: {error}") from error
        self._byte_order = ">" if order == "big" else "<"

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
    order = b"little"
    if (member := members.get(f"{folder}byteorder")) is not None:
        order = data[member.start : min(member.stop, member.start + 8)]
    if order not in (b"little", b"big"):
        raise Refused(f"its byte order is {order!r}, expected little or big")
    return _state_dict(value), storages, order.decode()


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
    return tensors, _stream_storages(data, keys, items, place), "little" if little else "big"


def _stream_storages(data, keys: object, items: Mapping[str, int], place: int) -> dict[str, tuple[int, int]]:
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


def _state_dict(value: object) -> dict[str, Tensor]:
    if type(value) is not dict:
        raise Refused(f"it holds a {kind(value)}, expected a state dict: names with tensors")
    others = [f"{shown(name)} is a {kind(each)}" for name, each in value.items() if type(each) is not Tensor]
    if others:
        raise Refused(f"expected a state dict, names with tensors; but {listed(others)}")
    return value


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
