"""Classifiers of marked spans of every family, against their definition written out."""

import numpy as np
import pytest

import bertcore
from bertcore import load_model, use_backend, value_and_grad
from bertcore.models.entities import WIDTHS
from bertcore.models.with_heads import head_specs
from tests.models.family_checks import check_gradients, drawn_anew
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import runnable, tiny_config

IDS = [[2, 5, 6, 7, 8, 3], [2, 9, 5, 3, 0, 0], [2, 6, 3, 0, 0, 0]]
MASK = [[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3]
WORDS = {"input_ids": IDS, "attention_mask": MASK}
TASKS = ("EntityClassification", "EntityPairClassification", "EntitySpanClassification")
SPANS = {
    "EntityClassification": {"entity_start_positions": [[1], [2], [1]]},
    "EntityPairClassification": {"entity_start_positions": [[3, 1], [1, 2], [1, 1]]},
    "EntitySpanClassification": {
        "entity_start_positions": [[1, 1, 4], [2, -1, -1], [1, 0, -1]],
        "entity_end_positions": [[1, 4, 4], [3, -1, -1], [1, 2, -1]],
    },
}
LABELS = {
    "EntityClassification": [1, 0, -100],
    "EntityPairClassification": [2, 2, 1],
    "EntitySpanClassification": [[0, 2, 1], [1, -100, -100], [0, -100, -100]],
}


def model_of(task, config=CONFIG, **options):
    kind = getattr(bertcore, f"AutoModelFor{task}")
    return drawn_anew(kind.from_config(dict(config), num_labels=3, **options))


def naive(model, task, hidden):
    """The logits of the spans, one after another, zero in place of padding."""
    weights = {name.removeprefix("classifier."): array for name, array in model.state_dict().items()}
    columns = list(SPANS[task].values())
    is_pair = task == "EntityPairClassification"
    names = {1: ["entity"], 2: ["start", "end"]}[len(columns)] if not is_pair else ["head", "tail"]
    if is_pair:
        columns = [[[row[place]] for row in columns[0]] for place in (0, 1)]
    logits = np.zeros((3, len(columns[0][0]), 3))
    for row, span in np.ndindex(logits.shape[:2]):
        places = [column[row][span] for column in columns]
        if places[0] < 0:
            continue
        features = weights[f"{names[0]}.bias"].astype(np.float64)
        for name, place in zip(names, places, strict=True):
            features = features + weights[f"{name}.weight"] @ hidden[row, place]
        if task == "EntitySpanClassification":
            features = features + weights["width_embeddings.weight"][places[1] - places[0]]
        logits[row, span] = weights["out_proj.weight"] @ np.maximum(features, 0) + weights["out_proj.bias"]
    return logits if task == "EntitySpanClassification" else logits[:, 0]


@pytest.mark.parametrize("task", TASKS)
def test_scores_are_the_definition_s(task, cpu_backend):
    model = model_of(task)
    out = model(**WORDS, **SPANS[task], output_hidden_states=True)
    np.testing.assert_allclose(out.logits, naive(model, task, out.hidden_states[-1]), rtol=1e-4, atol=1e-4)
    labelled = model(**WORDS, **SPANS[task], labels=LABELS[task])
    chosen = np.array(LABELS[task])
    scores = out.logits[chosen != -100].astype(np.float64)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(chances[np.arange(len(scores)), chosen[chosen != -100]]).mean()
    assert float(labelled.loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", runnable())
def test_every_family_with_a_head_for_tokens(name, tmp_path):
    config = tiny_config(name)
    if config["model_type"] == "luke" or "token_classification" not in head_specs(config):
        return
    with use_backend("numpy"):
        for task in TASKS:
            model = model_of(task, config)
            out, grads = value_and_grad(model)(**WORDS, **SPANS[task], labels=LABELS[task])
            assert all(np.abs(grads[key]).max() > 0 for key in grads if key.startswith("classifier."))
            words = model.get_input_embeddings().table.names[0]
            assert np.abs(grads[words]).max() > 0
        model.save_pretrained(tmp_path)
        again = load_model(tmp_path)
        assert type(again) is type(model)
        np.testing.assert_allclose(again(**WORDS, **SPANS[task]).logits, out.logits, rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_finite_differences():
    model = model_of("EntitySpanClassification", CONFIG | {"hidden_dropout_prob": 0.0}, dtype="float64")
    given = SPANS["EntitySpanClassification"] | {"labels": LABELS["EntitySpanClassification"]}
    check_gradients(model, "classifier.", **WORDS, **given)


def test_widths_beyond_the_table_share_its_last_row():
    model = model_of("EntitySpanClassification", CONFIG | {"max_position_embeddings": 2 * WIDTHS})
    length = WIDTHS + 5
    with use_backend("numpy"):
        out = model([[2] * length], entity_start_positions=[[0, 0]], entity_end_positions=[[length - 1, length - 2]],
                    output_hidden_states=True)  # fmt: skip
        hidden, weights = out.hidden_states[-1], model.state_dict()
        last = weights["classifier.width_embeddings.weight"][-1]
        start = weights["classifier.start.weight"] @ hidden[0, 0] + weights["classifier.start.bias"] + last
        features = np.maximum(start + weights["classifier.end.weight"] @ hidden[0, -1], 0)
    expected = weights["classifier.out_proj.weight"] @ features + weights["classifier.out_proj.bias"]
    np.testing.assert_allclose(out.logits[0, 0], expected, rtol=1e-4, atol=1e-4)


def test_several_labels_at_once():
    model, labels = model_of("EntityClassification"), np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], np.float32)
    with use_backend("numpy"):
        out = model(**WORDS, **SPANS["EntityClassification"], labels=labels)
    expected = np.mean(np.log1p(np.exp(out.logits)) - labels * out.logits)
    assert float(out.loss) == pytest.approx(expected, rel=1e-5)


def test_low_precision(tmp_path):
    task = "EntitySpanClassification"
    model_of(task).save_pretrained(tmp_path)
    for dtype in ("bfloat16", "int8"):
        low = load_model(tmp_path, dtype=dtype)(**WORDS, **SPANS[task]).logits
        full = load_model(tmp_path)(**WORDS, **SPANS[task]).logits
        np.testing.assert_allclose(low, full, atol=0.1 * np.abs(full).max())


WRONG = {
    "none": (
        "EntityClassification", {"entity_start_positions": None}, "entity_start_positions is None, expected the columns"
    ),
    "too many": (
        "EntityClassification", {"entity_start_positions": [[1, 2]] * 3}, r"has shape \(3, 2\), expected \(3, 1\)"
    ),
    "sequences": (
        "EntityPairClassification", {"entity_start_positions": [[1, 2]]}, "has 1 sequences, expected 3 as input_ids has"
    ),
    "padding": (
        "EntityPairClassification",
        {"entity_start_positions": [[1, 2], [1, 2], [1, 3]]},
        r"entity_start_positions\[2, 1\] is 3, expected the column of a real token",
    ),
    "outside": (
        "EntityClassification",
        {"entity_start_positions": [[6], [1], [1]]},
        r"entity_start_positions\[0, 0\] is 6, expected the column of a real token",
    ),
    "no end": (
        "EntitySpanClassification", {"entity_end_positions": [[1]] * 3}, r"entity_end_positions has shape \(3, 1\)"
    ),
    "end before start": (
        "EntitySpanClassification",
        {"entity_end_positions": [[1, 4, 3], [3, 0, 0], [1, 2, -1]]},
        r"entity_end_positions\[0, 2\] is 3, expected at least the start, 4",
    ),
    "label of no span": (
        "EntitySpanClassification", {"labels": [[0, 2, 1], [1, 0, -100], [0, 1, -100]]}, "label at a padded position"
    ),
    "unknown label": ("EntitySpanClassification", {"labels": [[3, 2, 1]] * 3}, r"labels\[0, 0\] is 3, expected 0 to 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named(name):
    task, changes, message = WRONG[name]
    with use_backend("numpy"):
        refuses(ValueError, message, model_of(task), **WORDS | SPANS[task] | changes)


def test_families_without_a_head_for_tokens_are_refused():
    kind, config = bertcore.AutoModelForEntityClassification, tiny_config("transfo-xl-wt103")
    refuses(ValueError, "have no head for token_classification", kind.from_config, config)
