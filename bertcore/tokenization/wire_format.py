"""Reading the wire format of Protocol Buffers (https://protobuf.dev/programming-guides/encoding), strictly.

Only what SentencePiece files need: a message is a run of fields, each with a number, a type and a value.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIDTHS = {FIXED64: 8, FIXED32: 4}
TYPE_NAMES = {VARINT: "an integer", FIXED64: "8 bytes", BYTES: "a length and bytes", FIXED32: "4 bytes"}


class WireError(ValueError):
    """The bytes are no message."""


def read_fields(message: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(field number, wire type, value) of each field in turn; integers unsigned, everything else as bytes.

    Raises WireError at the first byte that is wrong: a field that ends beyond the message, an integer of more than 64
    bits, a type that does not exist (the groups of early versions included).
    """
    place, end = 0, len(message)
    while place < end:
        tag, value_start = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if number == 0 or kind not in TYPE_NAMES:
            raise WireError(f"byte {place} starts field {number} of type {kind}, which does not exist")
        if kind == VARINT:
            value, place = _varint(message, value_start)
        else:
            length, start = _varint(message, value_start) if kind == BYTES else (WIDTHS[kind], value_start)
            place = start + length
            if place > end:
                raise WireError(f"field {number} at byte {value_start} has {length} bytes; {end - start} are left")
            value = message[start:place]
        yield number, kind, value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """The integer at `place` (7 bits a byte, least significant first) and where it ends."""
    if place < len(message) and message[place] < 0x80:  # nearly all are this short: a third of the time to read a file
        return message[place], place + 1
    value = 0
    for count, byte in enumerate(message[place : place + 10]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if value >= 2**64:
                break
            return value, place + count + 1
    if len(message) - place < 10:
        raise WireError(f"it ends within an integer at byte {place}")
    raise WireError(f"the integer at byte {place} has more than 64 bits")
