"""A model that was trained, saved as a sentence encoder and loaded again."""

import json

import numpy as np
import pytest

from bertcore import AutoModel, AutoTokenizer, SentenceEncoder
from bertcore.checkpoint import CheckpointError
from bertcore.tasks.sentence_encoder import save_sentence_encoder
from bertcore.tasks.sentence_encoder.modules import POOLING_FLAGS
from bertcore.tasks.similarity import normalized
from bertcore.training import AdamW
from bertcore.training.objectives import MultipleNegativesRankingLoss
from tests.tiny_bert import CONFIG, save_tiny_bert

TEXTS = ["the cat sat", "", "Paris is an capital of france"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(save_tiny_bert(tmp_path_factory.mktemp("bert")))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_trained_model_embeds_as_it_was_trained(tokenizer, tmp_path, pooling, normalize):
    model = AutoModel.from_config(CONFIG)
    objective = MultipleNegativesRankingLoss(pooling=pooling)
    batch = objective.collator(tokenizer)([{"a": "the cat", "b": "sat"}, {"a": "paris", "b": "france"}])
    AdamW(model, lr=1e-2).step(objective.value_and_grad(model, batch)[1])
    save_sentence_encoder(tmp_path, model, tokenizer, pooling=pooling, normalize=normalize, max_seq_length=9)
    encoder = SentenceEncoder(tmp_path)
    assert encoder.max_seq_length == 9
    rows = tokenizer(TEXTS, padding=True, return_tensors="np")
    hidden, mask = model(**rows).last_hidden_state, rows["attention_mask"][:, :, None]
    expected = hidden[:, 0] if pooling == "cls" else hidden.sum(axis=1) / mask.sum(axis=1)
    expected = normalized(expected) if normalize else expected
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, rtol=1e-4, atol=1e-5)


def test_all_that_can_be_said_comes_back(tokenizer, tmp_path):
    prompts = {"query": "query: ", "passage": "passage: "}
    said = {"max_seq_length": 7, "do_lower_case": True, "prompts": prompts, "default_prompt_name": "query"}
    pooling = ("cls", "max", "mean", "mean_sqrt_len_tokens")
    save_sentence_encoder(tmp_path / "new", AutoModel.from_config(CONFIG), tokenizer, pooling=pooling, **said)
    encoder = SentenceEncoder(tmp_path / "new")
    settings = encoder.settings
    assert (settings.max_seq_length, settings.do_lower_case, settings.pooling) == (7, True, pooling)
    assert (encoder.prompts, encoder.default_prompt_name) == ({"document": "", **prompts}, "query")
    assert not settings.normalize
    config = json.loads((tmp_path / "new" / "1_Pooling" / "config.json").read_text())
    assert config["word_embedding_dimension"] == CONFIG["hidden_size"]
    assert set(POOLING_FLAGS) < set(config)


@pytest.mark.parametrize("options, message", [
    ({"pooling": "last"}, "pooling is 'last', expected one or several of cls"),
    ({"pooling": []}, "pooling is"),
    ({"default_prompt_name": "query"}, "default_prompt_name is 'query', prompts has none"),
])  # fmt: skip
def test_nothing_is_written_for_wrong_arguments(tokenizer, tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        save_sentence_encoder(tmp_path / "new", AutoModel.from_config(CONFIG), tokenizer, **options)
    assert not (tmp_path / "new").exists()


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:2 of 2 texts were cut")
@pytest.mark.parametrize("pooling", ["mean", "cls", ("cls", "max", "mean")])
@pytest.mark.parametrize("normalize", [False, True])
def test_sentence_transformers_reads_it(tokenizer, tmp_path, pooling, normalize):
    peer = pytest.importorskip("sentence_transformers")
    model = AutoModel.from_config(CONFIG, seed=3)
    said = {"max_seq_length": 5, "prompts": {"query": "the "}, "default_prompt_name": "query"}
    save_sentence_encoder(tmp_path, model, tokenizer, pooling=pooling, normalize=normalize, **said)
    theirs = peer.SentenceTransformer(str(tmp_path), device="cpu")
    assert theirs.max_seq_length == 5 and theirs.prompts["query"] == "the "
    ours, texts = SentenceEncoder(tmp_path), [text for text in TEXTS if text]
    np.testing.assert_allclose(ours.encode(texts), theirs.encode(texts), rtol=1e-4, atol=1e-5)


def test_an_encoder_whose_modules_were_replaced_is_not_saved(tokenizer, tmp_path):
    model, folder = AutoModel.from_config(CONFIG), tmp_path / "own"
    save_sentence_encoder(folder, model, tokenizer, pooling="mean")
    encoder = SentenceEncoder(folder)
    for target in (folder, folder, tmp_path / "copy"):
        encoder.save_pretrained(target)
    save_sentence_encoder(folder, model, tokenizer, pooling="cls")
    with pytest.raises(CheckpointError, match=r"own.modules\.json has changed since it was read"):
        encoder.save_pretrained(tmp_path / "mixed")
    assert SentenceEncoder(tmp_path / "copy").settings.pooling == ("mean",) and not (tmp_path / "mixed").exists()
