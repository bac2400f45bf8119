"""The names that a pickle of torch.save may refer to, each with a harmless stand-in.

torch.save writes a tensor as a call of torch._utils._rebuild_tensor_v2 with a reference to its storage, an offset, a
size and strides; the bytes of the storage lie elsewhere in the file. The stand-ins make descriptions: a Storage or a
Tensor owns no memory. The checks here hold a Tensor inside its Storage; the reader of the file must hold the Storage
inside the file.
"""

import math
from dataclasses import dataclass
from typing import Any

from .pickle_machine import Function, KnownNames, Refused, check_key, kind, shown
from .safetensors_file import LARGEST, MOST_DIMENSIONS, could_be_array

ITEM_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1,
}  # fmt: skip


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


def _checked(what: str, value: Any) -> int:
    """Return `value` if it is a sensible size, stride or offset."""
    if type(value) is not int or not 0 <= value < LARGEST:
        found = str(value) if type(value) is int else f"a {kind(value)}"
        raise Refused(f"{what} is {found}, expected an integer of 0 to 2**48 - 1")
    return value


def _storage(reference: Any) -> Storage:
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
            first, count = _view(key, size, view)
    item = ITEM_SIZES[storage_type.dtype]
    return Storage(key, storage_type.dtype, size * item, first * item, (first + count) * item)


def _view(key: str, size: int, view: Any) -> tuple[int, int]:
    if type(view) is not tuple or len(view) != 3:
        raise Refused(f"a view of the storage {shown(key)} without its bounds")
    first, count = (_checked(f"a bound of a view of the storage {shown(key)}", bound) for bound in view[1:])
    if first + count > size:
        raise Refused(f"a view of the storage {shown(key)} ends at element {first + count} of {size}")
    return first, count


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, dtype: str | None = None) -> Tensor:
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
    tensor = Tensor(storage, dtype, start, size, stride)
    _check_bounds(tensor, (storage.stop - storage.start) // item)
    return tensor


def _check_bounds(tensor: Tensor, elements: int) -> None:
    """Raise Refused unless `tensor` lies within its storage and, for strides of 0, has no more elements than it."""
    where = f"a tensor of shape {tensor.shape} and stride {tensor.stride}"
    if tensor.start + tensor.span > tensor.storage.stop:
        raise Refused(f"{where} ends after its storage {shown(tensor.storage.key)} of {elements} elements")
    if math.prod(tensor.shape) > elements:
        raise Refused(f"{where} has more elements than its storage {shown(tensor.storage.key)}, {elements}")
    if not could_be_array(tensor.shape):
        raise Refused(f"{where} is too large")


def _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks, metadata=None) -> Tensor:
    _check_no_metadata(metadata)
    return _rebuild_tensor(storage, offset, size, stride)


def _rebuild_tensor_v3(storage, offset, size, stride, requires_grad, backward_hooks, dtype, metadata=None) -> Tensor:
    _check_no_metadata(metadata)
    if type(dtype) is not DType:
        raise Refused(f"a tensor whose dtype is a {kind(dtype)}")
    return _rebuild_tensor(storage, offset, size, stride, dtype.name)


def _check_no_metadata(metadata: Any) -> None:
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
