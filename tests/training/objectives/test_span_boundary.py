"""The span boundary objective against its definition in plain NumPy, and its files."""

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, AutoModelForSpanBoundary, load_model, value_and_grad
from bertcore.heads import find_boundaries
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.models.with_heads import head_specs
from bertcore.training.collators import IGNORED
from bertcore.training.objectives import SpanBoundary
from tests.kernels.oracles import gelu, layer_norm
from tests.slopes import assert_slope
from tests.tiny_bert import CONFIG
from tests.tiny_families import drawn_anew, runnable, tiny_config
from tests.training.tiny_runs import assert_same_weights

pytestmark = pytest.mark.usefixtures("on_numpy")

HEAD = "span_boundary"


def batch_of(lengths=(23, 1, 2, 40), seed=0):
    """Random words, half of them with a label, so that spans are long, touch the ends, and fill whole sequences."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(int)
    ids, labels = rng.integers(5, CONFIG["vocab_size"], (2, *mask.shape))
    labels[(rng.random(mask.shape) < 0.5) | (mask == 0)] = IGNORED
    labels[0, 1:22] = 7  # a span that is longer than there are embeddings of places
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def spans_of(labels):
    """(first, end) of each run of labels."""
    padded = np.concatenate([[IGNORED], labels, [IGNORED]]) != IGNORED
    starts, ends = np.flatnonzero(padded[1:] & ~padded[:-1]), np.flatnonzero(padded[:-1] & ~padded[1:])
    return zip(starts.tolist(), ends.tolist(), strict=True)


def predicted(batch, most=20):
    """(sequence, token, left, right, place) of all that the objective predicts, by loops."""
    for row, (labels, mask) in enumerate(zip(batch["labels"], batch["attention_mask"], strict=True)):
        for start, end in spans_of(labels):
            if start > 0 and end < mask.sum():
                yield from (
                    (row, token, start - 1, end, token - start) for token in range(start, min(end, start + most))
                )


def cross_entropy(scores, label, smoothing):
    logarithms = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    of_label = np.take_along_axis(logarithms, np.expand_dims(label, -1), -1)[..., 0]
    return -(1 - smoothing) * of_label - smoothing * logarithms.mean(-1)


def loss_by_definition(model, batch, smoothing):
    """(the words' loss, the boundaries' loss)."""
    state = model.state_dict()
    inputs = {name: array for name, array in batch.items() if name != "labels"}
    out = model(**inputs, output_hidden_states=True)
    hidden, losses = out.hidden_states[-1], []
    for row, token, left, right, place in predicted(batch):
        features = np.concatenate(
            [hidden[row, left], hidden[row, right], state[f"{HEAD}.position_embeddings.weight"][place]]
        )
        for layer in range(2):
            name = f"{HEAD}.layer.{layer}"
            features = gelu(features @ state[f"{name}.dense.weight"].T + state[f"{name}.dense.bias"])
            features = layer_norm(features, state[f"{name}.LayerNorm.weight"], state[f"{name}.LayerNorm.bias"], 1e-12)
        scores = features @ state["bert.embeddings.word_embeddings.weight"].T + state[f"{HEAD}.bias"]
        losses.append(cross_entropy(scores, batch["labels"][row, token], smoothing))
    where = np.nonzero(batch["labels"] != IGNORED)
    words = cross_entropy(out.logits[where], batch["labels"][where], smoothing)
    return words.mean(), np.mean(losses)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_definition(smoothing):
    model = drawn_anew(AutoModelForSpanBoundary.from_config(CONFIG, dtype="float64"))
    batch = batch_of()
    assert {case[4] for case in predicted(batch)} >= set(range(20))
    out = SpanBoundary(label_smoothing=smoothing).loss(model, batch)
    words, boundaries = loss_by_definition(model, batch, smoothing)
    np.testing.assert_allclose([out.mlm_loss, out.sbo_loss], [words, boundaries], rtol=1e-12)
    np.testing.assert_allclose(out.loss, words + boundaries, rtol=1e-12)
    assert SpanBoundary().weight(batch) == (batch["labels"] != IGNORED).sum()


def test_a_model_without_the_head_is_refused():
    with pytest.raises(TypeError, match="needs an AutoModelForSpanBoundary, the model returned"):
        SpanBoundary().loss(AutoModelForMaskedLM.from_config(CONFIG), batch_of())


@pytest.mark.parametrize("most", [1, 3, 20])
def test_boundaries_are_the_nearest_tokens_without_a_label(most):
    batch = batch_of((1, 7, 13, 2, 31))
    batch["labels"][3, :2] = 9  # a sequence without an unmasked token
    lengths = batch["attention_mask"].sum(axis=1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    found = find_boundaries(batch["labels"][batch["attention_mask"] == 1], offsets, most)
    expected = [(offsets[row] + token, offsets[row] + left, offsets[row] + right, place)
                for row, token, left, right, place in predicted(batch, most)]  # fmt: skip
    assert len(expected) > 3 and np.transpose(found).tolist() == [list(map(int, case)) for case in expected]


def test_gradients_are_finite_differences():
    model = drawn_anew(AutoModelForSpanBoundary.from_config(CONFIG, dtype="float64"))
    batch, objective = batch_of((29, 40)), SpanBoundary(label_smoothing=0.1)
    _, grads = objective.value_and_grad(model, batch)
    names = [name for name in grads if name.startswith(HEAD)]
    assert len(names) == 10
    for name in (*names, "bert.embeddings.word_embeddings.weight", "bert.encoder.layer.1.output.dense.weight"):
        options = {"step": 1e-5, "rel": 1e-6, "least": 1e-9}
        assert_slope(model, grads, lambda: objective.forward(model, batch).loss, [name], **options)


def test_without_boundaries_the_loss_is_that_of_the_words():
    model = AutoModelForSpanBoundary.from_config(CONFIG)
    out, grads = value_and_grad(model)(input_ids=[[5, 6, 7]], labels=[[8, 9, 10]])
    assert out.sbo_loss is None and out.loss == out.mlm_loss
    assert not any(array.any() for name, array in grads.items() if name.startswith(HEAD))
    assert model(input_ids=[[5, 6, 7]]).loss is None


def test_files_keep_the_head_and_others_leave_it(tmp_path):
    model = drawn_anew(AutoModelForSpanBoundary.from_config(CONFIG))
    model.save_pretrained(tmp_path)
    assert_same_weights(AutoModelForSpanBoundary.from_pretrained(tmp_path), model)
    plain = load_model(tmp_path)
    assert type(plain) is AutoModelForMaskedLM and not any(HEAD in name for name in plain.state_dict())
    batch = batch_of()
    assert plain(**batch).loss == model(**batch).mlm_loss
    plain.save_pretrained(tmp_path / "plain")
    with pytest.warns(NewlyInitialisedWarning, match=f"{HEAD}.bias"):
        AutoModelForSpanBoundary.from_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="have no head for span_boundary"):
        AutoModelForSpanBoundary.from_config(CONFIG | {"model_type": "distilbert"})


def families_with_the_head():
    return [name for name in runnable() if HEAD in head_specs(tiny_config(name))]


@pytest.mark.parametrize("name", families_with_the_head())
def test_every_family_that_has_the_head_trains_and_keeps_it(name, tmp_path):
    model = AutoModelForSpanBoundary.from_config(tiny_config(name))
    rng = np.random.default_rng(1)
    ids, labels = rng.integers(6, 97, (2, 3, 13))
    labels[:, [0, 3, 4, 7, -1]] = IGNORED
    out, grads = value_and_grad(model)(input_ids=ids, labels=labels)
    np.testing.assert_allclose(out.loss, out.mlm_loss + out.sbo_loss, rtol=1e-6)
    assert all(array.any() for name, array in grads.items() if name.startswith(HEAD))
    model.save_pretrained(tmp_path)
    assert_same_weights(AutoModelForSpanBoundary.from_pretrained(tmp_path), model)
