import errno
import itertools
import json
import os
import shutil
import signal
import stat
import subprocess

import numpy as np
import pytest

from bertcore import AutoModel, AutoTokenizer
from bertcore.checkpoint import CheckpointError, open_checkpoint, read_config, save_checkpoint
from bertcore.checkpoint.files import temporary_beside
from bertcore.tasks.sentence_encoder import save_sentence_encoder
from tests.checkpoint.files import write_shards
from tests.processes import finish, run_python, start_python
from tests.refusals import refuses
from tests.tiny_bert import save_tiny_bert

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


@pytest.mark.parametrize("array", [
    np.arange(12.0).reshape(3, 4).T,
    np.arange(24.0).reshape(4, 6)[::2, ::-1],
    np.broadcast_to(np.arange(3.0), (5, 3)),
    np.arange(6, dtype=">f4").reshape(2, 3),
    np.arange(6, dtype=np.float16),
    np.array([True, False]),
], ids=["transposed", "strided", "broadcast", "big-endian", "half", "bool"])  # fmt: skip
def test_awkward_layouts(tmp_path, array):
    save_checkpoint(tmp_path, CONFIG, {"w": array})
    found = open_checkpoint(tmp_path)["w"]
    assert found.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("value, problem", [
    ([1.0, 2.0], r"parameter w is builtins\.list, expected a NumPy array"),
    (np.float32(1), r"parameter w is numpy\.float32, expected a NumPy array"),
    (np.array(["x"]), r"parameter w has dtype <U1, expected one of bfloat16"),
    (np.array([None]), "parameter w has dtype object"),
    (np.zeros(2, np.complex64), "parameter w has dtype complex64"),
])  # fmt: skip
def test_unstorable_parameter_writes_nothing(tmp_path, value, problem):
    refuses(TypeError, problem, save_checkpoint, tmp_path / "out", CONFIG, {"v": np.zeros(3), "w": value})
    assert not (tmp_path / "out").exists()


def test_unstorable_config_writes_nothing(tmp_path):
    for value, problem in ({"y": [np.zeros(2)]}, "is dict, .*: .* ndarray"), ({1, 2}, "is set, expected what JSON can"):
        wrong = rf"config\['x'\] {problem}"
        refuses(TypeError, wrong, save_checkpoint, tmp_path / "out", {"a": 1, "x": value}, ARRAYS)
    assert not (tmp_path / "out").exists()


def contents(folder):
    """Return the config and the names of the tensors, or the message of an interrupted save."""
    try:
        return read_config(folder), sorted(open_checkpoint(folder))
    except CheckpointError as error:
        return str(error)


NEW_CONFIG, NEW_ARRAYS = {"model_type": "other"}, {"w": np.ones(3)}
OLD, NEW = (CONFIG, sorted(ARRAYS)), (NEW_CONFIG, sorted(NEW_ARRAYS))


def before_step(wanted, action):
    """Run `action` before the file operation (replace, unlink, fsync) with the number `wanted`, from 0 on."""
    steps = itertools.count()

    def counted(function):
        def call(*args, **options):
            if next(steps) == wanted:
                action()
            return function(*args, **options)

        return call

    for name in ("replace", "unlink", "fsync"):
        setattr(os, name, counted(getattr(os, name)))


