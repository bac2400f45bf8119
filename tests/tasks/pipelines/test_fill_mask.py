"""Words for masks."""

import numpy as np
import pytest

from bertcore import pipeline
from tests.tasks.pipelines.folders import save_head
from tests.tasks.pipelines.forms import assert_same_form
from tests.tiny_bert import VOCABULARY

ONE, TWO = "paris is the [MASK] of france .", "[MASK] is the [MASK] of france ."


@pytest.fixture(scope="module")
def fill(masked_folder):
    return pipeline("fill-mask", masked_folder)


def probabilities(fill, text):
    """(masks, vocabulary), by way of the model itself."""
    ids = fill.tokenizer(text)["input_ids"]
    (scores,) = fill.model([ids]).logits.astype(np.float64)
    weights = np.exp(scores[np.array(ids) == fill.tokenizer.mask_token_id])
    return weights / weights.sum(axis=1, keepdims=True)


def assert_words(words, expected, top_k):
    best = np.argsort(-expected)[:top_k]
    assert [word["token"] for word in words] == best.tolist()
    np.testing.assert_allclose([word["score"] for word in words], expected[best], rtol=1e-5)
    for word in words:
        assert word["token_str"].removeprefix("##") == VOCABULARY[word["token"]].removeprefix("##")


def test_one_mask_and_several(fill):
    assert_words(fill(ONE), probabilities(fill, ONE)[0], 5)
    one, (first, second) = fill([ONE, TWO], top_k=3)
    assert_words(one, probabilities(fill, ONE)[0], 3)
    for words, expected in zip((first, second), probabilities(fill, TWO), strict=True):
        assert_words(words, expected, 3)
    assert "[MASK]" in first[0]["sequence"] and first[0]["sequence"].startswith("[CLS]")
    assert "[MASK]" not in one[0]["sequence"] and "[CLS]" not in one[0]["sequence"]


def test_targets(fill):
    expected = probabilities(fill, ONE)[0]
    ids = [VOCABULARY.index(word) for word in ("cat", "capital")]
    found = fill(ONE, targets=["cat", "capital", "cat"])
    assert sorted(word["token"] for word in found) == sorted(ids)
    for word in found:
        assert word["score"] == pytest.approx(expected[word["token"]], rel=1e-5)
    assert [word["token_str"] for word in fill(ONE, targets="cat")] == ["cat"]
    for wrong, error in (("catmat", ValueError), ("🐈", ValueError), ([], ValueError), ([3], TypeError)):
        with pytest.raises(error, match="targets"):
            fill(ONE, targets=wrong)


def test_words_beyond_the_tokenizers_vocabulary_are_none(tmp_path):
    fill = pipeline("fill-mask", save_head(tmp_path, "AutoModelForMaskedLM"))
    assert sorted(word["token"] for word in fill(ONE, top_k=10**6)) == list(range(len(VOCABULARY)))


def test_masks_of_a_long_text(fill):
    text = "the cat sat " * 6 + "[MASK] " + "on an mat " * 9 + "[MASK] of france"
    first, second = fill(text, truncation="chunk", max_length=20, stride=8, top_k=1)
    ids = fill.tokenizer(text, add_special_tokens=False)["input_ids"]
    places = [place for place, number in enumerate(ids) if number == fill.tokenizer.mask_token_id]
    for words, place in ((first, places[0]), (second, places[1])):
        rows = [ids[start : start + 18] for start in range(0, len(ids) - 8, 10) if start <= place < start + 18]
        scores = []
        for row in rows:
            (logits,) = fill.model([[fill.tokenizer.cls_token_id, *row, fill.tokenizer.sep_token_id]]).logits
            weights = np.exp(logits[1 + row.index(fill.tokenizer.mask_token_id)].astype(np.float64))
            scores.append(weights.max() / weights.sum())
        assert any(words[0]["score"] == pytest.approx(score, rel=1e-5) for score in scores)


def test_what_cannot_be_filled(fill, masked_folder, classifier_folder):
    with pytest.raises(ValueError, match=r"inputs\[1\] has no \[MASK\]"):
        fill([ONE, "paris"])
    with pytest.raises(ValueError, match="has no masked language model's head"):
        pipeline("fill-mask", classifier_folder)
    with pytest.raises(ValueError, match="top_k is 0"):
        fill(ONE, top_k=0)


@pytest.mark.parity
def test_answers_are_those_of_transformers(masked_folder):
    import transformers

    theirs = transformers.pipeline("fill-mask", str(masked_folder), device="cpu")
    ours = pipeline("fill-mask", masked_folder)
    for inputs in (ONE, TWO, [ONE, TWO]):
        for options in ({}, {"top_k": 2}, {"targets": ["cat", "capital"]}):
            assert_same_form(ours(inputs, **options), theirs(inputs, **options))


@pytest.mark.parametrize(("wrong", "error"), [(5, TypeError), (iter(["cat"]), TypeError), (["\ud800"], ValueError)])
def test_targets_that_are_no_words(fill, wrong, error):
    with pytest.raises(error, match=r"targets.*(expected a list of strings|not valid Unicode)"):
        fill(ONE, targets=wrong)
