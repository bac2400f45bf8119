"""Files of torch.save, built by hand. Hostile ones are in test_hostile_pickles.py."""

import json
import pickle

import numpy as np
import pytest

from bertcore.checkpoint import CheckpointError, open_checkpoint
from bertcore.checkpoint.pickle_file import KNOWN_NAMES, PickleFile
from bertcore.checkpoint.pickle_machine import read_pickle
from tests.checkpoint import pickle_files as build
from tests.checkpoint.files import write_tensors
from tests.refusals import refuses

VALUES = np.arange(6, dtype="<f4") - 2.5
FORMATS = {"zip": build.archive, "stream": build.stream}


def opened(folder, content):
    file = folder / "pytorch_model.bin"
    file.write_bytes(content)
    return PickleFile(file)


@pytest.fixture(params=FORMATS.values(), ids=FORMATS)
def write(request, tmp_path):
    """Write a state dict over the storage "0" in each format and open it."""

    return lambda items: opened(tmp_path, request.param(build.state_dict(items), {"0": VALUES.tobytes()}))


VIEWS = {
    "transposed": (((3, 2), (1, 3), 0), VALUES.reshape(2, 3).T),
    "column": (((2,), (3,), 2), VALUES[2::3]),
    "slice": (((2, 2), (3, 1), 1), VALUES.reshape(2, 3)[:, 1:]),
    "one of many": (((), (), 5), VALUES[5].reshape(())),
    "sizes of one": (((1, 6, 1), (6, 1, 9), 0), VALUES.reshape(1, 6, 1)),
    "stretched": (((2, 2), (0, 1), 1), np.array([VALUES[1:3]] * 2)),
    "overlapping": (((2, 3), (1, 1), 2), np.stack([VALUES[2:5], VALUES[3:6]])),
    "empty": (((0, 39), (39, 1), 6), np.zeros((0, 39), np.float32)),
}


@pytest.mark.parametrize("view, expected", VIEWS.values(), ids=VIEWS)
def test_views_of_one_storage(write, view, expected):
    file = write({"view": build.tensor(*view), "whole": build.tensor((6,), (1,))})
    found = file.read("view")
    assert found.shape == expected.shape and not found.flags.writeable
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(file.read("whole"), VALUES)


def padded(pad):
    """An archive whose numbers lie `pad` bytes further on; torch.save pads them to a multiple of 64."""
    items = {"w": build.tensor(), "t": build.tensor((3, 2), (1, 3)), "p" * pad: build.tensor()}
    return build.archive(build.state_dict(items), {"0": VALUES.tobytes()})


def test_zip_members_are_not_copied(tmp_path):
    content = next(content for content in map(padded, range(1, 5)) if content.index(VALUES.tobytes()) % 4 == 0)
    file = opened(tmp_path, content)
    assert np.shares_memory(file.read("w"), file.read("t"))
    assert file.info["w"].offset == content.index(VALUES.tobytes())


@pytest.mark.parametrize("pad", range(1, 5))
def test_unaligned_numbers_come_aligned(tmp_path, pad):
    found = opened(tmp_path, padded(pad)).read("t")
    assert found.flags.aligned and not found.flags.writeable
    np.testing.assert_array_equal(found, VALUES.reshape(2, 3).T)


DTYPES = {
    "DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "LongStorage": "i8", "IntStorage": "i4",
    "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip


@pytest.mark.parametrize("kind, code", DTYPES.items(), ids=DTYPES)
@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("form", FORMATS)
def test_dtypes_in_both_byte_orders(tmp_path, kind, code, order, form):
    values = np.array([0, 1, 1, 0, 1]) if code == "?" else np.array([0, 1, 2, 100, 127])
    stored = values.astype(np.dtype(code).newbyteorder("<" if order == "little" else ">"))
    pickled = build.state_dict({"w": build.tensor((5,), (1,), of=build.storage(5, kind=kind))})
    if form == "zip":
        content = build.archive(pickled, {"0": stored.tobytes()}, more={"byteorder": order.encode()})
    else:
        machine = build.LITTLE if order == "little" else build.LITTLE.replace(b"\x88s", b"\x89s")
        content = build.stream(pickled, {"0": stored.tobytes()}, item=stored.itemsize, machine=machine)
    found = opened(tmp_path, content).read("w")
    assert found.dtype == np.dtype(code)
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("order", ["little", "big"])
def test_bfloat16_is_exact(tmp_path, order):
    bits = np.arange(2**16, dtype="<u2" if order == "little" else ">u2")
    pickled = build.state_dict(
        {"w": build.tensor((256, 256), (1, 256), of=build.storage(2**16, kind="BFloat16Storage"))}
    )
    found = opened(tmp_path, build.archive(pickled, {"0": bits.tobytes()}, more={"byteorder": order.encode()})).read(
        "w"
    )
    expected = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32).reshape(256, 256).T
    np.testing.assert_array_equal(found.astype(np.float32), expected)  # NaN payloads included


