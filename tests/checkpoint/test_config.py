import json

import pytest

from bertcore.checkpoint import CheckpointError, read_config


def test_reads_the_object(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 39}')
    assert read_config(tmp_path) == {"model_type": "bert", "hidden_size": 39}
    assert read_config(str(tmp_path))["hidden_size"] == 39
    (tmp_path / "config.json").write_text('{"a":' + "[" * 62 + "]" * 62 + "}")
    assert list(read_config(tmp_path)) == ["a"]


def test_missing_folder(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere does not exist, expected the folder"):
        read_config(tmp_path / "nowhere")


def test_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(CheckpointError, match=r"notes\.txt is a file, expected the folder"):
        read_config(tmp_path / "notes.txt")


def test_beside_a_file_of_weights(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for name in ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"):
        (tmp_path / name).write_text("x")
        assert read_config(tmp_path / name) == {"model_type": "bert"}


def test_folder_without_config_names_what_it_holds(tmp_path):
    (tmp_path / "vocab.txt").write_text("a")
    with pytest.raises(CheckpointError, match=r"has no config\.json; it holds vocab\.txt"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"", "not valid JSON"),
        (b'{"model_type": "bert"', "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[1, 2]", "holds a JSON list, expected an object"),
        (b'{"a":' + b"[" * 100_000, "cannot be read: its JSON is nested too deeply"),
        (b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", "cannot be read: its JSON is nested too deeply"),
        (b'{"a":' + b'{"b":' * 990 + b"1" + b"}" * 991, "cannot be read: its JSON is nested too deeply"),
        (b"null", "holds a JSON NoneType, expected an object"),
    ],
)
def test_broken_config(tmp_path, content, problem):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_config(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_link_to_nowhere(tmp_path):
    (tmp_path / "config.json").symlink_to("../../blobs/0a1b")
    with pytest.raises(CheckpointError, match=r"config\.json is a link to \.\./\.\./blobs/0a1b, which does not exist"):
        read_config(tmp_path)


def test_folder_in_place_of_the_config(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json is a folder, expected a file"):
        read_config(tmp_path)


def test_error_is_a_value_error():
    assert issubclass(CheckpointError, ValueError)


def test_non_ascii_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"label": "père"}, ensure_ascii=False), encoding="utf-8")
    assert read_config(tmp_path)["label"] == "père"
