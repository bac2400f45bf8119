"""Zero-shot classification, features, next sentences, words for masks, texts that go on."""

import json

import numpy as np
import pytest

from bertcore import AutoModelForCausalLM, AutoTokenizer, pipeline
from bertcore.cli import main
from tests.refusals import refuses
from tests.tasks.pipelines.folders import LONGEST, TAGS, TEXTS, save_head
from tests.tasks.pipelines.forms import assert_same_form
from tests.tiny_bert import VOCABULARY, WIDTH, save_tiny_bert, write_json
from tests.tokenization.family_folders import write_family

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
    refuses(ValueError, "has no masked language modeling head", pipeline, "fill-mask", classifier_folder)
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


CONFIG = {"model_type": "gpt2", "n_embd": 39, "n_head": 3, "n_layer": 2, "n_positions": 24, "initializer_range": 0.4}
PROMPTS = ["the value", "the", "value the the value"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2")
    write_family(folder, "GPT2Tokenizer")
    size = len(AutoTokenizer.from_pretrained(folder))
    config = CONFIG | {"vocab_size": size, "eos_token_id": 0, "bos_token_id": 0}
    AutoModelForCausalLM.from_config(config, seed=3).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def write(folder):
    return pipeline("text-generation", folder)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"num_beams": 3, "num_return_sequences": 2}])
def test_texts_are_those_of_generate(write, options):
    answers = write(PROMPTS, max_new_tokens=6, **options)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = write.tokenizer(prompt)["input_ids"]
        rows = write.model.generate([ids], max_new_tokens=6, **options)
        assert [each["generated_text"] for each in answer] == [
            write.tokenizer.decode(row, skip_special_tokens=True) for row in rows
        ]
    options = {"max_new_tokens": 6, "do_sample": False}
    (added,) = write(PROMPTS[0], return_full_text=False, **options)
    assert PROMPTS[0] + added["generated_text"] == write(PROMPTS[0], **options)[0]["generated_text"]


def test_drawn_texts(write):
    one = write(PROMPTS, max_new_tokens=8, seed=1, num_return_sequences=5)
    assert one == write(PROMPTS, max_new_tokens=8, seed=1, num_return_sequences=5)
    assert one != write(PROMPTS, max_new_tokens=8, seed=2, num_return_sequences=5)
    assert [len(each) for each in one] == [5, 5, 5] and len({each["generated_text"] for each in one[0]}) > 1
    certain = write(PROMPTS, max_new_tokens=8, top_k=1)
    assert certain == write(PROMPTS, max_new_tokens=8, do_sample=False)


def test_room(write):
    assert len(write.tokenizer(write("the", do_sample=False)[0]["generated_text"])["input_ids"]) <= 25
    refuses(ValueError, "inputs has more than the 5 tokens", write, "the the the the the the", max_new_tokens=20)
    refuses(ValueError, "inputs is empty", write, "")
    refuses(ValueError, "truncation is 'chunk'", write, "the", truncation="chunk")


def test_the_command(write, folder, capsys):
    given = [part for text in PROMPTS for part in ("--text", text)]
    assert main(["generate", str(folder), *given, "--greedy", "--max-new-tokens", "6", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert found == write(PROMPTS, do_sample=False, max_new_tokens=6)
    assert main(["generate", str(folder), "--text", "the", "--seed", "3", "--count", "2", "--max-new-tokens", "6"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parity
def test_texts_are_those_of_transformers(write, folder):
    import transformers

    theirs = transformers.pipeline("text-generation", str(folder), device="cpu")
    for options in ({"do_sample": False}, {"num_beams": 3, "num_return_sequences": 2, "do_sample": False}):
        for inputs in (PROMPTS[0], PROMPTS):
            options |= {"max_new_tokens": 6}
            assert_same_form(write(inputs, **options), theirs(inputs, **options))
    assert np.ndim(write(PROMPTS[0], max_new_tokens=2)) == 1
