"""Classes of texts, and what all pipelines do with their inputs."""

import itertools
import warnings

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline
from bertcore.tasks.calibration import IsotonicCalibration, TemperatureScaling
from bertcore.tasks.encoder_pool import backend_of
from bertcore.tasks.pipelines import base
from bertcore.tasks.texts import TextsCutWarning
from tests.refusals import refuses
from tests.tasks.pipelines.folders import LABELS, LONGEST, TEXTS, save_head
from tests.tasks.pipelines.forms import assert_same_form

NAMES = list(LABELS.values())
LONG = " ".join(["the cat sat on paris"] * 40)  # 200 words


@pytest.fixture(scope="module")
def classify(classifier_folder):
    return pipeline("text-classification", classifier_folder)


def probabilities(classify, text, pair=None):
    """By way of the model itself, a text at a time."""
    encoded = classify.tokenizer(text, pair, truncation=True, max_length=LONGEST)
    (scores,) = classify.model([encoded["input_ids"]], token_type_ids=[encoded["token_type_ids"]]).logits
    weights = np.exp(scores.astype(np.float64))
    return weights / weights.sum()


def assert_answer(answers, expected):
    assert [answer["label"] for answer in answers] == [NAMES[i] for i in np.argsort(-expected)]
    np.testing.assert_allclose([answer["score"] for answer in answers], np.sort(expected)[::-1], rtol=1e-5)


def test_calibrations(classify):
    scaling, isotonic = TemperatureScaling(), IsotonicCalibration()
    scaling.temperature = 3.0
    rng, expected = np.random.default_rng(0), probabilities(classify, "the cat")
    isotonic.fit(rng.dirichlet(np.ones(3), 50), rng.integers(0, 3, 50))
    cooled = expected ** (1 / 3) / (expected ** (1 / 3)).sum()
    for calibration, right in ((scaling, cooled), (isotonic, isotonic.transform(expected[None])[0])):
        found = {each["label"]: each["score"] for each in classify("the cat", top_k=None, calibration=calibration)}
        np.testing.assert_allclose([found[name] for name in NAMES], right, rtol=1e-4)


@pytest.mark.parametrize(("config", "labels", "name"), [
    ({"problem_type": "regression"}, {"0": "x"}, "none"),
    ({"problem_type": "multi_label_classification"}, LABELS, "sigmoid"),
    ({}, {"0": "x"}, "sigmoid"),
    ({"problem_type": "single_label_classification"}, LABELS, "softmax"),
])  # fmt: skip
def test_the_function_that_the_config_asks_for(tmp_path, config, labels, name):
    classify = pipeline(
        "sentiment-analysis", save_head(tmp_path, "AutoModelForSequenceClassification", labels, **config)
    )
    assert classify("the cat", top_k=None) == classify("the cat", top_k=None, function_to_apply=name.upper())
    others = {"none", "sigmoid", "softmax"} - {name}
    assert all(classify("the cat") != classify("the cat", function_to_apply=other) for other in others)


def test_a_generator_is_read_as_it_is_answered(classify):
    read = itertools.count()
    texts = (f"{'the cat ' * (next(read) % 3)}" for _ in range(10**9))
    answers = classify(texts, batch_tokens=64)
    first = list(itertools.islice(answers, 300))
    assert next(read) < 1500
    assert first == classify([f"{'the cat ' * (n % 3)}" for n in range(300)])
    answers.close()


def test_answers_do_not_change_with_the_batch(classify):
    alone = [classify(text, top_k=None) for text in TEXTS]
    assert classify(TEXTS, top_k=None) == alone
    assert classify(TEXTS, top_k=None, batch_tokens=1) == alone
    assert classify([]) == [] and len(classify(TEXTS[0], top_k=99)) == 3


def test_texts_that_are_cut(classifier_folder):
    classify = pipeline("text-classification", classifier_folder)
    with pytest.warns(TextsCutWarning, match=f"2 of 3 texts were cut to {LONGEST} tokens") as caught:
        answers = classify([LONG, "the cat", LONG], top_k=None)
    assert caught[0].filename == __file__
    assert_answer(answers[0], probabilities(classify, LONG))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classify(LONG, top_k=None) == answers[0]  # warned already
        fresh = pipeline("text-classification", classifier_folder, truncation=True)
        assert fresh(LONG, top_k=None) == answers[0]
    with pytest.raises(ValueError, match=rf"inputs\[1\] has more than the {LONGEST} tokens"):
        classify(["the cat", LONG], truncation="error")
    assert classify(["the cat"], truncation="error") == classify(["the cat"])