def save_and_be_killed(folder, step):
    before_step(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
    save_checkpoint(folder, NEW_CONFIG, NEW_ARRAYS)


KILLED = """
import os, sys
from pathlib import Path
from tests.checkpoint import test_saving as test

for step in range(99):
    folder = Path(sys.argv[1]) / str(step)
    test.save_checkpoint(folder, test.CONFIG, test.ARRAYS)
    (folder / "vocab.txt").write_text("a")
    child = os.fork()
    if child == 0:
        test.save_and_be_killed(folder, step)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(step)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_killed_process_leaves_one_model_or_a_note(tmp_path):
    steps = int(run_python(KILLED, str(tmp_path))[0])
    found = [contents(tmp_path / str(step)) for step in range(steps + 1)]
    assert found[0] == OLD and found[-1] == NEW
    for step, each in enumerate(found):
        folder = tmp_path / str(step)
        interrupted = f"{folder}: saving was interrupted before config.json was in place; save again"
        assert each in (OLD, NEW, interrupted)
        save_checkpoint(folder, NEW_CONFIG, NEW_ARRAYS)
        assert contents(folder) == NEW
        assert sorted(entry.name for entry in folder.iterdir()) == ["config.json", "model.safetensors", "vocab.txt"]
    assert any(isinstance(each, str) for each in found)  # between the replacements


def test_no_name_is_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(ValueError, "folder is empty, expected the name of a folder", save_checkpoint, "", CONFIG, ARRAYS)
    assert not list(tmp_path.iterdir())
    save_checkpoint(".", CONFIG, ARRAYS)
    assert contents(tmp_path) == OLD


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_a_failure_leaves_the_old_checkpoint(tmp_path, monkeypatch, error):
    def fail():
        raise error

    states = []
    for step in itertools.count():
        folder = tmp_path / str(step)
        save_checkpoint(folder, CONFIG, ARRAYS)
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink", "fsync"):
                patch.setattr(os, name, getattr(os, name))  # put back what before_step replaces
            before_step(step, fail)
            try:
                save_checkpoint(folder, NEW_CONFIG, NEW_ARRAYS)
                break
            except type(error):
                states.append(contents(folder))
    assert states == sorted(states, key=[OLD, NEW].index)  # the old one, until the new one is in place
    assert states.count(OLD) >= 7


@pytest.mark.parametrize("target", ["safetensors.numpy.serialize_file", "pathlib.Path.write_text"])
def test_a_failure_to_write_leaves_everything(tmp_path, monkeypatch, target):
    save_checkpoint(tmp_path, CONFIG, ARRAYS)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(target, fail)
    refuses(OSError, "No space left", save_checkpoint, tmp_path, NEW_CONFIG, NEW_ARRAYS)
    monkeypatch.undo()
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before


KILLED_IN_WRITING = """
import os, signal, sys
from bertcore.checkpoint import safetensors_file
from tests.checkpoint import test_saving as test
import safetensors.numpy

def killed(arrays, file, metadata):
    file.with_name(".tmpAb12Cd").write_bytes(b"w" * 1000)  # as safetensors names what it has not finished
    os.kill(os.getpid(), signal.SIGKILL)

safetensors.numpy.save_file = killed
test.save_checkpoint(sys.argv[1], test.CONFIG, test.ARRAYS)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX locks and signals")
def test_a_killed_save_leaves_nothing_beyond_the_next(tmp_path):
    assert start_python(KILLED_IN_WRITING, str(tmp_path)).wait() == -signal.SIGKILL
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) > 1000
    with temporary_beside(tmp_path / "config.json") as another:
        save_checkpoint(tmp_path, CONFIG, ARRAYS)
        assert another.parent.is_dir()  # of a save that goes on
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_without_locks_old_temporary_folders_are_removed(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("bertcore.system.fcntl.flock", refuse)
    fresh, old, other = (tmp_path / f".{name}.0123456789abcde{number}.tmp" for number, name in enumerate("aab"))
    for folder in (fresh, old, other):
        folder.mkdir()
        (folder / "half").write_text("")
    for path in (old / "half", old, other / "half", other):
        os.utime(path, (0, 0))
    with temporary_beside(tmp_path / "a"):
        assert fresh.exists() and other.exists() and not old.exists()


# Saves two encoders of different widths and settings by turns, or loads whichever is there; a mixture is an error.
SAVER_OR_LOADER = """
import sys, time
from bertcore import AutoModel, AutoTokenizer, SentenceEncoder
from bertcore.tasks.sentence_encoder import save_sentence_encoder
from tests.tiny_bert import CONFIG

folder, is_loader = sys.argv[1], sys.argv[2] == "loader"
models = [AutoModel.from_config(CONFIG | {"hidden_size": width}) for width in (39, 27)]
tokenizer, count = AutoTokenizer.from_pretrained(folder), 0
end = time.monotonic() + 3
while time.monotonic() < end or count < 3:
    if is_loader:
        model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        assert model.state_dict()["pooler.dense.bias"].shape == (model.config["hidden_size"],)
        encoder = SentenceEncoder(folder)
        found = encoder.model.spec.hidden_size, encoder.max_seq_length, encoder.settings.pooling
        assert found in ((39, 7, ("mean",)), (27, 9, ("cls",))), found
    else:
        how = dict(pooling="cls", max_seq_length=9) if count % 2 else dict(max_seq_length=7)
        save_sentence_encoder(folder, models[count % 2], tokenizer, **how)
    count += 1
"""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX locks")
def test_loading_beside_saving(tmp_path):
    """The savers each have a process namespace of their own where root makes one: as in two containers."""
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_bert(tmp_path))
    save_sentence_encoder(tmp_path, AutoModel.from_pretrained(tmp_path), tokenizer, max_seq_length=7)
    apart = ("unshare", "--pid", "--fork")
    can_unshare = (
        shutil.which("unshare") and subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode == 0
    )
    processes = [
        start_python(SAVER_OR_LOADER, str(tmp_path), kind, before=apart if can_unshare and kind == "saver" else ())
        for kind in ("saver", "saver", "loader", "loader")
    ]
    for process in processes:
        finish(process)
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".tmp")]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_error_names_the_file_not_the_temporary_one(tmp_path, name):
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
