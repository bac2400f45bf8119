"""SentencePiece files made by hand: the wire format of Protocol Buffers, and a compiled map of characters."""

import struct

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def varint(value: int) -> bytes:
    """An unsigned integer, 7 bits a byte, least significant first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def integer_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def float_field(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


def piece(text: str, score: float = 0.0, kind: int = NORMAL) -> bytes:
    """A message SentencePiece; a normal piece leaves its type out, as SentencePiece does."""
    message = bytes_field(1, text.encode()) + float_field(2, score)
    return message if kind == NORMAL else message + integer_field(3, kind)


def model(pieces: list[bytes], trainer: bytes = b"", normalizer: bytes = b"") -> bytes:
    """A message ModelProto."""
    message = b"".join(bytes_field(1, one) for one in pieces)
    return message + bytes_field(2, trainer) + bytes_field(3, normalizer)


def charsmap(replacements: dict[str, str]) -> bytes:
    """The compiled map: a double array in which each node has 256 units of its own, then the replacements."""
    strings, units, bases = b"", {}, {b"": 256}
    keys = sorted({key.encode()[:length] for key in replacements for length in range(1, len(key.encode()) + 1)})
    for prefix in keys:
        bases[prefix] = 256 * (len(bases) + 1)
    units[0] = bases[b""] << 10
    for prefix in keys:
        position = bases[prefix[:-1]] ^ prefix[-1]
        units[position] = (position ^ bases[prefix]) << 10 | prefix[-1]
    for key, replacement in replacements.items():
        prefix = key.encode()
        units[bases[prefix[:-1]] ^ prefix[-1]] |= 1 << 8  # there is a value
        units[bases[prefix]] = 1 << 31 | len(strings)
        strings += replacement.encode() + b"\0"
    trie = struct.pack(f"<{256 * (len(bases) + 1)}I", *(units.get(at, 0) for at in range(256 * (len(bases) + 1))))
    return struct.pack("<I", len(trie)) + trie + strings
