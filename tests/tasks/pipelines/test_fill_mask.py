"""Words for masks."""

import numpy as np
import pytest

from bertcore import pipeline
from tests.refusals import refuses
from tests.tasks.pipelines.folders import save_head
from tests.tasks.pipelines.forms import assert_same_form
from tests.tiny_bert import VOCABULARY

ONE, TWO = "paris is the [MASK] of france .", "[MASK] is the [MASK] of france ."


@pytest.fixture(scope="module")
def fill(masked_folder):
    return pipeline("fill-mask", masked_folder)


def test_targets(fill):
    assert fill(ONE, targets=["cat", "capital", "cat"]) == fill(ONE, targets=["cat", "capital"])
    assert [word["token_str"] for word in fill(ONE, targets="cat")] == ["cat"]
    for wrong, message in (
        *(("catmat", "one token"), ("🐈", "one token"), ([], "is empty"), (["\ud800"], "not valid Unicode")),
        *(([3], "expected str"), (5, "expected a list of strings"), (iter(["cat"]), "expected a list of strings")),
    ):
        refuses((TypeError, ValueError), f"targets.*{message}", fill, ONE, targets=wrong)


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
    refuses(ValueError, r"inputs\[1\] has no \[MASK\]", fill, [ONE, "paris"])
    with pytest.raises(ValueError, match=r"inputs has \[MASK\] beyond the 20 tokens that are read: truncation='chunk'"):
        fill("paris " * 30 + "[MASK]", max_length=20, truncation=True)
    refuses(ValueError, "has no masked language model's head", pipeline, "fill-mask", classifier_folder)
    refuses(ValueError, "top_k is 0", fill, ONE, top_k=0)


@pytest.mark.parity
def test_answers_are_those_of_transformers(masked_folder):
    import transformers

    theirs = transformers.pipeline("fill-mask", str(masked_folder), device="cpu")
    ours = pipeline("fill-mask", masked_folder)
    for inputs in (ONE, TWO, [ONE], [TWO], [ONE, TWO]):
        for options in ({}, {"top_k": 2}, {"targets": ["cat", "capital"]}):
            assert_same_form(ours(inputs, **options), theirs(inputs, **options))
    cut = {"tokenizer_kwargs": {"truncation": True, "max_length": 9, "padding": "max_length"}}
    assert_same_form(ours([ONE + " the cat"] * 3, **cut), theirs([ONE + " the cat"] * 3, **cut, batch_size=2))
