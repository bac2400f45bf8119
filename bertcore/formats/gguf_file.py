"""One GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): metadata and tensors, mapped.

Every count, length, offset and shape is compared with the size of the file before memory is taken for it. The blocks of
numbers are as ggml defines them (https://github.com/ggml-org/ggml, ggml-common.h): a block holds 32 or 256 numbers of a
row, small integers, their scales, and for some kinds their minima.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertcore.checkpoint.files import CheckpointError, content_of
from bertcore.checkpoint.safetensors_file import could_be_array, native
from bertcore.kernels.arrays import Array

PLAIN = {0: ("F32", "<f4"), 1: ("F16", "<f2"), 30: ("BF16", "<u2")}
BLOCK = 32  # numbers of a block of the kinds without a K
CHUNK = 1 << 14  # blocks that are dequantized at once
_D, _M = ("d", "<f2"), ("m", "<f2")


def _block(*fields: tuple) -> np.dtype:
    return np.dtype([(name, kind, shape[0]) if shape else (name, kind) for name, kind, *shape in fields])


_K_SCALES = ("scales", "u1", 12)
# The number of a kind -> its name, the numbers of a block, the fields of a block.
KINDS: dict[int, tuple[str, int, np.dtype]] = {
    **{number: (name, 1, np.dtype(kind)) for number, (name, kind) in PLAIN.items()},
    2: ("Q4_0", 32, _block(_D, ("q", "u1", 16))),
    3: ("Q4_1", 32, _block(_D, _M, ("q", "u1", 16))),
    6: ("Q5_0", 32, _block(_D, ("high", "u1", 4), ("q", "u1", 16))),
    7: ("Q5_1", 32, _block(_D, _M, ("high", "u1", 4), ("q", "u1", 16))),
    8: ("Q8_0", 32, _block(_D, ("q", "i1", 32))),
    10: ("Q2_K", 256, _block(("scales", "u1", 16), ("q", "u1", 64), _D, _M)),
    11: ("Q3_K", 256, _block(("high", "u1", 32), ("q", "u1", 64), _K_SCALES, _D)),
    12: ("Q4_K", 256, _block(_D, _M, _K_SCALES, ("q", "u1", 128))),
    13: ("Q5_K", 256, _block(_D, _M, _K_SCALES, ("high", "u1", 32), ("q", "u1", 128))),
    14: ("Q6_K", 256, _block(("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), _D)),
}
# A kind's name -> its number, the numbers of a block, the fields of a block.
BY_NAME = {name: (number, count, dtype) for number, (name, count, dtype) in KINDS.items()}


def _fields(data: Array, bits: int, width: int) -> Array:
    """(blocks, bytes) -> (blocks, numbers): within each `width` bytes, the lowest bits of all of them come first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    spread = data.reshape(len(data), -1, 1, width) >> shifts
    return (spread & (2**bits - 1)).reshape(len(data), -1)


def _column(numbers: Array) -> Array:
    return numbers.astype(np.float32)[:, None]


def _k_scales(blocks: Array) -> tuple[Array, Array]:
    """Return the scale and the minimum of each 32 numbers, (blocks, 8, 1): six bits each, in twelve bytes."""
    low, middle, high = np.split(blocks["scales"], 3, axis=1)
    scales = np.concatenate([low & 63, (high & 15) | (low >> 2 & 48)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | (middle >> 2 & 48)], axis=1)
    return tuple((_column(blocks[name]) * part)[..., None] for name, part in (("d", scales), ("m", minima)))


def _affine(integers: Array, scales: Array, minima: Array) -> Array:
    grouped = integers.reshape(*scales.shape[:2], -1)
    return (scales * grouped.astype(np.float32) - minima).reshape(len(integers), -1)


def _scaled(integers: Array, scales: Array) -> Array:
    """(blocks, 256) small integers times the scale of each 16."""
    factors = (_column(scales[0]) * scales[1].astype(np.float32))[..., None]
    return (factors * integers.reshape(len(integers), 16, 16).astype(np.float32)).reshape(len(integers), -1)


def _five_bits(blocks: Array) -> Array:
    return _fields(blocks["q"], 4, 16) | _fields(blocks["high"], 1, 1) << 4


