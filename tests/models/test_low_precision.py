"""Models in bfloat16 and int8 on the CPU: what is stored, what is computed, what is saved, what memory it takes."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, kernels, use_backend, value_and_grad
from bertcore.checkpoint import CheckpointError, open_checkpoint, read_config, save_checkpoint
from bertcore.kernels import dispatch, unavailable_reason
from bertcore.passes import Pass
from tests.models.test_goldens import GOLDENS, golden, inputs_of
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tolerances import assert_same_arrays

TIED, UNTIED = GOLDENS / "three_heads_of_13", GOLDENS / "untied_decoder"
LOW = ("bfloat16", "int8")
# What is compiled for one more form costs some seconds: test_int8_weight_only.py has what needs no compiling.
EVERY = (*LOW, pytest.param("int8_weight_only", marks=pytest.mark.slow))
# Of hidden states, relative to their scale: rounding these models' weights and inputs costs up to 1.1e-2 and 3.4e-2.
TOLERANCE = {"bfloat16": 2.5e-2, "int8": 8e-2, "int8_weight_only": 4e-2}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def error(found, truth):
    return np.abs(found.astype(np.float64) - truth).max() / np.abs(truth).max()


def logits(model, folder=TIED):
    return model(**inputs_of(folder)).logits


@pytest.mark.parametrize("folder", [TIED, UNTIED], ids=lambda folder: folder.name)
@pytest.mark.parametrize("dtype", EVERY)
def test_outputs_are_close_and_float32(cpu_backend, dtype, folder):
    truth = golden(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype)
    out = model(**inputs_of(folder), output_hidden_states=True)
    assert model.dtype == dtype and out.logits.dtype == np.float32
    for state, expected in zip(out.hidden_states, truth["hidden_states"], strict=True):
        assert state.dtype == np.float32 and error(state, expected) < TOLERANCE[dtype]
    assert TOLERANCE[dtype] / 50 < error(out.logits, truth["logits"]) < 2 * TOLERANCE[dtype]  # not float32 either


@pytest.mark.parametrize("dtype", LOW)
def test_what_is_stored(cpu_backend, dtype):
    model = AutoModelForMaskedLM.from_pretrained(TIED, dtype=dtype)
    for parameter in model.parameters():
        assert ("weight" in parameter.uses) == bool(parameter.forms.weights)
        assert all(weight.dtype.name == dtype for weight in parameter.forms.weights.values())
        array = parameter.forms.array
        if parameter.uses == {"weight"}:
            assert array is None  # let go at load, before the first call
        else:
            assert array.dtype == (np.float32 if parameter.uses == {"vector"} else BFLOAT16)
    before = [dict(parameter.forms.weights) for parameter in model.parameters()]
    logits(model)
    assert [parameter.forms.weights for parameter in model.parameters()] == before  # nothing more for a call


def test_an_empty_dtype_is_not_the_default():
    refuses(ValueError, "dtype is '', expected one of", AutoModelForMaskedLM.from_pretrained, TIED, dtype="")


def test_a_tied_decoder_has_a_table_and_a_weight_of_it(cpu_backend):
    model = AutoModelForMaskedLM.from_pretrained(TIED, dtype="int8")
    table = model.encoder.embeddings.words.table
    assert table is model.heads[0].decoder and table.uses == {"table", "weight"}
    assert list(model.state_dict()).count("bert.embeddings.word_embeddings.weight") == 1
    values, scale = kernels.quantize_weight(table.array())
    np.testing.assert_array_equal(table.weight(Pass.begin()).to_array(), values * scale[:, None])


@pytest.mark.parametrize("dtype", LOW)
def test_state_dict(cpu_backend, dtype):
    exact = AutoModelForMaskedLM.from_pretrained(TIED)
    model = AutoModelForMaskedLM.from_pretrained(TIED, dtype=dtype)
    assert model.num_parameters() == exact.num_parameters()
    state = model.state_dict()
    assert list(state) == list(exact.state_dict())
    for name, array in exact.state_dict().items():
        found, rounded = state[name], array
        if array.ndim == 2:
            rounded = array.astype(BFLOAT16)
            if dtype == "int8":
                values, scale = kernels.quantize_weight(array)
                rounded = rounded.astype(np.float32) if "embeddings" in name else values * scale[:, None]
        assert found.dtype == rounded.dtype and not found.flags.writeable
        np.testing.assert_array_equal(found, rounded)


@pytest.mark.parametrize("dtype", ["float32", *EVERY])
def test_weights_prepared_for_one_backend_serve_the_other(dtype):
    with use_backend("numba"):
        model = AutoModelForMaskedLM.from_pretrained(TIED, dtype=dtype)
        logits(model)
    with use_backend("numpy"):
        fresh = AutoModelForMaskedLM.from_pretrained(TIED, dtype=dtype)
        assert_same_arrays(model.state_dict(), fresh.state_dict())
        np.testing.assert_array_equal(logits(model), logits(fresh))


@pytest.mark.parametrize("folder", [TIED, UNTIED], ids=lambda folder: folder.name)
@pytest.mark.parametrize("dtype", LOW)
def test_saved_and_loaded_without_a_dtype_it_is_the_same(cpu_backend, dtype, folder, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype)
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert again.dtype == dtype and again.config.keys() | {"dtype"} == model.config.keys() | {"dtype"}
    np.testing.assert_array_equal(logits(again, folder), logits(model, folder))
    kinds = {name: info.dtype for name, info in open_checkpoint(tmp_path).info.items()}
    assert kinds["bert.embeddings.word_embeddings.weight"] == "BF16"
    assert kinds["bert.encoder.layer.0.output.dense.weight"] == {"bfloat16": "BF16", "int8": "I8"}[dtype]
    assert kinds["bert.encoder.layer.0.output.dense.bias"] == "F32"
    assert (tmp_path / "model.safetensors").stat().st_size < (folder / "model.safetensors").stat().st_size * 0.75


@pytest.mark.parametrize("stored", LOW)
@pytest.mark.parametrize("asked", ["float32", "float64", "bfloat16", "int8"])
def test_another_dtype_than_the_checkpoints_converts(cpu_backend, stored, asked, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(TIED, dtype=stored)
    model.save_pretrained(tmp_path / "low")
    state = {name: array.astype(np.float32) for name, array in model.state_dict().items()}
    expected = AutoModelForMaskedLM.from_pretrained(TIED, dtype=asked)
    expected.load_state_dict(state)
    found = AutoModelForMaskedLM.from_pretrained(tmp_path / "low", dtype=asked)
    assert found.dtype == asked
    with use_backend("numpy" if asked == "float64" else kernels.get_backend()):
        assert error(logits(found), logits(expected)) < (1e-2 if asked == "int8" else 1e-6)
    found.save_pretrained(tmp_path / "again")  # the config tells of this model, not of the file it came from
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "again")
    assert again.dtype == (asked if asked in LOW else "float32")
    assert read_config(tmp_path / "again").get("dtype") in (None, "float32" if asked == "int8" else asked)


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16])
def test_an_ordinary_checkpoint_in_half_precision_loads_as_float32(stored, tmp_path):
    state = AutoModel.from_config(CONFIG).state_dict()
    config = {**CONFIG, "torch_dtype": np.dtype(stored).name}
    save_checkpoint(tmp_path, config, {name: array.astype(stored) for name, array in state.items()})
    model = AutoModel.from_pretrained(tmp_path)
    assert model.dtype == "float32"
    for name, array in model.state_dict().items():
        np.testing.assert_array_equal(array, state[name].astype(stored).astype(np.float32))


@pytest.mark.parametrize("dtype", LOW)
def test_gradients_are_refused(cpu_backend, dtype):
    model = AutoModelForMaskedLM.from_pretrained(TIED, dtype=dtype)
    with pytest.raises(ValueError, match=f"dtype='{dtype}', which on the CPU is only for inference.*dtype=\"float32\""):
        value_and_grad(model)(**inputs_of(TIED), labels=golden(TIED)["labels"])
    logits(model)  # and still computes


@pytest.mark.parametrize("dtype", ["int8", "int8_weight_only"])
def test_int8_is_refused_on_cuda(monkeypatch, dtype):
    with use_backend("numpy"):
        model = AutoModel.from_config(CONFIG, dtype=dtype)
    monkeypatch.setattr(dispatch, "startup_error", lambda name: None)
    with use_backend("cupy"):
        with pytest.raises(
            ValueError, match=f"dtype is '{dtype}', which runs on backends numpy and numba, not on 'cupy'"
        ):
            AutoModel.from_config(CONFIG, dtype=dtype)
        for form in ("weight", "value"):
            with pytest.raises(ValueError, match=f"loaded with dtype='{dtype}', which runs only on the CPU"):
                getattr(model.encoder.pooler.dense.weight, form)(Pass("cupy"))


def test_weights_that_int8_cannot_stand_for_are_named(cpu_backend):
    model = AutoModel.from_config(CONFIG)
    state = {name: array.copy() for name, array in model.state_dict().items()}
    state["encoder.layer.1.attention.self.key.weight"][2, 3] = np.nan
    low = AutoModel.from_config(CONFIG, dtype="int8")
    refuses(ValueError, r"layer\.1\.attention\.self\.key\.weight.*holds inf or NaN", low.load_state_dict, state)


QUANTIZATION = {"quant_method": "compressed-tensors", "format": "int-quantized"}
GROUPS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


@pytest.mark.parametrize("change, problem", [
    ({"quantization_config": "int8"}, r"config\.json: quantization_config is 'int8', expected an object"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quant_method 'gptq', format None; supported"),
    ({"quantization_config": {**QUANTIZATION, "format": "pack-quantized"}}, "format 'pack-quantized'; supported"),
    ({"quantization_config": {**QUANTIZATION, "config_groups": {"g": {"weights": {"num_bits": 4}}}}}, "of g are"),
    ({"quantization_config": {**QUANTIZATION, "config_groups": {"g": {"weights": {"strategy": "group"}}}}}, "g are"),
    (
        {
            "quantization_config": {
                **QUANTIZATION,
                "config_groups": {"g": {"weights": GROUPS, "input_activations": {}}},
            }
        },
        "g has weights in groups and quantized activations, not supported",
    ),
    ({"bertcore_dtype": "float8"}, r"bertcore_dtype is 'float8', expected 'bfloat16'"),
])  # fmt: skip
def test_other_quantisations_are_refused(tmp_path, change, problem):
    AutoModel.from_config(CONFIG).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    refuses(CheckpointError, problem, AutoModel.from_pretrained, tmp_path)


MEMORY = """
import gc, json, sys
import numpy as np
from bertcore import AutoModel

