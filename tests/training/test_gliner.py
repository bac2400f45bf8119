"""GLiNER's objective: targets, the loss and its gradients beside the package gliner, and a run that learns."""

import itertools
import re

import numpy as np
import pytest

from bertcore import GLiNER, use_backend
from bertcore.training import Trainer, objectives
from bertcore.training.data.files import MalformedRecord
from bertcore.training.objectives.entities import GLiNERCollator
from tests.refusals import refuses
from tests.tiny_gliner import tiny_gliner
from tests.training.tiny_runs import quiet_arguments

RECORDS = [
    {"text": "the person of New-York", "spans": [[4, 10, "person"], [14, 22, "city"]]},
    {"text": "a big city in the big, big city", "spans": [[2, 10, "city"], [6, 10, "of"], [2, 31, "city"]]},
    {"text": "x of y", "spans": []},
]
LABELS = [["city", "person"], ["of", "city", "a"], ["city"]]
FORMS = [
    {}, {"reduction": "mean"}, {"alpha": 0.75, "gamma": 2.0}, {"gamma": 1.5, "prob_margin": 0.2},
    {"label_smoothing": 0.1, "alpha": 0.3, "reduction": "mean"},
]  # fmt: skip


@pytest.fixture(scope="module", params=["span", "token"])
def folder(request, tmp_path_factory):
    return tiny_gliner(tmp_path_factory.mktemp("gliner"), request.param, backbone="deberta")


def collator_of(model, **options):
    objective = objectives.GLiNEREntities(model.model, **options)
    return objective, objective.collator(model.tokenizer, seed=1)


def labelled():
    return [record | {"labels": names} for record, names in zip(RECORDS, LABELS, strict=True)]


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_loss_and_gradients_equal_those_of_gliner(folder, form):
    peer = pytest.importorskip("gliner")
    theirs, ours = peer.GLiNER.from_pretrained(folder), GLiNER.from_pretrained(folder)
    processor, examples = theirs.data_processor, []
    for record, names in zip(RECORDS, LABELS, strict=True):
        words = list(processor.words_splitter(record["text"]))
        starts, ends = ({word[side]: at for at, word in enumerate(words)} for side in (1, 2))
        ner = [(starts[first], ends[last], label) for first, last, label in record["spans"]]
        examples.append({"tokenized_text": [word for word, _, _ in words], "ner": ner, "ner_labels": names})
    batch = theirs.data_collator_class(theirs.config, data_processor=processor, prepare_labels=True)(examples)
    theirs.eval()
    loss = theirs.model(**batch, **form).loss
    loss.backward()
    objective, collate = collator_of(ours, **form)
    made = collate(labelled())
    np.testing.assert_array_equal(made["input_ids"], batch["input_ids"].numpy())
    np.testing.assert_array_equal(made["words_mask"], batch["words_mask"].numpy())
    np.testing.assert_array_equal(made["targets"].reshape(-1), batch["labels"].numpy().reshape(-1))
    out, grads = objective.value_and_grad(ours.model, made)
    assert float(out.loss) == pytest.approx(float(loss), rel=1e-5)
    for name, parameter in theirs.model.named_parameters():
        if parameter.grad is not None:
            expected = parameter.grad.numpy()
            np.testing.assert_allclose(grads[name], expected, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=name)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_derivatives_are_slopes(folder, form):
    objective, _ = collator_of(GLiNER.from_pretrained(folder), **form)
    logits, targets = np.linspace(-8, 8, 41), np.arange(41) % 2
    _, slopes = objective.of_logits(logits, targets)
    ends = [objective.of_logits(logits + step, targets)[0] for step in (1e-6, -1e-6)]
    np.testing.assert_allclose(slopes, (ends[0] - ends[1]) / 2e-6, atol=1e-8)


def test_labels_are_sampled_by_the_seed_alone(folder):
    model = GLiNER.from_pretrained(folder)
    _, first = collator_of(model)
    _, second = collator_of(model)
    for _ in range(3):
        one, other = first(RECORDS), second(RECORDS)
        assert all(np.array_equal(one[name], other[name]) for name in one)

    def counts(records):
        return tuple((first(records)["input_ids"] == model.model.gliner.class_token).sum(axis=1))

    assert {counts(RECORDS)[1] for _ in range(20)} == {2, 3}, "its own two labels, and sometimes the batch's third"
    given = [record | {"negatives": ["zz"]} for record in RECORDS]
    assert {counts(given) for _ in range(5)} == {(3, 3, 1)}