def _q2_k(blocks: Array) -> Array:
    scales = _column(blocks["d"]) * (blocks["scales"] & 15).astype(np.float32)
    minima = _column(blocks["m"]) * (blocks["scales"] >> 4).astype(np.float32)
    return _affine(_fields(blocks["q"], 2, 32), scales[..., None], minima[..., None])


def _q3_k(blocks: Array) -> Array:
    low, high = np.split(blocks["scales"], [8], axis=1)
    scales = (_fields(low, 4, 8) | _fields(high, 2, 4) << 4).astype(np.int8) - np.int8(32)
    integers = _fields(blocks["q"], 2, 32).astype(np.int8) - ((_fields(blocks["high"], 1, 32) ^ 1) << 2).astype(np.int8)
    return _scaled(integers, (blocks["d"], scales))


def _q6_k(blocks: Array) -> Array:
    integers = (_fields(blocks["q"], 4, 64) | _fields(blocks["high"], 2, 32) << 4).astype(np.int8) - np.int8(32)
    return _scaled(integers, (blocks["d"], blocks["scales"]))


# A kind -> blocks to float32 numbers, (blocks, numbers).
_DEQUANTIZE: dict[str, Callable[[Array], Array]] = {
    "Q4_0": lambda blocks: _column(blocks["d"]) * (_fields(blocks["q"], 4, 16).astype(np.int8) - 8),
    "Q4_1": lambda blocks: _column(blocks["d"]) * _fields(blocks["q"], 4, 16) + _column(blocks["m"]),
    "Q5_0": lambda blocks: _column(blocks["d"]) * (_five_bits(blocks).astype(np.int8) - 16),
    "Q5_1": lambda blocks: _column(blocks["d"]) * _five_bits(blocks) + _column(blocks["m"]),
    "Q8_0": lambda blocks: _column(blocks["d"]) * blocks["q"],
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": lambda blocks: _affine(_fields(blocks["q"], 4, 32), *_k_scales(blocks)),
    "Q5_K": lambda blocks: _affine(
        _fields(blocks["q"], 4, 32) | _fields(blocks["high"], 1, 32) << 4, *_k_scales(blocks)
    ),
    "Q6_K": _q6_k,
}


