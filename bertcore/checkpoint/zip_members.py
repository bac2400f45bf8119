"""The places of members in an uncompressed zip archive.

Members must be views of the mapped file, but zipfile gives streams without their places. This reader is also stricter,
so that no two readers can disagree about an archive: every name once, the same in the directory and before the member,
nothing compressed, encrypted or split. Nothing is ever extracted, so names are labels, not paths. Format: PKWARE's
APPNOTE 6.3, sections 4.3.7, 4.3.12 to 4.3.16 and 4.5.3.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from .files import CheckpointError

LIMIT = 16 << 20  # bytes of the directory; an entry has about 60

END, END_SIGNATURE = struct.Struct("<4s4H2LH"), b"PK\5\6"
LOCATOR, LOCATOR_SIGNATURE = struct.Struct("<4sLQL"), b"PK\6\7"
END64, END64_SIGNATURE = struct.Struct("<4sQ2H2L4Q"), b"PK\6\6"
ENTRY, ENTRY_SIGNATURE = struct.Struct("<4s6H3L5H2L"), b"PK\1\2"
LOCAL, LOCAL_SIGNATURE = struct.Struct("<4s5H3L2H"), b"PK\3\4"
LONGEST_COMMENT = 0xFFFF
ELSEWHERE = 0xFFFFFFFF  # the value stands in the entry's 64-bit field
ENCRYPTED = 0x2041  # flags: encrypted, strongly encrypted, directory encrypted


class BadArchive(CheckpointError):
    """An archive is broken or unsupported; the message does not name the file."""


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """One file of the archive: its bytes go from `start` to `stop`, `crc` is their checksum."""

    name: str
    start: int
    stop: int
    crc: int

    def read(self, data) -> bytes:
        """Return a copy of its bytes. Raises BadArchive if their checksum is wrong."""
        content = data[self.start : self.stop]
        if zlib.crc32(content) != self.crc:
            raise BadArchive(f"the checksum of its member {self.name!r} is wrong (damaged?)")
        return content


def read_members(data) -> dict[str, ArchiveMember]:
    """Return the members of the archive in `data` (bytes or a mapped file), by name. Raises BadArchive."""
    count, size, start = _find_directory(data)
    if size > LIMIT:
        raise BadArchive(f"its directory has {size} bytes, expected at most {LIMIT}")
    directory = data[start : start + size]
    members: dict[str, ArchiveMember] = {}
    for name, crc, length, header in _entries(directory, count):
        if name in members:
            raise BadArchive(f"it has the member {name!r} twice")
        what = f"the header of its member {name!r}"
        _, _, method, *_, name_size, extra_size = _unpack(LOCAL, LOCAL_SIGNATURE, data, header, what)
        first = header + LOCAL.size
        if method != 0 or data[first : first + name_size] != name.encode():
            raise BadArchive(f"{what} contradicts the directory (damaged?)")
        first += name_size + extra_size
        if first + length > start:
            raise BadArchive(f"its member {name!r} of {length} bytes ends after the members (damaged?)")
        members[name] = ArchiveMember(name, first, first + length, crc)
    return members


def _unpack(form: struct.Struct, signature: bytes, data, start: int, what: str) -> tuple:
    if start < 0 or start + form.size > len(data) or data[start : start + 4] != signature:
        raise BadArchive(f"{what} is not where it should be (damaged?)")
    return form.unpack(data[start : start + form.size])[1:]


def _find_directory(data) -> tuple[int, int, int]:
    """Return the number of entries, the size and the first byte of the directory."""
    end = data.rfind(END_SIGNATURE, max(0, len(data) - END.size - LONGEST_COMMENT))
    if end < 0:
        raise BadArchive("the end of the archive is missing (truncated or still downloading?)")
    disk, directory_disk, here, count, size, start, _ = _unpack(END, END_SIGNATURE, data, end, "its end record")
    if data[max(0, end - LOCATOR.size) : end][:4] == LOCATOR_SIGNATURE:
        place = _unpack(LOCATOR, LOCATOR_SIGNATURE, data, end - LOCATOR.size, "its 64-bit locator")[1]
        record = _unpack(END64, END64_SIGNATURE, data, place, "its 64-bit end record")
        disk, directory_disk, here, count, size, start = record[3:]
        end = place
    if disk or directory_disk or here != count:
        raise BadArchive("it is one part of a split archive")
    if start + size > end:
        raise BadArchive("its directory is not where it should be (damaged?)")
    return count, size, start


def _entries(directory: bytes, count: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, checksum, length and place of the local header of each entry."""
    place = 0
    for _ in range(count):
        entry = _unpack(ENTRY, ENTRY_SIGNATURE, directory, place, "an entry of its directory")
        flags, method, _, _, crc, packed, length, name_size, extra_size, comment_size, disk, _, _, header = entry[2:]
        place += ENTRY.size
        raw = directory[place : place + name_size]
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadArchive(f"a member's name is not UTF-8: {raw[:100]!r}") from error
        extra = directory[place + name_size : place + name_size + extra_size]
        place += name_size + extra_size + comment_size
        if flags & ENCRYPTED:
            raise BadArchive(f"its member {name!r} is encrypted")
        length, packed, header = _long_values(extra, [length, packed, header], name)
        if method != 0 or packed != length:
            where = "as in a TorchScript program or an archive that was repacked; torch.save does not compress"
            raise BadArchive(f"its member {name!r} is compressed, {where}")
        if disk:
            raise BadArchive("it is one part of a split archive")
        yield name, crc, length, header
    if place != len(directory):
        raise BadArchive("its directory has another size than its entries (damaged?)")


def _long_values(extra: bytes, values: list[int], name: str) -> list[int]:
    """Return `values`; those too long for 32 bits come from the entry's extra fields."""
    missing = [index for index, value in enumerate(values) if value == ELSEWHERE]
    place = 0
    while missing and place + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, place)
        if kind == 1 and 8 * len(missing) <= min(size, len(extra) - place - 4):
            for index, value in zip(missing, struct.unpack_from(f"<{len(missing)}Q", extra, place + 4), strict=True):
                values[index] = value
            return values
        place += 4 + size
    if missing:
        raise BadArchive(f"its member {name!r} lacks its 64-bit sizes (damaged?)")
    return values