def test_an_entity_that_begins_or_ends_with_a_word_without_tokens_is_no_target(folder):
    _, collator = collator_of(GLiNER.from_pretrained(folder))
    for text, span, count in (
        ("the \u200b city of", (4, 10), 0),
        ("a city \u200b of it", (2, 8), 0),
        ("a \u200b city", (4, 8), 1),
    ):
        batch = collator([{"text": text, "spans": [[*span, "city"]], "labels": ["city"]}])
        assert len(np.unique(np.argwhere(batch["targets"])[:, 1])) == count


def test_masking_takes_its_share_of_what_is_not_an_entity(tmp_path):
    model = GLiNER.from_pretrained(tiny_gliner(tmp_path))
    whole = collator_of(model)[1](labelled())
    for masking in ("global", "label", "span"):
        made = collator_of(model, masking=masking, negatives=0.0)[1](labelled())
        targets, weights = made["targets"], made["weights"]
        np.testing.assert_array_equal(targets, whole["targets"])
        axes = {"global": (), "label": (1, 2), "span": (3,)}[masking]
        kept = targets.any(axis=axes, keepdims=True) if axes else targets > 0
        np.testing.assert_array_equal(weights, whole["weights"] * kept)
    half = collator_of(model, masking="global", negatives=0.5)[1](labelled())["weights"].sum()
    assert 0.3 < half / whole["weights"].sum() < 0.7


@pytest.mark.parametrize("change, message", [
    ({"text": 3}, "records[0]"),
    ({"spans": [[0, 99, "a"]]}, "spans[0] is [0, 99]"),
    ({"spans": [[0, 3]]}, "spans[0] is [0, 3]"),
    ({"labels": "city"}, "'labels' is 'city', expected a list of strings"),
    ({"negatives": [3]}, "'negatives' is [3], expected a list of strings"),
])  # fmt: skip
def test_wrong_records_are_refused(folder, change, message):
    _, collate = collator_of(GLiNER.from_pretrained(folder))
    refuses(MalformedRecord, re.escape(message), collate, [RECORDS[0] | change])


def test_wrong_options_are_refused(folder, tmp_path):
    model = GLiNER.from_pretrained(folder).model
    for error, options, message in (
        (ValueError, {"masking": "no"}, "masking is 'no'"),
        (ValueError, {"reduction": "none"}, "reduction is 'none'"),
        (ValueError, {"alpha": 2}, "alpha is 2"),
        (TypeError, {"gamma": "a"}, "gamma is 'a'"),
        (ValueError, {"negatives": -1}, "negatives is -1"),
    ):
        refuses(error, message, objectives.GLiNEREntities, model, **options)
    refuses(TypeError, "model is int, expected a GLiNERModel", objectives.GLiNEREntities, 3)
    token = GLiNER.from_pretrained(tiny_gliner(tmp_path, "token")).model
    refuses(ValueError, "masking is 'span', expected 'none'", objectives.GLiNEREntities, token, masking="span")


@pytest.mark.parametrize("kind", ["span", pytest.param("token", marks=pytest.mark.slow)])
def test_a_run_learns_the_entities(kind, tmp_path):
    model, names = GLiNER.from_pretrained(tiny_gliner(tmp_path, kind, dropout=0.1)), ["person", "city"]
    records = []
    for before_it, between in itertools.product(("a", "in", "big"), ("x", "of", "in big")):
        text = f"{before_it} the person {between} of the city"
        spans = [[text.index(name), text.index(name) + len(name), name] for name in names]
        records.append({"text": text, "spans": spans})
    settings = {"num_train_epochs": 120, "per_device_train_batch_size": 9, "learning_rate": 3e-3}
    arguments = quiet_arguments(tmp_path, **settings)
    with use_backend("numba"):
        trainer = Trainer(model.model, arguments, train_dataset=records, processing_class=model.tokenizer,
                          objective=objectives.GLiNEREntities(model.model))  # fmt: skip
        assert isinstance(trainer.data_collator, GLiNERCollator)
        trainer.train()
        trainer.save_model()
    for dtype in ("float32", "bfloat16", "int8"):
        answers = GLiNER.from_pretrained(tmp_path, dtype=dtype).inference([each["text"] for each in records], names)
        for record, found in zip(records, answers, strict=True):
            assert [[each["start"], each["end"], each["label"]] for each in found] == record["spans"], dtype
