"""Zero-shot classification, feature extraction and next sentence prediction."""

import json

import numpy as np
import pytest

from bertcore import pipeline
from tests.refusals import refuses
from tests.tasks.pipelines.folders import LONGEST, TAGS, TEXTS, save_head
from tests.tasks.pipelines.forms import assert_same_form
from tests.tiny_bert import WIDTH, save_tiny_bert, write_json

CANDIDATES = ["cat", "paris", "the mat"]
LONG = " ".join(TEXTS) * 4


@pytest.fixture(scope="module")
def judge(classifier_folder):
    return pipeline("zero-shot-classification", classifier_folder)


def test_zero_shot_of_a_long_text(judge):
    found = judge(LONG, CANDIDATES, truncation="chunk", stride=3, multi_label=True, merge="max")
    ids = judge.tokenizer(LONG, add_special_tokens=False)["input_ids"]
    for label, score in zip(found["labels"], found["scores"], strict=True):
        second = judge.tokenizer(f"This example is {label}.", add_special_tokens=False)["input_ids"]
        room, best = LONGEST - 3 - len(second), 0.0
        for start in range(0, len(ids) - 3, room - 3):
            part = ids[start : start + room]
            row = [judge.tokenizer.cls_token_id, *part, judge.tokenizer.sep_token_id, *second, 3]
            types = [0] * (len(part) + 2) + [1] * (len(second) + 1)
            logits = judge.model([row], token_type_ids=[types]).logits[0].astype(np.float64)
            best = max(best, 1 / (1 + np.exp(logits[0] - logits[2])))
        assert score == pytest.approx(best, rel=1e-5)


def test_zero_shot_needs_a_class_called_entailment(tmp_path):
    folder = save_head(tmp_path, "AutoModelForSequenceClassification", {"0": "a", "1": "b"})
    with pytest.raises(ValueError, match="id2label has a, b, expected a class called entailment"):
        pipeline("zero-shot-classification", folder)


def test_features_of_a_long_text(tmp_path):
    extract = pipeline("feature-extraction", save_tiny_bert(tmp_path))
    found = extract(LONG, truncation="chunk", stride=4, return_tensors=True)
    ids = extract.tokenizer(LONG, add_special_tokens=False)["input_ids"]
    assert found.shape == (1, len(ids) + 2, WIDTH)
    cls, sep = extract.tokenizer.cls_token_id, extract.tokenizer.sep_token_id
    first = extract.model([[cls, *ids[:38], sep]]).last_hidden_state[0]
    second = extract.model([[cls, *ids[34:72], sep]]).last_hidden_state[0]
    np.testing.assert_allclose(found[0, : 1 + 36], first[: 1 + 36], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[0, 1 + 36 : 1 + 70], second[1 + 2 : 1 + 36], rtol=1e-5, atol=1e-6)


def test_next_sentence(tmp_path):
    follows = pipeline("next-sentence-prediction", save_head(tmp_path, "AutoModelForNextSentencePrediction"))
    pair = {"text": "the cat sat", "text_pair": "on an mat ."}
    row = follows.tokenizer(*pair.values())
    logits = follows.model([row["input_ids"]], token_type_ids=[row["token_type_ids"]]).logits[0].astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum()
    assert follows(pair) == pytest.approx({"is_next": expected[0], "not_next": expected[1]}, rel=1e-5)
    assert follows([pair, pair]) == [follows(pair)] * 2
    refuses(TypeError, r"inputs is str, expected \{", follows, "the cat")
    refuses(ValueError, "expected 'text' and 'text_pair'", follows, {"text": "the cat"})


@pytest.mark.parity
def test_zero_shot_is_that_of_transformers(classifier_folder, judge):
    import transformers

    theirs = transformers.pipeline("zero-shot-classification", str(classifier_folder), device="cpu")
    for options in ({}, {"multi_label": True}, {"hypothesis_template": "the {} is"}):
        assert_same_form(judge(TEXTS[0], CANDIDATES, **options), theirs(TEXTS[0], CANDIDATES, **options))
        assert_same_form(judge(TEXTS[:2], "cat, mat ,", **options), theirs(TEXTS[:2], "cat, mat ,", **options))


@pytest.mark.parity
def test_features_are_those_of_transformers(tmp_path):
    import transformers

    folder = save_tiny_bert(tmp_path)
    theirs = transformers.pipeline("feature-extraction", str(folder), device="cpu")
    for inputs in (TEXTS[0], TEXTS[:2]):
        assert_same_form(pipeline("feature-extraction", folder)(inputs), theirs(inputs))
    padded = {"tokenize_kwargs": {"padding": "max_length", "max_length": 12, "truncation": True}}
    ours, expected = (extract(TEXTS[0], **padded)[0] for extract in (pipeline("feature-extraction", folder), theirs))
    assert_same_form(ours[:9], expected[:9])
    assert len(ours) == len(expected) == 12 and not np.any(ours[9:])  # where transformers' states are meaningless


def test_batches_and_padding(judge, monkeypatch):
    shapes, model = [], type(judge.model)
    call = model.__call__
    monkeypatch.setattr(
        model, "__call__", lambda *a, **given: shapes.append(given["input_ids"].shape) or call(*a, **given)
    )
    expected = judge(TEXTS[:2], CANDIDATES)
    assert (
        judge(TEXTS[:2], CANDIDATES, batch_size=2, tokenizer_kwargs={"padding": "max_length", "max_length": 30})
        == expected
    )
    assert [shape[0] for shape in shapes] == [6, 2, 2, 2] and {shape[1] for shape in shapes[1:]} == {30}
    for options, error in (
        ({"batch_size": 0}, ValueError),
        ({"padding": "left"}, ValueError),
        ({"padding": 3}, TypeError),
        ({"tokenizer_kwargs": {"pad": 1}}, TypeError),
    ):
        refuses(error, r"batch_size is 0|padding is|unexpected option 'pad'", judge, "a", CANDIDATES, **options)


@pytest.mark.parametrize(("labels", "options", "message"), [
    (None, {}, "candidate_labels is empty"),
    (5, {}, r"candidate_labels is .*, expected a list of strings"),
    (iter(["cat"]), {}, r"candidate_labels is .*, expected a list of strings"),
    (["cat"], {"hypothesis_template": "\ud800{}"}, "hypothesis_template is not valid Unicode"),
    *(
        (["cat"], {"hypothesis_template": template}, r"hypothesis_template is '.*', expected a text with {}")
        for template in ("of", "{} {}", "{x}", "{", "{:d}", "{.x}")
    ),
])  # fmt: skip
def test_bad_classes_and_templates(judge, labels, options, message):
    refuses((TypeError, ValueError), message, judge, TEXTS[0], labels, **options)


def test_a_classifier_of_another_task_is_refused(tmp_path):
    """In BERT's files both have one name and one shape: the answers would mean nothing."""
    folder = save_head(tmp_path, "AutoModelForSequenceClassification", TAGS)
    with pytest.raises(ValueError, match="has no classifier of tokens, so it cannot do token-classification"):
        pipeline("token-classification", folder)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"architectures": None})  # which does not say
    pipeline("token-classification", folder)
