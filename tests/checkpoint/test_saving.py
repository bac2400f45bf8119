import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from bertcore.checkpoint import open_checkpoint, read_config, save_checkpoint
from tests.checkpoint.files import write_shards

CONFIG = {"model_type": "bert", "hidden_size": 39}
ARRAYS = {"a.weight": np.arange(15, dtype=np.float32).reshape(3, 5), "b.bias": np.zeros(0), "c": np.full((), 2.0)}


def test_round_trip(tmp_path):
    save_checkpoint(tmp_path / "new" / "model", CONFIG, ARRAYS)
    folder = tmp_path / "new" / "model"
    assert read_config(folder) == CONFIG
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint) == set(ARRAYS) and checkpoint.metadata == {"format": "pt"}
    for name, array in ARRAYS.items():
        assert checkpoint[name].dtype == array.dtype and checkpoint[name].shape == array.shape
        np.testing.assert_array_equal(checkpoint[name], array)
    assert sorted(entry.name for entry in folder.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(24.0).reshape(4, 6)[::2, ::-1],
        np.broadcast_to(np.arange(3.0), (5, 3)),
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.arange(6, dtype=np.float16),
        np.array([True, False]),
    ],
    ids=["transposed", "strided", "broadcast", "big-endian", "half", "bool"],
)
def test_awkward_layouts(tmp_path, array):
    save_checkpoint(tmp_path, CONFIG, {"w": array})
    found = open_checkpoint(tmp_path)["w"]
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array)


def test_bfloat16(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(7).astype(ml_dtypes.bfloat16)
    save_checkpoint(tmp_path, CONFIG, {"w": array})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.info["w"].dtype == "BF16"
    np.testing.assert_array_equal(checkpoint["w"], array.astype(np.float32))


@pytest.mark.parametrize(
    "value, problem",
    [
        ([1.0, 2.0], r"parameter w is builtins\.list; expected a NumPy array"),
        (np.float32(1), r"parameter w is numpy\.float32; expected a NumPy array"),
        (np.array(["x"]), r"parameter w has dtype <U1; expected one of bfloat16"),
        (np.array([None]), "parameter w has dtype object"),
        (np.zeros(2, np.complex64), "parameter w has dtype complex64"),
    ],
)
def test_unstorable_parameter_writes_nothing(tmp_path, value, problem):
    with pytest.raises(TypeError, match=problem):
        save_checkpoint(tmp_path / "out", CONFIG, {"v": np.zeros(3), "w": value})
    assert not (tmp_path / "out").exists()


def test_unstorable_config_writes_nothing(tmp_path):
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(tmp_path / "out", {"x": np.zeros(2)}, ARRAYS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("failing", ["write", "second write", "replace"])
def test_failure_leaves_the_old_checkpoint(tmp_path, monkeypatch, failing):
    save_checkpoint(tmp_path, CONFIG, ARRAYS)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    if failing == "write":
        monkeypatch.setattr("safetensors.numpy.serialize_file", fail)
    elif failing == "second write":
        monkeypatch.setattr(Path, "write_text", fail)
    else:
        monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, {"model_type": "other"}, {"w": np.ones(3)})
    monkeypatch.undo()
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(OSError) as caught:
        save_checkpoint(tmp_path, CONFIG, ARRAYS)
    assert caught.value.filename == str(tmp_path / name) and ".tmp" not in str(caught.value)


def test_saving_over_the_loaded_file_keeps_the_arrays(tmp_path):
    save_checkpoint(tmp_path, CONFIG, ARRAYS)
    loaded = open_checkpoint(tmp_path)["a.weight"]
    save_checkpoint(tmp_path, CONFIG, {"a.weight": loaded + 1})
    np.testing.assert_array_equal(loaded, ARRAYS["a.weight"])
    np.testing.assert_array_equal(open_checkpoint(tmp_path)["a.weight"], loaded + 1)


def test_replaces_the_index_of_shards_and_keeps_other_files(tmp_path):
    write_shards(tmp_path, {"model-00001-of-00001.safetensors": {"w": np.zeros(3)}})
    (tmp_path / "vocab.txt").write_text("a")
    save_checkpoint(tmp_path, CONFIG, {"w": np.ones(3)})
    assert not (tmp_path / "model.safetensors.index.json").exists() and (tmp_path / "vocab.txt").exists()
    np.testing.assert_array_equal(open_checkpoint(tmp_path)["w"], np.ones(3))


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
def test_files_have_the_usual_mode(tmp_path):
    save_checkpoint(tmp_path, CONFIG, ARRAYS)
    (tmp_path / "plain").write_text("")
    for name in ("model.safetensors", "config.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parity
def test_transformers_loads_what_is_saved(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=31, hidden_size=26, num_hidden_layers=1, num_attention_heads=2, intermediate_size=17,
        max_position_embeddings=13,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config)
    named = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    save_checkpoint(tmp_path, json.loads(config.to_json_string()) | {"architectures": ["BertForMaskedLM"]}, named)
    again, report = transformers.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    for name, parameter in again.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), named[name])
