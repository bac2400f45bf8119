import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bertcore.checkpoint import CheckpointError, open_checkpoint
from tests.checkpoint.files import entry, safetensors_bytes, write_shards, write_tensors
from tests.refusals import refuses

ARRAYS = {
    "matrix": np.arange(35, dtype=np.float32).reshape(5, 7), "double": np.linspace(-1, 1, 13),
    "half": np.array([0.5, -2.0, 65504.0, np.inf], np.float16), "index": np.arange(11, dtype=np.int64)[None],
    "flag": np.array([True, False, True]), "scalar": np.full((), 2.5, np.float32),
    "nothing": np.zeros((0, 39), np.float32),
}  # fmt: skip


def refused(message, folder):
    refuses(CheckpointError, message, open_checkpoint, folder)


def test_single_file(tmp_path):
    write_tensors(tmp_path / "model.safetensors", ARRAYS)
    checkpoint = open_checkpoint(tmp_path)
    assert set(checkpoint) == set(ARRAYS) and len(checkpoint) == len(ARRAYS)
    for name, array in ARRAYS.items():
        found = checkpoint[name]
        assert found.dtype == array.dtype and found.shape == array.shape == checkpoint.info[name].shape
        np.testing.assert_array_equal(found, array)
    assert checkpoint.metadata == {"format": "pt"}
    assert checkpoint.info["half"].dtype == "F16"
    assert "matrix" in checkpoint and "other" not in checkpoint
    with pytest.raises(KeyError):
        checkpoint["other"]


def test_array_outlives_the_checkpoint_and_the_replaced_file(tmp_path):
    write_tensors(tmp_path / "model.safetensors", ARRAYS)
    matrix = open_checkpoint(tmp_path)["matrix"]
    (tmp_path / "model.safetensors").unlink()
    np.testing.assert_array_equal(matrix, ARRAYS["matrix"])


def test_bfloat16_is_a_view_of_the_file(tmp_path):
    bits = np.arange(2**16, dtype=np.uint16).reshape(256, 256)  # NaN payloads included
    header = {"w": entry("BF16", (256, 256), 0, bits.nbytes)}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, bits.tobytes()))
    checkpoint = open_checkpoint(tmp_path)
    found = checkpoint["w"]
    assert found.dtype == ml_dtypes.bfloat16 and not found.flags.writeable
    assert np.shares_memory(found, checkpoint["w"])
    np.testing.assert_array_equal(found.view(np.uint16), bits)


def test_unaligned_tensor_comes_aligned(tmp_path):
    values = np.array([1.5, -2.5, 3.5], np.float32)
    text = json.dumps({"a": entry("U8", (1,), 0, 1), "b": entry("F32", (3,), 1, 13)}).encode()
    text += b" " * (-len(text) % 8)  # so that only the odd byte before "b" is to blame
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(text, b"\7" + values.tobytes()))
    found = open_checkpoint(tmp_path)["b"]
    assert found.flags.aligned
    np.testing.assert_array_equal(found, values)


def test_format_without_a_numpy_dtype(tmp_path):
    header = {"w": entry("F8_E4M3", (4,), 0, 4)}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, b"1234"))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.info["w"].dtype == "F8_E4M3"
    with pytest.raises(CheckpointError, match=r"tensor w is stored as F8_E4M3; readable are F64"):
        checkpoint["w"]


SOUND = safetensors_bytes({"a": entry("F32", (2,), 0, 8), "b": entry("F32", (3,), 8, 20)}, bytes(20))

BROKEN = {
    "empty": (b"", "shorter than a header"),
    "shorter than the length": (SOUND[:5], "shorter than a header"),
    "ends inside the header": (SOUND[:30], "ends inside its header"),
    "truncated data": (SOUND[:-1], "its length is not what its header says"),
    "trailing bytes": (SOUND + b"\0", "its length is not what its header says"),
    "huge header length": ((2**40).to_bytes(8, "little") + SOUND[8:], "does not start with a safetensors header"),
    "header is not JSON": (safetensors_bytes(b"{nope", b""), "invalid JSON"),
    "header is a list": (safetensors_bytes([1], b""), "invalid JSON"),
    "offsets do not fit the shape": (safetensors_bytes({"a": entry("F32", (3,), 0, 8)}, bytes(8)), "invalid shape"),
    "overlap": (safetensors_bytes({"a": entry("U8", (4,), 0, 4), "b": entry("U8", (4,), 2, 6)}, bytes(6)), "offset"),
    "hole": (safetensors_bytes({"a": entry("U8", (4,), 0, 4), "b": entry("U8", (4,), 6, 10)}, bytes(10)), "offset"),
    "backwards": (safetensors_bytes({"a": entry("U8", (4,), 8, 4)}, bytes(8)), "a"),
    "unknown dtype": (safetensors_bytes({"a": entry("Q3", (4,), 0, 4)}, bytes(4)), "Q3"),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
    "web page": (b"<!DOCTYPE html><html>Not found</html>", "does not start with a safetensors header"),
}


