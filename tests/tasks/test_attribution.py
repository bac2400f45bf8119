"""Attribution of predictions: held to the definitions."""

import numpy as np
import pytest

from bertcore import AutoModelForSequenceClassification, pipeline, use_backend
from bertcore.tasks.attribution import Probe, attention_rollout, integrated_gradients, probed_row
from tests.refusals import refuses
from tests.tasks.pipelines.folders import LABELS, TEXTS, save_head
from tests.tiny_families import drawn_anew, tiny_config

NAMES = list(LABELS.values())
pytestmark = pytest.mark.usefixtures("on_numpy")


@pytest.fixture(scope="module")
def classify(tmp_path_factory):
    folder = save_head(tmp_path_factory.mktemp("model"), "AutoModelForSequenceClassification", LABELS)
    with use_backend("numpy"):
        return pipeline("text-classification", folder, dtype="float64")


def test_rollout(classify):
    found = attention_rollout(classify, TEXTS[0])
    ids = classify.tokenizer(TEXTS[0])["input_ids"]
    assert found.tokens == classify.tokenizer.convert_ids_to_tokens(ids) and found.label is None
    expected = np.zeros(len(ids))
    expected[0] = 1  # one row of the product, from the last layer down
    for layer in reversed(classify.model([ids], output_attentions=True).attentions):
        expected = 0.5 * expected + 0.5 * expected @ layer[0].mean(axis=0)
    np.testing.assert_allclose(found.scores, expected, rtol=1e-9)
    assert found.scores.sum() == pytest.approx(1)


def test_the_sum_of_integrated_gradients_is_the_difference_of_scores(classify):
    ids = classify.tokenizer(TEXTS[0])["input_ids"]
    scores = classify.model([ids]).logits[0]
    baseline = [ids[0], *[classify.tokenizer.pad_token_id] * (len(ids) - 2), ids[-1]]
    before = classify.model([baseline]).logits[0]
    for label in (*NAMES, None):
        column = scores.argmax() if label is None else NAMES.index(label)
        gaps = []
        for steps in (25, 400):
            found = integrated_gradients(classify, TEXTS[0], label=label, steps=steps)
            assert found.label == NAMES[column] and found.scores.shape == (len(ids),)
            gaps.append(found.scores.sum() - (scores[column] - before[column]))
            assert found.gap == pytest.approx(gaps[-1], abs=1e-9)
        assert abs(gaps[1]) < 0.01 * max(1, abs(scores[column] - before[column]))
        assert found.scores[[0, -1]] == pytest.approx(0, abs=1e-12)  # special tokens are the baseline's own
        assert np.abs(found.scores[1:-1]).min() > 0


def test_gradients_are_those_of_finite_differences(classify):
    """With one step: the gradient at the midpoint, times the way."""
    _, arrays = probed_row(classify, TEXTS[3], {})
    probe = Probe(classify.model)
    here, _ = probe.embeddings(arrays)
    gradient = probe.gradients(arrays, here[None], 1)
    rng = np.random.default_rng(0)
    for _ in range(5):
        way = rng.normal(size=here.shape)
        ends = [here + sign * 1e-5 * way for sign in (1, -1)]
        above, below = (probe.scores(lambda run, inputs, end=end: end, arrays)[0, 1] for end in ends)
        assert (gradient * way).sum() == pytest.approx((above - below) / 2e-5, rel=1e-5)


def test_the_model_is_left_as_it_was(classify):
    before = classify(TEXTS, top_k=None, truncation=True)
    integrated_gradients(classify, TEXTS[0], steps=3)
    assert classify(TEXTS, top_k=None, truncation=True) == before


def test_bad_calls(classify):
    refuses(ValueError, "label is 'x', expected one of CONTRADICTION", integrated_gradients, classify, "a", label="x")
    refuses(ValueError, "steps is 0", integrated_gradients, classify, "a", steps=0)
    refuses(ValueError, "truncation is 'chunk'", attention_rollout, classify, "a", truncation="chunk")
    refuses(ValueError, "more than 40 tokens", attention_rollout, classify, "the cat " * 40)
    assert len(attention_rollout(classify, "the cat " * 40, truncation=True).tokens) == 40
    refuses(TypeError, "classifier is str", attention_rollout, "model", "a")


@pytest.mark.parametrize(("family", "reached"), [("xlnet-base-cased", "last"), ("gpt2", "last"), ("bert", "first")])
def test_rollout_is_of_the_token_that_is_classified(classify, family, reached):
    config = tiny_config(family if reached == "last" else "bert-base-uncased")
    model = drawn_anew(AutoModelForSequenceClassification.from_config(config, num_labels=2))
    found = attention_rollout(pipeline("text-classification", model, classify.tokenizer), TEXTS[0])
    row = {name: [values] for name, values in classify.tokenizer(TEXTS[0]).items()}
    rollout = np.eye(len(found.tokens))
    for layer in model(**row, output_attentions=True).attentions:
        rollout = 0.5 * (layer[0].mean(axis=0) + np.eye(len(rollout))) @ rollout
    np.testing.assert_allclose(found.scores, rollout[-1 if reached == "last" else 0], atol=1e-6)
    assert (found.scores > 0.01).all()