def windows_by_hand(tokenizer, stride):
    """Return the token ids of LONG's windows by the definition: LONGEST - 2 tokens; the next one repeats `stride`."""
    ids = tokenizer(LONG, add_special_tokens=False)["input_ids"]
    room = LONGEST - 2
    starts = range(0, max(1, len(ids) - stride), room - stride)
    return [[tokenizer.cls_token_id, *ids[start : start + room], tokenizer.sep_token_id] for start in starts]


@pytest.mark.parametrize("stride", [0, 1, 13, 37])
@pytest.mark.parametrize("merge", ["mean", "max"])
def test_windows_of_a_long_text(classify, stride, merge):
    rows = windows_by_hand(classify.tokenizer, stride)
    assert len(rows) > 4
    scores = np.concatenate([classify.model([row]).logits for row in rows]).astype(np.float64)
    each = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    lengths = [len(row) for row in rows]
    expected = each.max(axis=0) if merge == "max" else np.average(each, axis=0, weights=lengths)
    answers = classify(LONG, top_k=None, truncation="chunk", stride=stride, merge=merge)
    assert_answer(answers, expected)
    assert classify(["the cat", LONG], top_k=None, truncation="chunk", stride=stride, merge=merge)[1] == answers


def test_a_pair_is_read_in_windows_of_its_longer_text(classify):
    answers = classify({"text": "the cat", "text_pair": LONG}, top_k=None, truncation="chunk", max_length=20, stride=5)
    ids = classify.tokenizer(LONG, add_special_tokens=False)["input_ids"]
    scores, lengths = [], []
    first = classify.tokenizer("the cat")["input_ids"]
    room = 20 - len(first) - 1
    for start in range(0, len(ids) - 5, room - 5):
        row = [*first, *ids[start : start + room], classify.tokenizer.sep_token_id]
        types = [0] * len(first) + [1] * (len(row) - len(first))
        scores.append(classify.model([row], token_type_ids=[types]).logits[0])
        lengths.append(len(row))
    each = np.exp(np.array(scores, np.float64))
    assert_answer(answers, np.average(each / each.sum(axis=1, keepdims=True), axis=0, weights=lengths))


def test_the_model_and_tokenizer_may_be_given(classifier_folder, classify):
    model = AutoModelForSequenceClassification.from_pretrained(classifier_folder)
    tokenizer = AutoTokenizer.from_pretrained(classifier_folder)
    every = pipeline("text-classification", model, tokenizer, top_k=None)
    assert every(TEXTS) == classify(TEXTS, top_k=None)
    assert every(TEXTS[0]) == [classify(TEXTS[0], top_k=None)] == every(TEXTS[:1])  # as transformers nests them
    assert every(TEXTS[0], top_k=2) == classify(TEXTS[0], top_k=2)


class Table(list):
    """Like a data frame: a loop over it gives the names of its columns, which are strings."""

    columns = ("text",)


