"""GLiNER without its peer: backends, precisions, files, refusals, and which spans fit together."""

import json
import re
import warnings

import numpy as np
import pytest

from bertcore import GLiNER, pipeline, use_backend
from bertcore.checkpoint import CheckpointError
from bertcore.cli import main
from bertcore.gradients import value_and_grad
from bertcore.kernels import to_host
from bertcore.models.gliner import GLiNERModel
from bertcore.tasks.gliner import runs_above
from bertcore.tasks.texts import TextsCutWarning
from bertcore.tokenization.mentions import as_batch, split_words
from tests.refusals import refuses
from tests.slopes import assert_slope
from tests.tiny_gliner import LABELS, TEXTS, config_of, threshold_of, tiny_gliner


@pytest.fixture(scope="module", params=["span", "token"])
def folder(request, tmp_path_factory):
    return tiny_gliner(tmp_path_factory.mktemp("gliner"), request.param)


@pytest.fixture
def model(folder):
    model = GLiNER.from_pretrained(folder)
    model.has_warned = True
    return model


def batch_of(model, texts=TEXTS[:3], labels=LABELS):
    words = [[text[slice(*word)] for word in split_words(text)] for text in texts]
    return as_batch(model.reader.read(words, [labels] * len(texts)), 0)


def test_backends_and_precisions_agree(folder, model):
    batch = batch_of(model)
    expected = model.model(**batch).logits
    with use_backend("numpy"):
        np.testing.assert_allclose(model.model(**batch).logits, expected, atol=1e-4)
    for dtype, most in (("bfloat16", 0.03), ("int8", 0.08)):
        found = GLiNERModel.from_pretrained(folder, dtype=dtype)(**batch).logits
        assert np.linalg.norm(found - expected) < most * np.linalg.norm(expected)


def test_the_emulated_gpu_agrees(model, emulated_gpu):
    batch = batch_of(model)
    found = to_host(model.model(**batch).logits)
    with use_backend("numpy"):
        np.testing.assert_allclose(found, model.model(**batch).logits, atol=1e-4)


@pytest.mark.slow
def test_gradients_are_the_slopes(folder):
    model = GLiNERModel.from_pretrained(folder, dtype="float64")
    batch = batch_of(GLiNER.from_pretrained(folder))
    weights = np.random.default_rng(0).normal(size=model(**batch).logits.shape)
    with use_backend("numpy"):
        _, grads = value_and_grad(model, lambda out: ((out.logits * weights).sum(), {"logits": weights}))(**batch)
        assert_slope(model, grads, lambda: (model(**batch).logits * weights).sum())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_saved_model_loads_with_the_same_bits(folder, dtype, tmp_path):
    model = GLiNER.from_pretrained(folder, dtype=dtype)
    model.save_pretrained(tmp_path)
    again, batch = GLiNER.from_pretrained(tmp_path), batch_of(model)
    assert again.dtype == dtype
    np.testing.assert_array_equal(again.model(**batch).logits, model.model(**batch).logits)


def test_a_text_has_the_same_entities_in_any_batch(model):
    options = {"threshold": threshold_of(model, 0.8)}
    found = model.inference(TEXTS, LABELS, **options, batch_size=2)
    assert found == model.inference(TEXTS, LABELS, **options, batch_tokens=1)
    assert found == [model.predict_entities(text, LABELS, **options) for text in TEXTS]
    assert found[3:5] == [[], []]
    for text, entities in zip(TEXTS, found, strict=True):
        assert all(text[each["start"] : each["end"]] == each["text"] for each in entities)


def test_words_without_tokens_do_not_shift_the_others(model):
    """BERT's tokenizer drops control characters; each is a word of its own."""
    text, options = "the city of the person", {"threshold": threshold_of(model, 0.2)}
    plain = model.predict_entities(text, LABELS, **options)
    marked = model.predict_entities(f"\u200b {text}", LABELS, **options)
    for found, each in zip(marked, plain, strict=True):  # the state of a word that is not read is zero
        score = pytest.approx(each["score"], abs=0.05)
        assert found == each | {"start": each["start"] + 2, "end": each["end"] + 2, "score": score}
    assert plain


