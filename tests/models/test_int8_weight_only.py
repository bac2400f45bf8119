"""Models in int8_weight_only by the definition: what is kept, saved and refused; test_low_precision.py has the rest."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, kernels, use_backend, value_and_grad
from bertcore.checkpoint import CheckpointError, open_checkpoint, read_config
from bertcore.cli import main
from bertcore.nn.blocks import attention_dtype
from bertcore.passes import Pass
from tests.checkpoint.files import write_tensors
from tests.models.test_low_precision import QUANTIZATION
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import tiny_config
from tests.tolerances import assert_same_arrays

DTYPE = "int8_weight_only"
IDS = [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]]
pytestmark = pytest.mark.usefixtures("on_numpy")


def hidden(model):
    return model(IDS)[0]


def test_it_computes_with_the_weights_it_stands_for():
    low = AutoModel.from_config(CONFIG, dtype=DTYPE)
    wide = AutoModel.from_config(CONFIG, seed=3)
    assert low.dtype == DTYPE and not np.array_equal(hidden(low), hidden(wide))
    wide.load_state_dict(low.state_dict())
    np.testing.assert_array_equal(hidden(low), hidden(wide))
    with use_backend("numba"):
        weight = AutoModel.from_config(CONFIG, dtype=DTYPE).encoder.layers[0].attention.projections[0].weight
        assert weight.forms.any_weight().is_grouped and attention_dtype(Pass.begin(), weight) is None


@pytest.mark.parametrize(
    "family", ["bert-base-uncased", "gpt2", "xlnet-base-cased"]
)  # stored as they are, transposed, and in three axes
def test_saved_loaded_and_quantized_it_is_the_same(family, tmp_path):
    AutoModel.from_config(tiny_config(family)).save_pretrained(tmp_path / "whole")
    model = AutoModel.from_pretrained(tmp_path / "whole", dtype=DTYPE)
    model.save_pretrained(tmp_path / "low")
    assert main(["quantize", str(tmp_path / "whole"), str(tmp_path / "by_command"), "--dtype", DTYPE]) == 0
    assert read_config(tmp_path / "low")["quantization_config"]["format"] == QUANTIZATION["format"]
    first, second = (dict(open_checkpoint(tmp_path / name)) for name in ("low", "by_command"))
    assert_same_arrays(first, second)
    assert {array.dtype.name for name, array in first.items() if name.endswith("_scale")} == {"bfloat16"}
    again = AutoModel.from_pretrained(tmp_path / "low")
    assert again.dtype == DTYPE
    np.testing.assert_array_equal(hidden(again), hidden(model))


@pytest.mark.parametrize("asked", ["float32", "int8"])
def test_a_checkpoint_converts_to_another_dtype(asked, tmp_path):
    model = AutoModel.from_config(CONFIG, dtype=DTYPE)
    model.save_pretrained(tmp_path)
    expected = AutoModel.from_config(CONFIG, dtype=asked)
    expected.load_state_dict(model.state_dict())
    found = AutoModel.from_pretrained(tmp_path, dtype=asked)
    np.testing.assert_array_equal(hidden(found), hidden(expected))
    AutoModel.from_config(CONFIG, dtype="int8").save_pretrained(tmp_path / "channels")
    weight = AutoModel.from_pretrained(tmp_path / "channels", dtype=DTYPE).encoder.pooler.dense.weight
    assert weight.forms.any_weight().is_grouped


def test_a_tied_decoder_is_quantized_from_the_table(tmp_path):
    model = AutoModelForMaskedLM.from_config(CONFIG, dtype=DTYPE)
    table = model.encoder.embeddings.words.table
    values, _ = kernels.quantize_weight(table.array(), per_group=True)
    np.testing.assert_array_equal(table.weight(Pass.begin()).integers(), values)
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    np.testing.assert_array_equal(again(IDS).logits, model(IDS).logits)


def test_what_it_refuses(tmp_path):
    model, message = AutoModelForMaskedLM.from_config(CONFIG, dtype=DTYPE), f"dtype='{DTYPE}', which on the CPU is only"
    refuses(ValueError, message, value_and_grad(model), IDS, labels=IDS)
    AutoModel.from_config(CONFIG, dtype=DTYPE).save_pretrained(tmp_path)
    name = "encoder.layer.0.intermediate.dense.weight"
    tensors = {key: array for key, array in open_checkpoint(tmp_path).items() if key != f"{name}_scale"}
    write_tensors(tmp_path / "model.safetensors", tensors)
    refuses(CheckpointError, rf"missing or wrong \(1\): {name}: no scale", AutoModel.from_pretrained, tmp_path)