@pytest.mark.parametrize("content, problem", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("sharded", [False, True], ids=["single", "shard"])
def test_broken_file_is_named_with_its_problem(tmp_path, content, problem, sharded):
    name = "model.safetensors"
    if sharded:
        name = "second.safetensors"
        write_shards(tmp_path, {"first.safetensors": {"x": np.zeros(3)}, name: {"y": np.zeros(3)}})
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=problem) as caught:
        open_checkpoint(tmp_path)
    assert f"{tmp_path / name} is not an intact safetensors file" in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 2**63), (0, 2**62, 4), (1,) * 65, (2**64 - 1, 0)], ids=str)
def test_impossible_shapes(tmp_path, shape):
    size = 4 * int(0 not in shape)
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({"a": entry("F32", shape, 0, size)}, bytes(size)))
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*(shape|overflow)") as caught:
        open_checkpoint(tmp_path)["a"]
    assert str(tmp_path) in str(caught.value)


def test_huge_header_is_refused(tmp_path):
    header = {f"layer.{number:040d}": entry("U8", (0,), 0, 0) for number in range(100_000)}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(header, b""))
    with pytest.raises(CheckpointError, match=r"safetensors: its header has \d+ bytes, expected at most 8388608"):
        open_checkpoint(tmp_path)


def test_every_truncation_is_noticed(tmp_path):
    file = tmp_path / "model.safetensors"
    for length in range(len(SOUND)):
        file.write_bytes(SOUND[:length])
        refuses(CheckpointError, None, open_checkpoint, tmp_path)


class TestShards:
    SHARDS = {  # noqa: RUF012
        "a.safetensors": {"one": np.arange(6.0).reshape(2, 3), "two": np.ones(5, np.float32)},
        "b.safetensors": {"three": np.zeros((0, 3), np.float32), "four": np.arange(7)},
    }

    def test_reads_all(self, tmp_path):
        write_shards(tmp_path, self.SHARDS)
        checkpoint = open_checkpoint(tmp_path)
        assert checkpoint.source.name == "model.safetensors.index.json"
        for name, arrays in self.SHARDS.items():
            for tensor, array in arrays.items():
                assert checkpoint.info[tensor].file.name == name
                np.testing.assert_array_equal(checkpoint[tensor], array)
        assert len(checkpoint) == 4

    def test_index_decides_between_copies(self, tmp_path):
        shards = {"a.safetensors": {"w": np.zeros(3)}, "b.safetensors": {"w": np.ones(3), "v": np.ones(1)}}
        write_shards(tmp_path, shards, w="a.safetensors")
        np.testing.assert_array_equal(open_checkpoint(tmp_path)["w"], np.zeros(3))

    def test_tensor_missing_from_the_index_is_read(self, tmp_path):
        weight_map = write_shards(tmp_path, self.SHARDS)
        del weight_map["two"]
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        assert "two" in open_checkpoint(tmp_path)

    def test_missing_shard(self, tmp_path):
        write_shards(tmp_path, self.SHARDS)
        (tmp_path / "b.safetensors").unlink()
        refused(r"names 2 files; 1 are missing: b\.safetensors", tmp_path)

    def test_tensor_in_the_wrong_shard(self, tmp_path):
        write_shards(tmp_path, self.SHARDS, one="b.safetensors")
        refused(r"files that lack them: one \(in b\.safetensors\)", tmp_path)

    @pytest.mark.parametrize(("names", "problem"), [
        (["../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", "", "c:a", "..\\a"], "expected a plain name"),
        (["x" * 300 + ".safetensors", "ü" * 128, "a\0.safetensors", "a\x1b[2J"], "which no file system can hold"),
    ], ids=["elsewhere", "impossible"])  # fmt: skip
    def test_index_with_other_names(self, tmp_path, names, problem):
        for name in names:
            write_shards(tmp_path, self.SHARDS, one=name)
            refused(problem, tmp_path)

    @pytest.mark.parametrize(("content", "problem"), [
        *[(content, "has no weight_map") for content in ("{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}')],
        ("{", r"index\.json is not valid JSON"),
    ])  # fmt: skip
    def test_index_without_a_map(self, tmp_path, content, problem):
        (tmp_path / "model.safetensors.index.json").write_text(content)
        refused(problem, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_link_or_folder_in_place_of_the_weights(tmp_path, name):
    file = tmp_path / name
    file.symlink_to("../../blobs/0a1b")
    refused(rf"{name} is a link to \.\./\.\./blobs/0a1b, which does not exist", tmp_path)
    file.unlink()
    file.mkdir()
    refused(rf"{name} is a folder, expected a file", tmp_path)


def test_unreadable_weights(tmp_path, monkeypatch):
    write_tensors(tmp_path / "model.safetensors", ARRAYS)

    def refuse(*args, **kwargs):  # file modes do not stop root, who runs the tests in a container
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    refused(r"model\.safetensors cannot be read: Permission denied", tmp_path)
