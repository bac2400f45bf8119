"""Modules after the pooling, static embeddings, and the options of `encode`, by their definitions."""

import gc
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bertcore import SentenceEncoder
from bertcore.checkpoint import CheckpointError
from bertcore.tasks.quantization import quantize_embeddings
from tests.refusals import refuses
from tests.tasks.sentence_encoder.comparison import TEXTS, assert_same
from tests.tiny_bert import VOCABULARY, WIDTH, save_tiny_encoder, write_json, write_modules

RNG = np.random.default_rng(0)
WEIGHTS = {
    "linear.weight": RNG.normal(size=(7, WIDTH)).astype(np.float32),
    "linear.bias": RNG.normal(size=7).astype(np.float32),
    "residual.weight": RNG.normal(size=(7, WIDTH)).astype(np.float32),
}
NORM = {"norm.weight": RNG.normal(size=7).astype(np.float32), "norm.bias": RNG.normal(size=7).astype(np.float32)}
DENSE = {"in_features": WIDTH, "out_features": 7, "use_residual": True}


@pytest.fixture
def with_modules(tmp_path):
    """A function: the folder of an encoder with a Dense of this config, a LayerNorm and a Normalize."""

    def save(dense=DENSE, weights=WEIGHTS):
        folder = save_tiny_encoder(tmp_path)
        kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3_LayerNorm": "LayerNorm"}
        kinds["4_Normalize"] = "Normalize"
        write_modules(folder, {path: f"sentence_transformers.models.{kind}" for path, kind in kinds.items()})
        write_json(folder / "2_Dense" / "config.json", dense)
        save_file(weights, folder / "2_Dense" / "model.safetensors")
        write_json(folder / "3_LayerNorm" / "config.json", {"dimension": 7})
        save_file(NORM, folder / "3_LayerNorm" / "model.safetensors")
        return folder

    return save


@pytest.mark.parametrize(("change", "message"), [
    ({"in_features": 5}, "in_features is 5, expected 39, the width before it"),
    ({"out_features": None}, "out_features is None, expected a positive integer"),
    ({"out_features": 6}, "linear.weight has shape (7, 39), expected (6, 39)"),
    ({"activation_function": "my.own"}, "activation_function is 'my.own', expected one of PyTorch's Identity"),
    ({"activation_function": "torch.nn.GLU"}, "activation_function is 'torch.nn.GLU', expected one of"),
    ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings', expected"),
    ({"bias": "no"}, "bias is 'no', expected true or false"),
])  # fmt: skip
def test_modules_that_are_refused(with_modules, change, message):
    refuses(CheckpointError, re.escape(message), SentenceEncoder, with_modules({**DENSE, **change}))


def test_weights_that_are_missing(with_modules):
    missing = {name: array for name, array in WEIGHTS.items() if name != "linear.bias"}
    with pytest.raises(CheckpointError, match=r"linear\.bias is missing, expected \(7,\)"):
        SentenceEncoder(with_modules(weights=missing))


@pytest.fixture
def static_folder(tmp_path, encoder):
    """A table of random vectors, and a tokenizer."""
    encoder.tokenizer.save_pretrained(tmp_path / "0_StaticEmbedding")
    write_modules(tmp_path, {"0_StaticEmbedding": "sentence_transformers.models.StaticEmbedding"})
    return tmp_path


@pytest.mark.parametrize("is_model2vec", [False, True])
def test_static_embeddings(static_folder, encoder, is_model2vec):
    table = RNG.normal(size=(len(VOCABULARY), 6)).astype(np.float32)
    tensors, rows = {"embedding.weight": table}, table
    if is_model2vec:
        mapping, weights = RNG.integers(0, 9, len(VOCABULARY)), RNG.random(len(VOCABULARY))
        tensors = {"embeddings": table[:9], "mapping": mapping, "weights": weights}
        rows = table[mapping] * weights[:, None]
    save_file(tensors, static_folder / "0_StaticEmbedding" / "model.safetensors")
    static = SentenceEncoder(static_folder)
    texts = [*TEXTS, "the cat " * 300]
    ids = encoder.tokenizer(texts, add_special_tokens=False)["input_ids"]
    expected = [rows[row].mean(axis=0) if row else np.zeros(6) for row in ids]
    np.testing.assert_allclose(static.encode(texts), expected, atol=1e-5)
    states = static.encode(texts, output_value="token_embeddings")
    assert static.embedding_dimension == 6 and [len(row) for row in ids] == list(map(len, states))
    with pytest.raises(ValueError, match="dtype is 'int8', expected float32: these are static embeddings"):
        SentenceEncoder(static_folder, dtype="int8")


def test_a_table_that_is_none(static_folder):
    save_file({"weight": NORM["norm.bias"]}, static_folder / "0_StaticEmbedding" / "model.safetensors")
    refuses(CheckpointError, r"has neither embedding\.weight nor embeddings", SentenceEncoder, static_folder)


