"""sentence-transformers with our module in the place of its own."""

import numpy as np
import pytest

from tests.lazy import lazy
from tests.plugins.texts import TEXTS, close

pytestmark = pytest.mark.parity
sentence_transformers = lazy("sentence_transformers")
plugin = lazy("bertcore.plugins.sentence_transformers")


@pytest.fixture(scope="module")
def model(folder):
    module = plugin.EncoderModule(folder)
    return sentence_transformers.SentenceTransformer(modules=[module], prompts={"query": "paris is "}, device="cpu")


def test_embeddings(model, encoder, folder):
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    close(model.encode(TEXTS), encoder.encode(TEXTS))
    close(model.encode(TEXTS), theirs.encode(TEXTS))
    close(model.encode_query(TEXTS), theirs.encode_query(TEXTS))
    close(
        model.encode(TEXTS, normalize_embeddings=True, batch_size=2), encoder.encode(TEXTS, normalize_embeddings=True)
    )
    assert model.get_embedding_dimension() == encoder.embedding_dimension == 39
    assert model.max_seq_length == encoder.max_seq_length


PAIRS = [["the cat", "a mat"], ["paris is", "the capital of france ."]]
SHORT = {"text": {"max_length": 3, "truncation": True}}


def test_inputs_and_outputs_are_theirs(model, folder):
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    for texts in (TEXTS, PAIRS):
        close(model.encode(texts), theirs.encode(texts))
        for ours, expected in zip(
            *(m.encode(texts, output_value="token_embeddings") for m in (model, theirs)), strict=True
        ):
            close(ours, expected)
    close(model.encode(PAIRS, prompt="paris is "), theirs.encode(PAIRS, prompt="paris is "))
    cut = [each.encode(TEXTS, processing_kwargs=SHORT) for each in (model, theirs)]
    close(*cut)
    assert np.abs(cut[0] - model.encode(TEXTS)).max() > 0.01
    assert model.tokenizer is model[0].encoder.tokenizer
    published = model.max_seq_length
    for each in (model, theirs):
        each.max_seq_length = 4
    close(model.encode(TEXTS), theirs.encode(TEXTS))
    model.max_seq_length = published


@pytest.mark.parametrize(("inputs", "options", "error", "message"), [
    ([None], {}, TypeError, r"inputs\[0\] is NoneType, expected a string or a pair of strings"),
    ([["a", "b"], "c"], {}, TypeError, r"inputs\[\d\] has . texts, expected one in each, or two in each"),
    ([["a", "b", "c"]], {}, TypeError, r"inputs\[0\] has 3 texts"),
    (["a"], {"processing_kwargs": {"image": {}}}, ValueError, "a key of processing_kwargs is 'image', expected"),
    (["a"], {"processing_kwargs": {"text": {"longest": 3}}}, TypeError, "longest"),
])  # fmt: skip
def test_wrong_inputs(model, inputs, options, error, message):
    with pytest.raises(error, match=message):
        model.encode(inputs, **options)


def test_a_folder_that_is_loaded_again(model, tmp_path):
    model.save_pretrained(str(tmp_path / "saved"))
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=True)
    np.testing.assert_array_equal(loaded.encode(TEXTS), model.encode(TEXTS))
    assert isinstance(loaded[0], plugin.EncoderModule)