def dequantized(kind: str, blocks: Array) -> Array:
    """Return the numbers of blocks of a kind, (blocks,) records of KINDS, as float32 (blocks * numbers,)."""
    numbers = np.empty((len(blocks), BY_NAME[kind][1]), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be inf or NaN
        for first in range(0, len(blocks), CHUNK):
            numbers[first : first + CHUNK] = _DEQUANTIZE[kind](blocks[first : first + CHUNK])
    return numbers.reshape(-1)


def quantized(numbers: Array) -> Array:
    """Return (..., n * 32) float32 numbers in blocks of Q8_0, (..., n) records, as ggml rounds them."""
    groups = numbers.astype(np.float32).reshape(*numbers.shape[:-1], -1, BLOCK)
    scale = np.abs(groups).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore"):
        factor = np.where(scale == 0, np.float32(0), np.float32(1) / scale)[..., None]
    products = groups * factor
    size = np.abs(products)
    floor = np.floor(size)
    blocks = np.empty(scale.shape, KINDS[8][2])
    blocks["d"] = scale
    blocks["q"] = np.sign(products) * (floor + np.floor(2 * (size - floor)))  # halves away from zero
    return blocks


MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
VERSIONS = (2, VERSION)  # the first one had shorter counts
STRING, ARRAY = 8, 9
# The number of a type of metadata -> its format, as struct and NumPy have it.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
MOST_ENTRIES = 1 << 16  # of metadata, and tensors
MOST_STRINGS = 1 << 24  # of all lists: each takes far more memory than its eight bytes in the file
MOST_NAME = 64 << 10
MOST_AXES = 4
_ENTRY = 8 + 4 + 1  # bytes of the shortest entry of metadata
_TENSOR = 8 + 4 + 8 + 4 + 8  # and of the shortest tensor's


@dataclass(frozen=True)
class GGUFTensor:
    """The kind of a tensor's blocks, its shape (rows first), first byte, and bytes."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    size: int


class _Cursor:
    """Read the file from its beginning. Raises ValueError where it ends too soon."""

    def __init__(self, data: Any):
        self.data, self.place, self.strings = data, 0, 0

    def take(self, size: int, what: str) -> int:
        """Return the place of the next `size` bytes."""
        if size > len(self.data) - self.place:
            raise ValueError(f"it ends within {what}: {size} bytes from {self.place} on, expected at most "
                             f"{len(self.data) - self.place} (truncated?)")  # fmt: skip
        self.place += size
        return self.place - size

    def number(self, kind: str, what: str) -> Any:
        return struct.unpack_from(f"<{kind}", self.data, self.take(struct.calcsize(kind), what))[0]

    def count(self, what: str, least: int, most: float = math.inf) -> int:
        """Return a number of things that take at least `least` bytes each."""
        count = self.number("Q", what)
        if count > min(most, (len(self.data) - self.place) // least):
            raise ValueError(f"it has {count} {what}, more than it can hold")
        return count

    def text(self, what: str, most: float = math.inf) -> str:
        size = self.count(f"bytes of {what}", 1, most)
        start = self.take(size, what)
        try:
            return bytes(self.data[start : start + size]).decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{what} is not UTF-8: {error}") from error

    def value(self, kind: int, key: str) -> float | str | list[str] | np.ndarray:
        """Return a number, a text, or a list of them: texts in a list, numbers in an array."""
        if kind in NUMBERS:
            return self.number(NUMBERS[kind], key)
        if kind == STRING:
            return self.text(key)
        if kind != ARRAY:
            raise ValueError(f"{key} has the type {kind}, expected 0 to 12")
        of = self.number("I", key)
        if of == STRING:
            count = self.count(f"texts of {key}", 8, MOST_STRINGS - self.strings)
            self.strings += count
            return [self.text(key) for _ in range(count)]
        if of not in NUMBERS:
            raise ValueError(f"{key} is a list of the type {of}, expected numbers or texts")
        dtype = np.dtype(f"<{NUMBERS[of]}" if NUMBERS[of] != "?" else "?")
        count = self.count(f"numbers of {key}", dtype.itemsize)
        return np.frombuffer(self.data, dtype, count, self.take(count * dtype.itemsize, key))


class GGUFFile:
    """The metadata and the tensors of a GGUF file.

    Attributes:
        file: the path.
        metadata: key -> number, text, list of texts or array of numbers.
        info: name -> GGUFTensor.

    Raises CheckpointError, naming the file and the problem, for anything that is not an intact GGUF file.
    """

    def __init__(self, file: Path):
        self.file = file
        try:
            with file.open("rb") as stream:
                if stream.read(len(MAGIC)) != MAGIC:
                    raise ValueError("it does not begin with GGUF (perhaps a git-lfs pointer, or still downloading)")
                self._bytes = content_of(stream)
            cursor = _Cursor(self._bytes)
            cursor.take(len(MAGIC), "its head")
            version = cursor.number("I", "its version")
            if version not in VERSIONS:
                raise ValueError(f"its version is {version}, expected {' or '.join(map(str, VERSIONS))}")
            tensors = cursor.count("tensors", _TENSOR, MOST_ENTRIES)
            entries = cursor.count("entries of metadata", _ENTRY, MOST_ENTRIES)
            keys = (cursor.text("the key of an entry", MOST_NAME) for _ in range(entries))
            pairs = ((key, cursor.value(cursor.number("I", key), key)) for key in keys)
            self.metadata: Mapping[str, Any] = _unique(pairs, "key")
            listed = list(_unique(_tensors(cursor, tensors), "tensor").items())
            self.info = _placed(cursor, listed, self.metadata.get("general.alignment", ALIGNMENT))
        except ValueError as error:
            raise CheckpointError(f"{file} is not an intact GGUF file: {error}") from error
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error

    def blocks(self, name: str) -> Array:
        """Return a tensor's blocks, records of KINDS in the file's shape: (rows, blocks of a row)."""
        info = self.info[name]
        _, size, dtype = BY_NAME[info.kind]
        shape = (*info.shape[:-1], info.shape[-1] // size)
        if not info.size:
            return np.empty(shape, dtype)
        return np.frombuffer(self._bytes, dtype, math.prod(shape), info.offset).reshape(shape)

    def read(self, name: str) -> Array:
        """Return a tensor: float32, float16 and bfloat16 as stored, blocks dequantized to float32."""
        info, blocks = self.info[name], self.blocks(name)
        if blocks.dtype.names is None:
            return native(blocks, info.kind)
        return dequantized(info.kind, blocks.reshape(-1)).reshape(info.shape)


def _tensors(cursor: _Cursor, count: int) -> Iterator[tuple[str, tuple[int, tuple[int, ...], int]]]:
    """Yield name, and the number of the kind, shape, and offset within the data of each tensor."""
    for _ in range(count):
        name = cursor.text("the name of a tensor", MOST_NAME)
        axes = cursor.number("I", name)
        if not 1 <= axes <= MOST_AXES:
            raise ValueError(f"tensor {name} has {axes} axes, expected 1 to {MOST_AXES}")
        shape = tuple(cursor.number("Q", name) for _ in range(axes))[::-1]
        yield name, (cursor.number("I", name), shape, cursor.number("Q", name))


def _unique(pairs: Iterator[tuple[str, Any]], what: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the {what} {name!r:.80} occurs twice")
        found[name] = value
    return found


def _placed(cursor: _Cursor, tensors: list[tuple[str, Any]], alignment: object) -> dict[str, GGUFTensor]:
    """Return the tensors with their places in the file, which must not overlap nor reach beyond it."""
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 16:
        raise ValueError(f"general.alignment is {alignment!r}, expected a power of two up to 65536")
    start, end = -(-cursor.place // alignment) * alignment, 0
    found = {}
    for name, (number, shape, offset) in sorted(tensors, key=lambda each: each[1][2]):
        if number not in KINDS:
            known = ", ".join(BY_NAME)
            raise ValueError(f"tensor {name} has the type {number}, which is not supported; supported are {known}")
        kind, block, dtype = KINDS[number]
        if not could_be_array(shape):
            raise ValueError(f"tensor {name} has the shape {list(shape)}, which no array can have")
        if shape[-1] % block:
            raise ValueError(f"tensor {name} has rows of {shape[-1]}, expected a multiple of {block} for {kind}")
        size = math.prod(shape) // block * dtype.itemsize
        if offset % alignment:
            raise ValueError(f"tensor {name} begins at {offset}, expected a multiple of {alignment}")
        if offset < end:
            raise ValueError(f"tensor {name} begins at {offset}, within another one that ends at {end}")
        end = offset + size
        if start + end > len(cursor.data):
            raise ValueError(f"tensor {name} ends at {start + end}, expected at most {len(cursor.data)} (truncated?)")
        found[name] = GGUFTensor(kind, shape, start + offset, size)
    return found


def write_gguf(file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, tuple[str, Array]]) -> None:
    """Write metadata and tensors, name -> the kind of its blocks and the blocks (or plain numbers), rows first."""
    head = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        head += [_text(key), *_value(key, value)]
    place = 0
    for name, (kind, blocks) in tensors.items():
        number, count, _ = BY_NAME[kind]
        shape = (*blocks.shape[:-1], blocks.shape[-1] * count)[::-1]
        head += [_text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, place)]
        place += blocks.nbytes + -blocks.nbytes % ALIGNMENT
    with file.open("wb") as stream:
        stream.write(b"".join(head))
        for _, blocks in tensors.values():
            stream.write(bytes(-stream.tell() % ALIGNMENT))
            stream.write(np.ascontiguousarray(blocks).tobytes())
        stream.write(bytes(-stream.tell() % ALIGNMENT))


def _text(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _value(key: str, value: Any) -> Iterator[bytes]:
    """Yield the parts of a value: its type, and itself. TypeError for a value that has none."""
    scalars = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
    if isinstance(value, str):
        yield struct.pack("<I", STRING) + _text(value)
    elif type(value) in scalars:
        number, kind = scalars[type(value)]
        yield struct.pack(f"<I{kind}", number, value)
    elif isinstance(value, np.ndarray):
        number = next(number for number, kind in NUMBERS.items() if np.dtype(kind) == value.dtype)
        yield struct.pack("<IIQ", ARRAY, number, len(value)) + value.tobytes()
    elif isinstance(value, list):
        yield struct.pack("<IIQ", ARRAY, STRING, len(value))
        yield from map(_text, value)
    else:
        raise TypeError(f"{key} is {type(value).__name__}, expected a text, a number, a list of texts or an array")
