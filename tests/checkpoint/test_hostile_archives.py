"""Containers of torch.save, zip archives and streams, that are damaged or contradict themselves."""

import io
import pickle
import struct
import zipfile

import pytest

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.pickle_file import PickleFile
from bertcore.checkpoint.pickle_machine import LIMIT
from tests.checkpoint import pickle_files as build
from tests.checkpoint.pickle_files import SOUND, VALUES, refused

ARCHIVE, STREAM = build.archive(SOUND, {"0": VALUES}), build.stream(SOUND, {"0": VALUES})
HEAD = b"".join([build.MAGIC, build.VERSION, build.LITTLE, SOUND])
KEY = b"X\1\0\0\x000"  # the text "0"


def changed(place, value, content=ARCHIVE):
    """Replace bytes of the content at a place."""
    return content[:place] + value + content[place + len(value) :]


def zipped(*members):
    """Make an archive of members (name, content); names may repeat."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for member in members:
            archive.writestr(*member)
    return stream.getvalue()


DIRECTORY = ARCHIVE.index(b"PK\1\2")
SECOND = ARCHIVE.index(b"PK\1\2", DIRECTORY + 1)
COMPRESSED = build.archive(SOUND, {"0": bytes(10**6)}, compression=zipfile.ZIP_DEFLATED)
MIDDLE = build.archive(SOUND, {"0": VALUES}, more={"byteorder": b"middle" * 10**5})

CONTENTS = {
    "compressed": (COMPRESSED, r"member 'archive/data\.pkl' is compressed, .*; torch\.save does not compress"),
    "zip bomb": (changed(SECOND + 20, struct.pack("<2L", 2**31, 2**31)), "ends after the members"),
    "encrypted": (changed(DIRECTORY + 8, b"\1"), r"member 'archive/data\.pkl' is encrypted"),
    "another header": (ARCHIVE.replace(b"archive/data/0", b"archive/data/1", 1), "contradicts the directory"),
    "two pickles": (zipped(("a/data.pkl", SOUND), ("b/data.pkl", SOUND)), r"has 2 pickles NAME/data\.pkl"),
    "damaged pickle": (ARCHIVE.replace(b"\x89", b"\x88", 1), r"checksum of its member 'archive/data\.pkl'"),
    "byte order": (MIDDLE, r"its byte order is b'middlemi', expected little or big"),
    **{
        f"named {top}": (build.archive(SOUND, {"0": VALUES}, top=top), r"has 0 pickles NAME/data\.pkl")
        for top in ("../..", "/etc", "a/b")
    },
    "longest pickle": (build.archive(b"\x80\x02" + b"N" * LIMIT + b".", {}), "the pickle is longer than 4 MiB"),
    "pickle": (pickle.dumps({"a": 1}), "it is a pickle, but not one of torch.save"),
    "version": (build.MAGIC + b"\x80\x02K\x05.", "its format has the version 5, expected 1001"),
    "version that is a list": (build.MAGIC + b"\x80\x02].", "its format has the version a list, expected 1001"),
    "machine": (build.stream(SOUND, {}, machine=b"\x80\x02}."), "does not say whether little_endian"),
    "spare storage": (build.stream(SOUND, {"0": VALUES, "1": VALUES}), "its storage 1 is of no tensor"),
    "no storage": (build.stream(SOUND, {}), "lacks the storage 0"),
    "short storage": (build.stream(SOUND, {"0": VALUES[:-4]}), "storage 0 has 20 bytes, its pickle says 24"),
    "no keys": (HEAD + b"\x80\x02N.", "list of storages is not a list of keys"),
    "storage twice": (HEAD + b"\x80\x02](" + KEY + KEY + b"e." + b"\0" * 16, "storage 0 is listed twice"),
    "endless storage": (HEAD + b"\x80\x02](" + KEY + b"e." + b"\xff" * 8 + VALUES, "ends inside its storage 0"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html><html>", "starts with b'<!DOCTYP', neither a zip archive nor a pickle"),
    "tar": (bytes(257) + b"ustar" + bytes(250), "tar archive, as PyTorch wrote before version 0.2"),
    "safetensors": (b"\x40\0\0\0\0\0\0\0{}", "neither a zip archive nor a pickle"),
}  # fmt: skip


@pytest.mark.parametrize("content, problem", CONTENTS.values(), ids=CONTENTS)
def test_refused_files(tmp_path, content, problem):
    refused(tmp_path, content, problem)
    assert [file.name for file in tmp_path.iterdir()] == ["pytorch_model.bin"]  # names of members are labels


@pytest.mark.parametrize("content", [ARCHIVE, STREAM], ids=["zip", "stream"])
def test_every_truncation(tmp_path, content):
    for length in range(len(content)):
        refused(tmp_path, content[:length], "empty|truncated|damaged|neither a zip|lacks the storage|of no tensor")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_same_name_twice(tmp_path):
    content = zipped(("archive/data.pkl", SOUND), ("archive/data.pkl", SOUND + b" "))
    refused(tmp_path, content, r"has the member 'archive/data\.pkl' twice")


def test_longest_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("bertcore.checkpoint.zip_members.LIMIT", 99)
    refused(tmp_path, ARCHIVE, r"its directory has \d+ bytes, expected at most 99")


def check_damaged(file, contents):
    """Damage is an error that names the file, or harmless: in the numbers, and in what no reader looks at."""
    for content in contents:
        file.write_bytes(content)
        try:
            assert PickleFile(file).read("w").shape == (2, 3)
        except CheckpointError as error:
            assert str(file) in str(error)


def test_every_damaged_byte(tmp_path):
    damaged = (changed(place, bytes([ARCHIVE[place] ^ 0xFF])) for place in range(len(ARCHIVE)))
    check_damaged(tmp_path / "pytorch_model.bin", damaged)


def test_directory_in_64_bits(tmp_path, monkeypatch):
    """zipfile writes those fields beyond its limit, which is lowered here."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 20)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    content = build.archive(SOUND, {"0": VALUES}, top="..")
    assert b"PK\6\6" in content
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(content)
    assert PickleFile(file).read("w").tolist() == [[0, 1, 2], [3, 4, 5]]
    places = range(content.index(b"PK\1\2"), len(content))
    check_damaged(file, (changed(place, bytes([value]), content) for place in places for value in (0, 0xFF)))