def resident():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return sum(int(status[key].split()[0]) for key in ("RssAnon", "RssFile")) / 1024

small, folder, dtype = sys.argv[1:]
ids = np.arange(96).reshape(2, 48)
AutoModel.from_pretrained(small, dtype=dtype)(ids)  # everything is imported and compiled
gc.collect()
before = resident()
model = AutoModel.from_pretrained(folder, dtype=dtype)
loaded = resident()
model(ids)
gc.collect()
print(json.dumps([loaded - before, resident() - before]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads /proc")
def test_resident_memory(tmp_path):
    """In MB: 10.8 M numbers in weights and 3.3 M in tables; 56 MB of float32 in all, 43 MB of them weights."""
    shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    config = {**CONFIG, **shape, "vocab_size": 8000, "max_position_embeddings": 512}
    AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    AutoModel.from_config({**config, "num_hidden_layers": 1, "vocab_size": 100}).save_pretrained(tmp_path / "small")
    found = {}
    for dtype in ("float32", *LOW, "int8_weight_only"):
        command = [sys.executable, "-c", MEMORY, str(tmp_path / "small"), str(tmp_path / "model"), dtype]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        found[dtype] = json.loads(result.stdout.splitlines()[-1])
    size = {"float32": 54, "bfloat16": 27, "int8": 17, "int8_weight_only": 18}
    for dtype, (loaded, called) in found.items():
        assert loaded < size[dtype] + 6 and called < size[dtype] + 8, (dtype, found)
    assert found["float32"][1] > 30  # what is measured is there


@pytest.mark.parametrize("backend", ["numba", "auto"])
def test_float16_is_refused_where_nothing_computes_in_it(backend, tmp_path):
    if backend == "auto" and unavailable_reason("cupy") is None:
        pytest.skip("CuPy runs here")
    AutoModel.from_config(CONFIG).save_pretrained(tmp_path)
    with use_backend(backend):
        for load, given in ((AutoModel.from_pretrained, tmp_path), (AutoModel.from_config, CONFIG)):
            message = "dtype is 'float16', which backend 'numba' does not support"
            refuses(ValueError, message, load, given, dtype="float16")
    with use_backend("numpy"):
        half = AutoModel.from_config(CONFIG, dtype="float16")
        assert half([[1, 2, 3]]).last_hidden_state.dtype == np.float16


def test_a_new_model_takes_no_more_memory_than_itself():
    config = CONFIG | {"vocab_size": 30_000, "hidden_size": 240, "num_attention_heads": 4}
    tracemalloc.start()
    model = AutoModel.from_config(config)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * 4 * model.num_parameters()
