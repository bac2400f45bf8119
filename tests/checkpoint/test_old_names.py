"""BERT from files published over the years: the same model from every format and spelling."""

import functools
import json
import warnings

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM
from bertcore.checkpoint import CheckpointError
from tests.checkpoint import pickle_files as build
from tests.checkpoint.files import write_tensors
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tolerances import assert_same_arrays

IDS, MASK = [[2, 7, 8, 9, 3], [2, 10, 3, 0, 0]], [[1] * 5, [1, 1, 1, 0, 0]]
BIAS = "cls.predictions.bias"


def write_safetensors(folder, arrays):
    write_tensors(folder / "model.safetensors", arrays)


def write_pickle(folder, arrays, *, older=False):
    """Write a state dict with one storage for each tensor; every other matrix is stored by columns, with strides."""
    items, storages, sizes = {}, {}, {}
    for number, (name, array) in enumerate(arrays.items()):
        key, kind = str(number), {"float32": "FloatStorage", "int64": "LongStorage"}[array.dtype.name]
        order = "F" if number % 2 else "C"
        stride = np.zeros(array.shape, "i1", order=order).strides  # of single bytes: in elements
        items[name] = build.tensor(array.shape, stride, of=build.storage(array.size, kind=kind, key=key))
        storages[key], sizes[key] = array.tobytes(order), array.itemsize
    pickle = build.state_dict(items)
    content = build.stream(pickle, storages, item=sizes) if older else build.archive(pickle, storages)
    (folder / "pytorch_model.bin").write_bytes(content)


WRITERS = {"safetensors": write_safetensors, "zip": write_pickle, "stream": functools.partial(write_pickle, older=True)}


def as_of_2018(arrays):
    """Add buffers, both names of tied tensors, other heads and TensorFlow's names; test_parameters.py tests each."""
    copies = {"decoder.weight": "bert.embeddings.word_embeddings.weight", "decoder.bias": BIAS}
    heads = {"cls.seq_relationship.weight": (2, 39), "cls.seq_relationship.bias": (2,), "classifier.weight": (5, 39)}
    arrays = {
        "bert.embeddings.position_ids": np.arange(40)[None],
        **arrays,
        **{f"cls.predictions.{copy}": arrays[name] for copy, name in copies.items()},
        **{name: np.ones(shape, np.float32) for name, shape in heads.items()},
    }
    renamed = {name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): name for name in arrays}
    return {new: arrays[name] for new, name in renamed.items()}


@pytest.fixture(scope="module")
def model():
    return AutoModelForMaskedLM.from_config(CONFIG, seed=3)


def written(folder, arrays, writer="safetensors"):
    (folder / "config.json").write_text(json.dumps(CONFIG))
    WRITERS[writer](folder, {name: np.asarray(array) for name, array in arrays.items()})
    return folder


@pytest.mark.parametrize("writer", WRITERS)
def test_same_model(cpu_backend, tmp_path, model, writer):
    folder = written(tmp_path, as_of_2018(model.state_dict()), writer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = AutoModelForMaskedLM.from_pretrained(folder)
        encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    assert not loaded.newly_initialised
    expected = model(IDS, MASK, output_hidden_states=True)
    np.testing.assert_array_equal(loaded(IDS, MASK).logits, expected.logits)
    np.testing.assert_array_equal(encoder(IDS, MASK).last_hidden_state, expected.hidden_states[-1])
    loaded.save_pretrained(tmp_path / "again")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "again")
    assert_same_arrays(again.state_dict(), model.state_dict())


def test_missing_head_is_named(tmp_path, model):
    folder = written(tmp_path, {k: array for k, array in model.state_dict().items() if not k.startswith("cls.")})
    with pytest.warns(UserWarning, match=rf"does not hold .*{BIAS}.*: newly initialised, train before use"):
        loaded = AutoModelForMaskedLM.from_pretrained(folder)
    assert BIAS in loaded.newly_initialised and all(name.startswith("cls.") for name in loaded.newly_initialised)
    with pytest.warns(UserWarning, match=r"does not hold pooler\.dense\.weight, pooler\.dense\.bias: newly init"):
        AutoModel.from_pretrained(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "weights.safetensors", "pytorch_model.bin", "weights.pt"])
def test_single_file(tmp_path, model, name):
    folder = written(tmp_path, model.state_dict(), "safetensors" if "safe" in name else "zip")
    next(file for file in folder.iterdir() if file.name != "config.json").rename(folder / name)
    loaded = AutoModelForMaskedLM.from_pretrained(folder / name)
    np.testing.assert_array_equal(loaded(IDS).logits, model(IDS).logits)
    (folder / "config.json").unlink()
    refuses(CheckpointError, r"has no config\.json", AutoModelForMaskedLM.from_pretrained, folder / name)
