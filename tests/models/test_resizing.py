"""New sizes of the vocabulary: the model's tables, the tokenizer's tokens, and both beside transformers."""

import numpy as np
import pytest

import bertcore
from bertcore import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer
from tests.refusals import refuses
from tests.tiny_bert import save_tiny_bert
from tests.tiny_families import runnable, tiny_config

CONFIG = {
    "model_type": "bert", "vocab_size": 39, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 20,
}  # fmt: skip
IDS = [[2, 5, 38, 3]]


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForMaskedLM, bertcore.AutoModelForSequenceClassification])
@pytest.mark.parametrize("count", [30, 39, 41])
def test_old_rows_stay(kind, count, tmp_path):
    model = kind.from_config(CONFIG)
    before, old = model.state_dict(), model([[2, 5, 3]])
    model.train(seed=3)
    table = model.resize_token_embeddings(count)
    assert model.training and model.config.vocab_size == count and table.weight.shape == (count, 16)
    for name, value in model.named_parameters():
        rows = min(len(value), len(before[name]))
        np.testing.assert_array_equal(value[:rows], before[name][:rows])
        for row in value[rows:]:
            np.testing.assert_allclose(row, before[name].mean(axis=0), rtol=1e-5, atol=1e-7)
    for one, other in zip(model.eval()([[2, 5, 3]]).values(), old.values(), strict=True):
        width = min(one.shape[-1], other.shape[-1])
        np.testing.assert_array_equal(one[..., :width], other[..., :width])
    model.save_pretrained(tmp_path)
    assert kind.from_pretrained(tmp_path).get_input_embeddings().weight.shape == (count, 16)


def test_sizes():
    model = AutoModel.from_config(CONFIG)
    assert model.resize_token_embeddings(pad_to_multiple_of=8).weight.shape[0] == 40
    random = model.resize_token_embeddings(50, mean_resizing=False).weight[40:]
    assert 0 < random.std() < 0.1 and len(np.unique(random)) == random.size
    refuses(ValueError, "new_num_tokens is 0, expected a positive integer", model.resize_token_embeddings, 0)
    low = AutoModel.from_config(CONFIG, dtype="bfloat16")
    refuses(ValueError, "dtype is bfloat16, expected float32", low.resize_token_embeddings, 50)


@pytest.mark.parametrize("name", runnable())
def test_families(name):
    kind = AutoModel if name == "sentence-t5-base" else AutoModelForPreTraining  # an encoder alone
    model = kind.from_config(tiny_config(name))
    if name.startswith("transfo-xl"):
        refuses(ValueError, "expected a family with one table of words", model.resize_token_embeddings, 100)
        return
    old = model([[6, 7, 96]])
    model.resize_token_embeddings(100)
    scores = model([[6, 7, 96]])
    for key, value in old.items():
        if isinstance(value, tuple):  # XLNet's memories
            continue
        np.testing.assert_allclose(scores[key][..., : value.shape[-1]], value, rtol=1e-5, atol=1e-6)
        assert scores[key].shape[-1] in (value.shape[-1], 100)


def test_configs_have_attributes():
    config = AutoModel.from_config(CONFIG).config
    assert config.hidden_size == config["hidden_size"] == 16
    config.note = "kept"
    assert config["note"] == "kept" and dict(config) | {} == dict(config)
    refuses(AttributeError, "the config has no hidden; did you mean hidden_size?", getattr, config, "hidden")
    refuses(AttributeError, "the config has no x; it has model_type, vocab_size", getattr, config, "x")
    assert (config.num_labels, config.id2label) == (2, {0: "LABEL_0", 1: "LABEL_1"})
    config.id2label = {"0": "no", "1": "perhaps", "2": "yes"}
    assert config.id2label[2] == "yes" and config.label2id == {"no": 0, "perhaps": 1, "yes": 2}
    with pytest.raises(TypeError, match="assignment"):
        config.id2label[0] = "lost"  # in a copy
    config.to_dict()["id2label"]["0"] = "other"
    assert config.id2label[0] == "no" and type(config.to_dict()) is dict


def test_a_config_is_read_alone(tmp_path):
    """It is that of the model; a preset's keys have BERT's names, too."""
    model = AutoModel.from_config(CONFIG)
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is type(model.config) and config == AutoModel.from_pretrained(tmp_path).config
    assert AutoModel.from_config(config).base_model_prefix == "bert"
    published = AutoConfig.from_pretrained("distilbert-base-uncased")
    assert (published.hidden_size, published.num_hidden_layers, published.num_attention_heads) == (768, 6, 12)


def test_added_tokens(tmp_path):
    save_tiny_bert(tmp_path / "old")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "old")
    count = len(tokenizer)
    text, cut = "the cat <new> sat on <e1>paris</e1>", {"truncation": True, "max_length": 9}
    tokenizer(text, **cut)  # a copy with this truncation is kept
    assert tokenizer.add_tokens(["<new>", "cat"]) == 1 and len(tokenizer) == count + 1
    assert tokenizer.add_special_tokens({"extra_special_tokens": ["<e1>", "</e1>"], "bos_token": "<bos>"}) == 3
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == ("<bos>", count + 3)
    ids = tokenizer(text)["input_ids"]
    assert count in ids and count + 1 in ids and tokenizer(text, **cut)["input_ids"][:8] == ids[:8]
    assert "<e1>" not in tokenizer.decode(ids, skip_special_tokens=True) and "<new>" in tokenizer.decode(ids)
    tokenizer.save_pretrained(tmp_path / "new")
    again = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert again(text)["input_ids"] == ids
    assert set(again.all_special_tokens) == set(tokenizer.all_special_tokens)
    for tokens, error, message in (
        ([3], TypeError, r"new_tokens\[0\] is 3"),
        (["a", ""], ValueError, r"new_tokens\[1\] is empty"),
    ):
        refuses(error, message, tokenizer.add_tokens, tokens)
    assert tokenizer.add_tokens(token for token in ["<a>", "<b>"]) == 2
    for given, error, message in (
        ({"pad": "[P]"}, ValueError, "a name in special_tokens_dict is 'pad'"),
        (["[P]"], TypeError, "special_tokens_dict is list, expected a mapping"),
        ({"extra_special_tokens": None}, TypeError, "extra_special_tokens is NoneType, expected a list of strings"),
    ):
        refuses(error, message, tokenizer.add_special_tokens, given)


@pytest.mark.parity
def test_added_tokens_of_transformers(tmp_path):
    from transformers import AutoTokenizer as Peer

    save_tiny_bert(tmp_path)
    ours, peer = AutoTokenizer.from_pretrained(tmp_path), Peer.from_pretrained(tmp_path)
    texts = ["the cat <new> sat", "<e1>paris</e1> is", "cat"]
    for tokenizer in (ours, peer):
        tokenizer.add_tokens(["<new>", "cat"])
        tokenizer.add_special_tokens({"additional_special_tokens": ["<e1>", "</e1>"]})
    assert len(ours) == len(peer) and ours(texts)["input_ids"] == peer(texts)["input_ids"]
    ours.save_pretrained(tmp_path / "saved")
    assert Peer.from_pretrained(tmp_path / "saved")(texts)["input_ids"] == ours(texts)["input_ids"]