@pytest.mark.parametrize(("inputs", "options", "error", "message"), [
    (3, {}, TypeError, "inputs is int, expected a string or {"),
    (b"x", {}, TypeError, "inputs is bytes"),
    (np.array("the cat"), {}, TypeError, "inputs is ndarray, expected a string"),
    (Table(["text"]), {}, TypeError, "inputs is Table, expected a string"),
    (["a", 3], {}, TypeError, r"inputs\[1\] is int, expected a string"),
    ([b"a"], {}, TypeError, "decode it first"),
    ("a\ud800", {}, ValueError, "inputs is not valid Unicode: a lone surrogate at 1"),
    ({"text": "a", "pair": "b"}, {}, ValueError, "inputs has the keys 'text', 'pair'"),
    ({"text": "a", "text_pair": 3}, {}, TypeError, r"inputs\['text_pair'\] is int"),
    ("a", {"top_k": 0}, ValueError, "top_k is 0, expected a positive integer"),
    ("a", {"tokenizer_kwargs": 3}, TypeError, "tokenizer_kwargs is int, expected a mapping"),
    ("a", {"topk": 1}, TypeError, "unexpected option 'topk'; it takes truncation"),
    ("a", {"function_to_apply": "relu"}, ValueError, "function_to_apply is 'relu'"),
    ("a", {"calibration": 2.0}, TypeError, "calibration is float, expected TemperatureScaling or Isotonic"),
    *(
        ("a", {"calibration": TemperatureScaling(), "function_to_apply": name}, ValueError, "are both given")
        for name in ("softmax", "none")
    ),
    ("a", {"merge": "sum"}, ValueError, "merge is 'sum'"),
    ("a", {"truncation": "yes"}, ValueError, "truncation is 'yes', expected one of True, 'warn'"),
    ("a", {"truncation": False}, ValueError, "truncation is False"),
    ("a", {"truncation": 3}, TypeError, "truncation is 3, expected one of"),
    ("a", {"stride": 3}, ValueError, "windows are for 'chunk'"),
    ("a", {"stride": -1, "truncation": "chunk"}, ValueError, "stride is -1"),
    ("a", {"stride": 38, "truncation": "chunk"}, ValueError, "stride is 38, expected less than the 38 tokens"),
    ("a", {"max_length": 41}, ValueError, "max_length is 41, expected at most 40"),
    ("a", {"batch_tokens": 0}, ValueError, "batch_tokens is 0"),
    ("a", {"device": "cuda:1"}, ValueError, "device is 'cuda:1', expected 'cpu', 'cuda' or None"),
])  # fmt: skip
def test_bad_calls(classify, inputs, options, error, message):
    refuses(error, message, classify, inputs, **options)


@pytest.mark.parametrize("device", [-1, "cpu", 0, "cuda:0", None])
def test_device(classify, monkeypatch, device):
    chosen = []
    monkeypatch.setattr(base, "backend_of", lambda device: chosen.append(backend_of(device)) or "numpy")
    assert classify("the cat", device=device)[0]["label"] in NAMES
    assert (chosen[-1] == "cupy") == (device in (0, "cuda:0"))


def test_what_cannot_be_made(tmp_path, classifier_folder, classify):
    model, tokenizer = classify.model, classify.tokenizer
    folder = save_head(tmp_path, "AutoModelForMaskedLM")
    other = AutoModelForMaskedLM.from_config(model.config)
    for task, arguments, options, message in (
        ("summarization", [classifier_folder], {}, "task is 'summarization', expected one of"),
        ("text-classification", [folder], {}, "has no classifier of texts, so it cannot do text-classification"),
        ("text-classification", [None], {}, "model is NoneType, expected the folder or the id"),
        ("text-classification", [classifier_folder, 5], {}, "tokenizer is int, expected what AutoTokenizer"),
        ("text-classification", [model, 5], {}, "tokenizer is int, expected what AutoTokenizer"),
        ("text-classification", [model], {}, "tokenizer is None"),
        ("text-classification", [other, tokenizer], {}, "needs AutoModelForSequenceClassification"),
        ("text-classification", [model, tokenizer], {"dtype": "float32"}, "dtype is for a model that is not loaded"),
        ("text-classification", [model, tokenizer], {"token": False}, "token is for a model that is not loaded"),
        ("text-classification", [model, tokenizer], {"local_files_only": True}, "local_files_only is for a model that"),
    ):
        refuses((TypeError, ValueError), message, pipeline, task, *arguments, **options)


@pytest.mark.parity
@pytest.mark.parametrize("default", [{}, {"function_to_apply": "Sigmoid"}])
def test_answers_are_those_of_transformers(classifier_folder, default):
    import transformers

    theirs = transformers.pipeline("text-classification", str(classifier_folder), device="cpu", **default)
    ours = pipeline("text-classification", classifier_folder, **default)
    pair = {"text": "the cat", "text_pair": "paris is a mat"}
    for inputs in (TEXTS[0], TEXTS, pair, [pair, pair]):
        for options in (
            {},
            {"top_k": None},
            {"top_k": 2},
            {"function_to_apply": "sigmoid", "top_k": 1},
            {"function_to_apply": None},
            {"function_to_apply": "NONE"},
        ):
            assert_same_form(ours(inputs, **options), theirs(inputs, **options))