def test_a_cut_text_is_told_of_once(folder):
    model = GLiNER.from_pretrained(folder)
    with pytest.warns(TextsCutWarning, match="1 of 2 texts were cut to 20 words, or 64 tokens with the labels. This"):
        model.inference(["a " * 21, "a " * 20], ["city"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.inference(["a " * 21], ["city"])
        GLiNER.from_pretrained(folder).inference(["a " * 21], ["city"], truncation=True)
    refuses(
        ValueError,
        r"texts\[1\] has more than the 20 words",
        model.inference,
        ["a", "a " * 21],
        ["b"],
        truncation="error",
    )
    refuses(ValueError, "truncation is 'chunk'", model.inference, ["a"], ["city"], truncation="chunk")
    long = GLiNER.from_pretrained(folder)
    with pytest.warns(TextsCutWarning):
        assert all(each["end"] <= 72 for each in long.predict_entities("abcdefg " * 20, ["city"], threshold=0.0))


def test_spans_are_scored_in_parts(model, monkeypatch):
    batch, whole = batch_of(model), model.model(**batch_of(model)).logits
    monkeypatch.setattr("bertcore.models.gliner.MOST_SPANS", 7)
    np.testing.assert_array_equal(model.model(**batch).logits, whole)


def test_added_tokens_get_rows(folder, tmp_path):
    model = GLiNER.from_pretrained(folder)
    batch = batch_of(model)
    expected, size = model.model(**batch).logits, len(model.tokenizer)
    model.tokenizer.add_tokens(["London"])
    model.model.resize_token_embeddings(len(model.tokenizer))
    np.testing.assert_array_equal(model.model(**batch).logits, expected)
    model.save_pretrained(tmp_path)
    again = GLiNER.from_pretrained(tmp_path)
    assert again.model.spec.vocab_size == again.config["vocab_size"] == size + 1


@pytest.mark.parametrize("arguments, error, message", [
    ((["a", 1], LABELS), TypeError, "texts[1] is int, expected str"),
    (("a", ["a", 1]), TypeError, "labels[1] is int"),
    (("a", {"city": 1}), TypeError, "labels['city'] is int"),
    (("a", {"city": "x", "town": "x"}), ValueError, "labels has a description twice"),
    (("a", 3), TypeError, "labels is 3, expected a list of strings"),
    (("a", [["a"], ["b"]]), ValueError, "labels has 2 lists, expected one for each of the 1 texts"),
    (("a", [" "]), ValueError, "labels has an empty label"),
    (("a", ["x <<SEP>> y"]), ValueError, "labels has 'x <<SEP>> y', expected none with <<ENT>> or <<SEP>>"),
    (("a", ["city " * 70]), ValueError, "labels have more than the 64 tokens that the model takes"),
    (("\ud800", LABELS), ValueError, "texts is not valid Unicode"),
    (("a", LABELS, 1), TypeError, "flat_ner is 1"),
    (("a", LABELS, True, 1.5), ValueError, "threshold is 1.5, expected a number from 0 to 1"),
    (("a", LABELS, True, float("nan")), ValueError, "threshold is nan"),
    (("a", LABELS, True, 0.5, "no"), TypeError, "multi_label is 'no'"),
    (("a", LABELS, True, 0.5, False, 0), ValueError, "batch_size is 0, expected a positive integer"),
])  # fmt: skip
def test_wrong_arguments_are_refused(model, arguments, error, message):
    refuses(error, re.escape(message), model.inference, *arguments)


@pytest.mark.parametrize("changed, message", [
    ({"labels_encoder": "x"}, "labels_encoder is 'x', expected none"),
    ({"post_fusion_schema": "l2l"}, "post_fusion_schema is 'l2l'"),
    ({"span_mode": "conv_max"}, "span_mode is 'conv_max', supported is 'markerV0'"),
    ({"subtoken_pooling": "mean"}, "subtoken_pooling is 'mean'"),
    ({"words_splitter_type": "spacy"}, "words_splitter_type is 'spacy', supported is 'whitespace'"),
    ({"model_type": "gliner_bi_encoder_span"}, "model_type is 'gliner_bi_encoder_span'"),
    ({"hidden_size": 25}, "hidden_size is 25, expected an even number"),
    ({"max_width": 0}, "max_width is 0, expected a positive integer"),
    ({"ent_token": 3}, "ent_token is 3, expected a token"),
    ({"num_rnn_layers": 99999}, "num_rnn_layers is 99999, expected at most 64"),
    ({"encoder_config": 3}, "encoder_config is 3, expected the config of an encoder"),
    ({"encoder_config": {"model_type": "no"}}, "model_type is 'no', known are"),
    ({"class_token_index": 3}, "class_token_index is 3, expected 72, the id of '<<ENT>>'"),
    ({"sep_token": "[NO]"}, "tokenizer has no token '[NO]'"),
])  # fmt: skip
def test_wrong_configs_are_refused(tmp_path, changed, message):
    tiny_gliner(tmp_path)
    (tmp_path / "gliner_config.json").write_text(json.dumps(config_of("span", **changed)))
    refuses(CheckpointError, re.escape(message), GLiNER.from_pretrained, tmp_path)


def test_folders_of_other_models_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refuses(CheckpointError, "has no gliner_config.json", GLiNER.from_pretrained, tmp_path)


@pytest.mark.parametrize("mask, message", [
    (None, "words_mask is None"),
    ([[1, 2]], r"words_mask has shape \(1, 2\), expected \(1, 4\) as input_ids has"),
    ([[0, 0, 2, 1]], "words_mask does not number the words"),
    ([[0, 0, 1, 2]], "words_mask has a word at a padded position"),
])  # fmt: skip
def test_wrong_masks_of_words_are_refused(model, mask, message):
    ids, attention = [[72, 5, 73, 6]], [[1, 1, 1, 0]]
    mask = None if mask is None else np.array(mask)
    refuses(ValueError, message, model.model, np.array(ids), np.array(attention), words_mask=mask)


def test_fewer_words_than_are_read_are_refused(model):
    ids, mask = np.array([[72, 5, 73, 6]]), np.array([[0, 0, 1, 2]])
    for lengths, message in (
        ([[1]], r"text_lengths\[0\] is 1, expected 2 or more"),
        ([[2], [2]], "has 2 entries, expected 1"),
    ):
        refuses(ValueError, message, model.model, ids, words_mask=mask, text_lengths=lengths)


def test_a_run_needs_every_word_inside():
    scores = np.full((4, 1, 3), 0.9)
    scores[2, 0, 2], scores[1, 0, 1] = 0.4, 0.6
    found = {(each.start, each.end): each.score for each in runs_above(scores, 0.5)}
    assert found == {(0, 0): 0.9, (0, 1): 0.6, (1, 1): 0.6, (3, 3): 0.9}


@pytest.mark.filterwarnings("ignore::bertcore.tasks.texts.TextsCutWarning")
def test_the_pipeline_gives_the_entities(folder, model):
    options = {"threshold": threshold_of(model, 0.7), "flat_ner": False}
    expected, answer = model.inference(TEXTS, LABELS, **options), pipeline("zero-shot-ner", folder, **options)
    assert answer(TEXTS, labels=LABELS) == expected
    assert answer(TEXTS[1], ", ".join(LABELS)) == expected[1] != []
    assert list(answer(iter(TEXTS), labels=LABELS, batch_size=2)) == expected
    assert pipeline("zero-shot-ner", model.model, model.tokenizer)(TEXTS, LABELS, **options) == expected
    refuses(TypeError, "labels is None, expected a list of strings", answer, "a")
    refuses(TypeError, "unexpected option 'top_k'; it takes labels, flat_ner", answer, "a", LABELS, top_k=3)
    refuses(TypeError, r"inputs\[1\] is int", answer, ["a", 3], LABELS)


def test_the_command_prints_the_entities(folder, model, capsys, tmp_path):
    (tmp_path / "texts").write_text("\n".join(TEXTS[:3]) + "\n")
    threshold = threshold_of(model, 0.7)
    given = ["tag", str(folder), str(tmp_path / "texts"), "--labels", ",".join(LABELS), "--threshold", str(threshold)]
    expected = model.inference(TEXTS[:3], LABELS, threshold=threshold, multi_label=True, flat_ner=False)
    assert main([*given, "--multi-label", "--nested", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == expected
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [[each["label"], each["text"]] for each in model.predict_entities(TEXTS[0], LABELS, threshold=threshold)]
    assert shown and all(label in line and text in line for (label, text), line in zip(shown, lines, strict=False))
    for code, more, message in (
        (2, ["--stride", "2"], "--labels and --stride are both given"),
        (1, ["--labels", ""], "labels has an empty label"),
    ):
        assert main([*given, *more]) == code
        assert message in capsys.readouterr().err
    assert main([*given[:3], "--nested"]) == 2
    assert "is given without --labels" in capsys.readouterr().err
