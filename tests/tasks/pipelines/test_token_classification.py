"""Classes of tokens, and entities."""

import numpy as np
import pytest

from bertcore import pipeline
from bertcore.tasks.pipelines.spans import STRATEGIES
from tests.refusals import refuses
from tests.tasks.pipelines.folders import TEXTS
from tests.tasks.pipelines.forms import assert_same_form

ALL = {"ignore_labels": []}
LONG = " ".join(TEXTS) + " Upper catmat zq " * 20


@pytest.fixture(scope="module")
def tag(tagger_folder):
    return pipeline("ner", tagger_folder)


def probabilities(tag, ids):
    (scores,) = tag.model([ids]).logits.astype(np.float64)
    weights = np.exp(scores)
    return weights / weights.sum(axis=1, keepdims=True)


def test_offsets_are_characters_of_the_text(tag):
    text = "Ünknown  catmat,\tPARIS 🐈 sat"
    for strategy in STRATEGIES:
        for each in tag(text, aggregation_strategy=strategy, **ALL):
            piece = text[each["start"] : each["end"]].lower()
            if strategy == "none" and each["word"] != text[each["start"] : each["end"]]:
                assert each["word"].removeprefix("##") == piece.replace("ü", "u")
            assert piece.strip() == piece and piece


@pytest.mark.parametrize("stride", [0, 1, 6, 11, None])
def test_every_token_of_a_long_text_once(tag, stride):
    """Each is tagged in the window where it is further from the edge; with windows by hand."""
    encoded = tag.tokenizer(LONG, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    room = 20 - 2
    step = room - (room // 4 if stride is None else stride)
    starts = list(range(0, len(ids) - (room - step), step))
    found = tag(LONG, truncation="chunk", stride=stride, max_length=20, **ALL)
    if stride is not None:
        assert tag(LONG, stride=stride, max_length=20, **ALL) == found
    assert [(each["start"], each["end"]) for each in found] == offsets
    assert [each["index"] for each in found] == list(range(1, len(ids) + 1))
    for number, each in enumerate(found):
        rows = [start for start in starts if start <= number < start + room]
        edge = [min(number - start, start + room - 1 - number) for start in rows]
        start = rows[int(np.argmax(edge))]  # the first one of equals
        ids_of_row = [tag.tokenizer.cls_token_id, *ids[start : start + room], tag.tokenizer.sep_token_id]
        expected = probabilities(tag, ids_of_row)[1 + number - start]
        assert each["score"] == pytest.approx(expected.max(), rel=1e-5), (number, rows, edge)


def test_words(tag):
    words = ["the", "cat's", "catmat,"]
    assert tag(words, is_split_into_words=True, **ALL) == [tag("the cat's catmat,", **ALL)]
    assert list(tag(iter([words]), is_split_into_words=True)) == tag([words], is_split_into_words=True)
    for wrong in ("the cat", ["the", 3], 3):
        refuses(TypeError, r"inputs.* is ", tag, wrong, is_split_into_words=True)


def test_bad_options(tag):
    with pytest.raises(ValueError, match="aggregation_strategy is 'words', expected one of 'none', 'simple'"):
        tag("a", aggregation_strategy="words")
    for wrong in ("O", None, 5, [["O"]]):
        refuses(TypeError, "ignore_labels", tag, "a", ignore_labels=wrong)


@pytest.mark.parity
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_answers_are_those_of_transformers(tagger_folder, strategy):
    import transformers

    options = {"aggregation_strategy": strategy}
    theirs = transformers.pipeline("ner", str(tagger_folder), device="cpu", **options)
    ours = pipeline("ner", tagger_folder, **options)
    texts = [*TEXTS[:4], TEXTS[5], "Upper, catmat.paris zq the the capital"]
    words = [text.split() for text in texts[:3]]
    for given in (words, words[1]):
        split = {"is_split_into_words": True}
        assert_same_form(ours(given, **split), plain(theirs(given, **split)))
    for more in ({}, ALL):
        assert_same_form(ours(texts, **more), plain(theirs(texts, **more)))
        assert_same_form(ours(texts[0], **more), plain(theirs(texts[0], **more)))


def plain(value):
    """NumPy's numbers as Python's."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value
