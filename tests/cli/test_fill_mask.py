"""bertcore fill-mask: words for masks."""

import json

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, use_backend
from bertcore.cli import main
from tests.tiny_bert import VOCABULARY, save_tiny_encoder

TEXT = "[MASK] is the [MASK] of France."
IDS = ["[CLS]", "[MASK]", "is", "the", "[MASK]", "of", "france", ".", "[SEP]"]


def fill_mask(*arguments):
    return main(["fill-mask", *map(str, arguments), "--backend", "numpy"])


@pytest.fixture(scope="module")
def probabilities(masked_lm_folder):
    """(masks, vocabulary), by way of the model itself."""
    with use_backend("numpy"):
        logits = AutoModelForMaskedLM.from_pretrained(masked_lm_folder)([[VOCABULARY.index(t) for t in IDS]]).logits[0]
    weights = np.exp(logits[[1, 4]].astype(np.float64))
    return (weights / weights.sum(axis=1, keepdims=True))[:, : len(VOCABULARY)]


def test_json(masked_lm_folder, probabilities, capsys):
    assert fill_mask(masked_lm_folder, TEXT, "--json", "--top-k", 3) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [len(words) for words in answer] == [3, 3]
    for words, expected in zip(answer, probabilities, strict=True):
        best = np.argsort(-expected)[:3]
        assert [word["token"] for word in words] == best.tolist()
        np.testing.assert_allclose([word["score"] for word in words], expected[best], rtol=1e-4)
        for word in words:
            assert word["token_str"] == VOCABULARY[word["token"]].removeprefix("##")


def test_plain(masked_lm_folder, probabilities, capsys):
    assert fill_mask(masked_lm_folder, "the [MASK] sat", "--top-k", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        token, probability = line.split()
        assert token in VOCABULARY and 0 < float(probability) < 1


def test_several_masks_are_told_apart(masked_lm_folder, probabilities, capsys):
    assert fill_mask(masked_lm_folder, TEXT, "--top-k", 1) == 0
    blocks = capsys.readouterr().out.strip().split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["mask 1", "mask 2"]
    for block, expected in zip(blocks, probabilities, strict=True):
        token, probability = block.splitlines()[1].split()
        assert (token, probability) == (VOCABULARY[expected.argmax()], f"{expected.max():.4f}")


def test_more_words_than_the_vocabulary_has(masked_lm_folder, capsys):
    assert fill_mask(masked_lm_folder, "[MASK]", "--json", "--top-k", 10**6) == 0
    words = json.loads(capsys.readouterr().out)
    assert sorted(word["token"] for word in words) == list(range(len(VOCABULARY)))
    assert 0.5 < sum(word["score"] for word in words) < 1  # the model's vocabulary is larger than the tokenizer's


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paris is the capital", "has no [MASK]: put [MASK]"),
        ("", "has no [MASK]: put [MASK]"),
        ("paris is the [mask]", "has no [MASK]: put [MASK]"),
        ("[MASK] " + "a " * 100, "has more than the 40 tokens that are read"),
    ],
)
def test_texts_that_cannot_be_filled(masked_lm_folder, text, message, capsys):
    assert fill_mask(masked_lm_folder, text) == 1
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == "" and captured.err.count("\n") == 1


def test_a_checkpoint_without_the_head(tmp_path, capsys):
    assert fill_mask(save_tiny_encoder(tmp_path), TEXT) == 1
    assert "has no masked language model's head" in capsys.readouterr().err


def test_a_tokenizer_without_a_mask(masked_lm_folder, monkeypatch, capsys):
    from bertcore.tokenization.tokenizer import Tokenizer

    monkeypatch.setattr(Tokenizer, "mask_token", property(lambda self: None, lambda self, value: None), raising=False)
    assert fill_mask(masked_lm_folder, TEXT) == 1
    assert "tokenizer has no mask token" in capsys.readouterr().err
