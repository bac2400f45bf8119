"""Build files of torch.save, valid and broken ones, opcode by opcode, without PyTorch."""

import io
import zipfile

import numpy as np
import pytest

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.pickle_file import PickleFile

MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
VERSION = b"\x80\x02M\xe9\x03."
LITTLE = b"\x80\x02}X\x0d\x00\x00\x00little_endian\x88s."


def name(module: str, attribute: str) -> bytes:
    """GLOBAL."""
    return b"c" + f"{module}\n{attribute}\n".encode()


def text(value: str) -> bytes:
    """BINUNICODE."""
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def integer(value: int) -> bytes:
    """LONG1."""
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def group(*items: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(items) + b"t"


def integers(values) -> bytes:
    """A tuple of integers."""
    return group(*map(integer, values))


def call(function: bytes, *arguments: bytes) -> bytes:
    """REDUCE."""
    return function + group(*arguments) + b"R"


def ordered_dict() -> bytes:
    """An empty OrderedDict."""
    return call(name("collections", "OrderedDict"))


def storage(length=6, *, kind="FloatStorage", key="0", view=b"") -> bytes:
    """A reference to a storage; `view` is the sixth entry of the older format."""
    return group(text("storage"), name("torch", kind), text(key), text("cpu"), integer(length), view) + b"Q"


def tensor(shape=(2, 3), stride=(3, 1), offset=0, *, of: bytes | None = None) -> bytes:
    """A tensor of a storage."""
    of = storage() if of is None else of
    arguments = [of, integer(offset), integers(shape), integers(stride), b"\x89", ordered_dict()]
    return call(name("torch._utils", "_rebuild_tensor_v2"), *arguments)


def state_dict(items: dict[str, bytes]) -> bytes:
    """A whole pickle of an OrderedDict."""
    return b"\x80\x02" + ordered_dict() + b"(" + b"".join(text(key) + value for key, value in items.items()) + b"u."


def archive(pickle: bytes, storages: dict[str, bytes], *, top: str = "archive", **options) -> bytes:
    """A zip archive as torch.save makes it; options of zipfile, and `more`: further members by name."""
    more = options.pop("more", {})
    members = {"data.pkl": pickle, **{f"data/{key}": content for key, content in storages.items()}, **more}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", **options) as file:
        for member, content in members.items():
            file.writestr(f"{top}/{member}", content)
    return stream.getvalue()


def stream(pickle: bytes, storages: dict[str, bytes], *, item=4, machine: bytes = LITTLE) -> bytes:
    """The format before PyTorch 1.6; `item` is the size of an element, of all storages or of each by its key."""
    keys = b"\x80\x02](" + b"".join(map(text, storages)) + b"e."
    items = item if isinstance(item, dict) else dict.fromkeys(storages, item)
    data = b"".join((len(content) // items[key]).to_bytes(8, "little") + content for key, content in storages.items())
    return MAGIC + VERSION + machine + pickle + keys + data


VALUES = np.arange(6, dtype="<f4").tobytes()
SOUND = state_dict({"w": tensor()})
FORMATS = {"zip": archive, "stream": stream}


def refused(folder, content: bytes, problem: str) -> None:
    """Assert that reading `content` is an error of one printable line that names the file and the problem."""
    file = folder / "pytorch_model.bin"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=problem) as caught:
        PickleFile(file)
    message = str(caught.value)
    assert message.startswith(str(file)) and len(message) < 600 and message.isprintable()