def test_dtype_beyond_the_storage_classes(tmp_path):
    """Newer dtypes are written as bytes with the dtype beside them."""
    of = build.group(build.text("storage"), build.name("torch.storage", "UntypedStorage"), build.text("0"),
                     build.text("cpu"), build.integer(6)) + b"Q"  # fmt: skip
    items = {}
    for dtype, shape in {"uint16": (3,), "float8_e4m3fn": (6,)}.items():
        arguments = [of, build.integer(0), build.integers(shape), build.integers((1,)), b"\x89", b"N"]
        items[dtype] = build.call(
            build.name("torch._utils", "_rebuild_tensor_v3"), *arguments, build.name("torch", dtype)
        )
    file = opened(tmp_path, build.archive(build.state_dict(items), {"0": b"\1\0\2\0\0\3"}))
    assert file.read("uint16").tolist() == [1, 2, 768]
    with pytest.raises(
        CheckpointError, match=r"pytorch_model\.bin: tensor float8_e4m3fn is stored as F8_E4M3; readable"
    ):
        file.read("float8_e4m3fn")


def test_strings_and_ordered_dict_of_python_2(tmp_path):
    def old(value):
        return b"U" + bytes([len(value)]) + value.encode()

    pair = b"](" + old("w") + build.tensor(of=build.storage().replace(build.text("0"), old("0"))) + b"e"
    pickled = b"\x80\x02" + build.call(build.name("collections", "OrderedDict"), b"](" + pair + b"e") + b"q\x01."
    file = opened(tmp_path, build.stream(pickled, {"0": VALUES.tobytes()}))
    np.testing.assert_array_equal(file.read("w"), VALUES.reshape(2, 3))


def test_view_of_a_storage_in_the_older_format(tmp_path):
    view = build.group(build.text("view"), build.integer(2), build.integer(4))
    part = build.tensor((2, 2), (2, 1), of=build.storage(view=view))
    whole = build.tensor(of=build.storage(view=b"N"))
    file = opened(tmp_path, build.stream(build.state_dict({"p": part, "w": whole}), {"0": VALUES.tobytes()}))
    np.testing.assert_array_equal(file.read("p"), VALUES[2:].reshape(2, 2))
    np.testing.assert_array_equal(file.read("w"), VALUES.reshape(2, 3))
    beyond = build.tensor((2, 2), (2, 1), 1, of=build.storage(view=view))
    with pytest.raises(CheckpointError, match="ends after its storage 0 of 4 elements"):
        opened(tmp_path, build.stream(build.state_dict({"p": beyond}), {"0": VALUES.tobytes()}))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_of_every_protocol(protocol):
    """Python's own pickler writes what the machine reads."""
    shared = ["é" * 300, 7]
    value = {
        "numbers": [0, 1, 255, 256, 65536, -1, -(2**31), 2**31, 2**100, 1.5, float("inf"), True, False, None],
        "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "nested": {"a": [{"b": (shared, shared)}], "empty": [[], {}, ""]},
        **{str(number): number for number in range(300)},  # numbers of values beyond one byte
    }
    content = b"before" + pickle.dumps(value, protocol) + b"after"
    found, end = read_pickle(content, KNOWN_NAMES, 6)
    assert found == value and content[end:] == b"after"
    assert found["nested"]["a"][0]["b"][0] is found["nested"]["a"][0]["b"][1]


class TestCheckpoint:
    CONTENT = build.archive(build.state_dict({"w": build.tensor()}), {"0": VALUES.tobytes()})

    def test_safetensors_come_first(self, tmp_path):
        (tmp_path / "pytorch_model.bin").write_bytes(self.CONTENT)
        write_tensors(tmp_path / "model.safetensors", {"other": VALUES})
        assert list(open_checkpoint(tmp_path)) == ["other"]

    def test_missing_safetensors_shard_does_not_select_the_pickle(self, tmp_path):
        (tmp_path / "pytorch_model.bin").write_bytes(self.CONTENT)
        (tmp_path / "model.safetensors").symlink_to("../../blobs/0a1b")
        refuses(CheckpointError, r"model\.safetensors is a link to .* does not exist", open_checkpoint, tmp_path)

    def test_shards(self, tmp_path):
        (tmp_path / "pytorch_model-00001-of-00002.bin").write_bytes(self.CONTENT)
        second = build.stream(build.state_dict({"v": build.tensor((3, 2), (2, 1))}), {"0": VALUES.tobytes()})
        (tmp_path / "pytorch_model-00002-of-00002.bin").write_bytes(second)
        weight_map = {"w": "pytorch_model-00001-of-00002.bin", "v": "pytorch_model-00002-of-00002.bin"}
        index = tmp_path / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
        for path in (tmp_path, index):
            checkpoint = open_checkpoint(path)
            assert set(checkpoint) == {"w", "v"} and checkpoint.source == index
            np.testing.assert_array_equal(checkpoint["v"], VALUES.reshape(3, 2))