@pytest.mark.parametrize(("tensors", "message"), [
    ({"embeddings": np.ones(6)}, r"the table has shape \(6,\), expected \(vocabulary, dim\)"),
    ({"mapping": np.array([0, 9])}, "mapping has other values, expected the number of one of the 9 embeddings"),
    ({"mapping": np.array([0, -1])}, "mapping has other values"),
    ({"mapping": np.array([0, 2**64 - 1], np.uint64)}, "mapping has other values"),
    ({"mapping": np.array([0.5])}, "mapping has other values"),
    ({"mapping": np.zeros((2, 2), np.int64)}, "mapping has other values"),
    ({"weights": np.ones(8)}, r"weights has shape \(8,\), expected \(9,\), one for each token"),
    ({"weights": np.ones(())}, r"weights has shape \(\), expected \(9,\)"),
    ({"weights": np.where(np.arange(9) == 4, np.nan, 1)}, "the vector of token 4 holds inf or NaN"),
    ({"mapping": np.zeros(3, np.int64), "weights": np.ones(9)}, r"expected \(3,\), one for each token"),
])  # fmt: skip
def test_tables_of_model2vec_that_do_not_fit(static_folder, tensors, message):
    save_file({"embeddings": np.ones((9, 6)), **tensors}, static_folder / "0_StaticEmbedding" / "model.safetensors")
    refuses(CheckpointError, message, SentenceEncoder, static_folder)


def test_rows_that_tokens_share_are_kept_once(static_folder):
    """A file of a few bytes must not fill the memory: 10^7 tokens that share a row of 10^6 numbers."""
    tensors = {"embeddings": np.ones((1, 10**6), np.int8), "mapping": np.zeros(10**7, np.uint8)}
    save_file(tensors, static_folder / "0_StaticEmbedding" / "model.safetensors")
    static = SentenceEncoder(static_folder)
    assert static.model.table.size == 10**6 and (static.encode("the cat") == 1).all()


def test_dimensions(folder, encoder):
    whole, short = encoder.encode(TEXTS), SentenceEncoder(folder, truncate_dim=5)
    assert short.embedding_dimension == 5
    assert_same(short.encode(TEXTS), whole[:, :5])
    assert_same(short.encode(TEXTS, truncate_dim=8), whole[:, :8])
    scaled = encoder.encode(TEXTS, truncate_dim=5, normalize_embeddings=True)
    assert_same(scaled, whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True))
    assert encoder.encode([], truncate_dim=5).shape == (0, 5) and encoder.encode("a", truncate_dim=99).shape == (WIDTH,)


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_precisions(encoder, precision):
    whole = encoder.encode(TEXTS)
    ranges = np.stack([whole.min(axis=0), whole.max(axis=0)])
    expected = quantize_embeddings(whole, precision, ranges=ranges)
    with pytest.warns(UserWarning, match="the ranges come from") if "int8" in precision else nullcontext():
        found = encoder.encode(TEXTS, precision=precision)
    assert found.dtype == expected.dtype and (found == expected).mean() > 0.95
    rows = list(encoder.encode_stream(TEXTS, precision=precision, ranges=ranges, batch_tokens=8))
    assert rows[0].shape == expected[0].shape and (np.stack(rows) == expected).mean() > 0.9
    if precision.endswith("int8"):
        refuses(ValueError, "for which a stream needs ranges", encoder.encode_stream, TEXTS, precision=precision)
        refuses(ValueError, "expected several rows of", encoder.encode, "a", precision=precision)


class _Copied:
    """A module of sentence-transformers, as far as its `save` goes: a copy of a folder."""

    def __init__(self, folder):
        self.folder = folder

    def save(self, folder):
        for file in filter(Path.is_file, self.folder.iterdir()):
            shutil.copy(file, folder)


class Transformer(_Copied):
    pass


class Pooling(_Copied):
    pass


def test_modules_in_place_of_a_folder(tmp_path):
    folder = save_tiny_encoder(tmp_path / "encoder")
    modules = [Transformer(folder), Pooling(folder / "1_Pooling")]
    encoder, expected = SentenceEncoder(modules=modules), SentenceEncoder(folder).encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)
    assert [module.kind for module in encoder.modules] == ["Transformer", "Pooling"]
    encoder.save_pretrained(tmp_path / "saved")
    where = encoder.folder
    del encoder
    gc.collect()
    assert not where.exists()
    np.testing.assert_array_equal(SentenceEncoder(tmp_path / "saved").encode(TEXTS), expected)
    assert SentenceEncoder(folder, model_kwargs={"torch_dtype": "bfloat16"}).dtype == "bfloat16"
    for options, message in (
        ({"modules": [3]}, r"modules\[0\] is int, expected a module of sentence-transformers"),
        ({"modules": 3}, "modules is int, expected a list of modules"),
        ({"modules": modules, "model_name_or_path": folder}, "model_name_or_path and modules are both given"),
        ({"model_name_or_path": folder, "model_kwargs": {"device_map": "auto"}}, "model_kwargs has 'device_map', exp"),
        ({"model_name_or_path": folder, "model_kwargs": {"dtype": "int8"}, "dtype": "int8"}, "are both given"),
    ):
        refuses(TypeError, message, SentenceEncoder, **options)
