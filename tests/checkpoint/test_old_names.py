"""BERT from files as they were published over the years: the same model, whatever the file's format and names."""

import functools
import json
import warnings

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM
from bertcore.checkpoint import CheckpointError
from tests.checkpoint import pickle_files as build
from tests.checkpoint.files import write_tensors
from tests.tiny_bert import CONFIG
from tests.tolerances import assert_same_arrays

IDS = [[2, 7, 8, 9, 3], [2, 10, 3, 0, 0]]
DECODER, BIAS = "cls.predictions.decoder", "cls.predictions.bias"


def write_safetensors(folder, arrays):
    write_tensors(folder / "model.safetensors", arrays)


def write_pickle(folder, arrays, *, older=False):
    """A state dict with one storage for each tensor, every other matrix column by column: with strides."""
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


WRITERS = {
    "safetensors": write_safetensors,
    "zip": write_pickle,
    "stream": functools.partial(write_pickle, older=True),
}


def gamma_and_beta(arrays):
    """TensorFlow's names of the layer norms' parameters."""
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in arrays.items()
    }


def without_prefix(arrays):
    return {name.removeprefix("bert."): array for name, array in arrays.items()}


def with_position_ids(arrays):
    return {"bert.embeddings.position_ids": np.arange(40)[None], **arrays}


def with_decoder(arrays):
    """Both names of what is tied."""
    words = arrays["bert.embeddings.word_embeddings.weight"]
    return {**arrays, f"{DECODER}.weight": words, f"{DECODER}.bias": arrays[BIAS]}


def with_other_heads(arrays):
    heads = {"cls.seq_relationship.weight": (2, 39), "cls.seq_relationship.bias": (2,), "classifier.weight": (5, 39)}
    return {**arrays, **{name: np.ones(shape, np.float32) for name, shape in heads.items()}}


SPELLINGS = {  # tests/models/test_families.py has each by itself
    "today": [],
    "2018": [with_position_ids, with_decoder, with_other_heads, gamma_and_beta],
    "2018, without a prefix": [with_position_ids, gamma_and_beta, without_prefix],
}


@pytest.fixture(scope="module")
def model():
    return AutoModelForMaskedLM.from_config(CONFIG, seed=3)


def written(folder, arrays, writer, config=CONFIG):
    (folder / "config.json").write_text(json.dumps(config))
    WRITERS[writer](folder, arrays)
    return folder


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_same_model(tmp_path, model, writer, spelling):
    arrays = {name: np.asarray(array) for name, array in model.state_dict().items()}
    for change in SPELLINGS[spelling]:
        arrays = change(arrays)
    folder = written(tmp_path, arrays, writer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = AutoModelForMaskedLM.from_pretrained(folder)
        encoder = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    assert not loaded.newly_initialised
    assert_same_arrays(loaded.state_dict(), model.state_dict())
    expected = model(IDS, attention_mask=[[1] * 5, [1, 1, 1, 0, 0]], output_hidden_states=True)
    found = loaded(IDS, attention_mask=[[1] * 5, [1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(found.logits, expected.logits)
    hidden = encoder(IDS, attention_mask=[[1] * 5, [1, 1, 1, 0, 0]]).last_hidden_state
    np.testing.assert_array_equal(hidden, expected.hidden_states[-1])


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("bias", [BIAS, f"{DECODER}.bias"])
def test_untied_decoder(tmp_path, writer, bias):
    config = {**CONFIG, "tie_word_embeddings": False}
    model = AutoModelForMaskedLM.from_config(config, seed=4)
    arrays = {bias if name == f"{DECODER}.bias" else name: array for name, array in model.state_dict().items()}
    loaded = AutoModelForMaskedLM.from_pretrained(written(tmp_path, arrays, writer, config))
    assert_same_arrays(loaded.state_dict(), model.state_dict())


@pytest.mark.parametrize("writer", WRITERS)
def test_untied_file_for_a_tied_config_is_an_error(tmp_path, model, writer):
    arrays = {**model.state_dict(), f"{DECODER}.weight": np.zeros((CONFIG["vocab_size"], 39), np.float32)}
    with pytest.raises(CheckpointError, match="set tie_word_embeddings to false"):
        AutoModelForMaskedLM.from_pretrained(written(tmp_path, arrays, writer))


@pytest.mark.parametrize("writer", WRITERS)
def test_head_that_is_not_there_is_named(tmp_path, model, writer):
    arrays = {name: array for name, array in model.state_dict().items() if not name.startswith("cls.")}
    folder = written(tmp_path, arrays, writer)
    with pytest.warns(UserWarning, match=rf"does not hold .*{BIAS}.*: newly initialised, train before use"):
        loaded = AutoModelForMaskedLM.from_pretrained(folder)
    assert BIAS in loaded.newly_initialised and all(name.startswith("cls.") for name in loaded.newly_initialised)
    with pytest.warns(
        UserWarning, match=r"does not hold pooler\.dense\.weight, pooler\.dense\.bias: newly initialised"
    ):
        AutoModel.from_pretrained(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "weights.safetensors", "pytorch_model.bin", "weights.pt"])
def test_single_file(tmp_path, model, name):
    folder = written(tmp_path, dict(model.state_dict()), "safetensors" if "safe" in name else "zip")
    next(file for file in folder.iterdir() if file.name != "config.json").rename(folder / name)
    loaded = AutoModelForMaskedLM.from_pretrained(folder / name)
    np.testing.assert_array_equal(loaded(IDS).logits, model(IDS).logits)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        AutoModelForMaskedLM.from_pretrained(folder / name)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_strided_tensors_are_used_as_they_are_meant(tmp_path, model, backend):
    from bertcore import use_backend

    folder = written(tmp_path, dict(model.state_dict()), "zip")
    with use_backend(backend):
        loaded = AutoModelForMaskedLM.from_pretrained(folder)
        np.testing.assert_array_equal(loaded(IDS).logits, model(IDS).logits)
    loaded.save_pretrained(tmp_path / "again")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "again")
    np.testing.assert_array_equal(again(IDS).logits, model(IDS).logits)
