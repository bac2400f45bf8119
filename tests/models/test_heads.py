"""The heads: which there are, what their targets may be, and what they refuse."""

import json
import re

import numpy as np
import pytest

import bertcore
from bertcore.checkpoint import CheckpointError
from bertcore.heads import ClassifierSpec
from bertcore.models.spec import ConfigReader
from tests.refusals import refuses
from tests.tolerances import assert_same_arrays

CONFIG = {
    "model_type": "bert", "vocab_size": 19, "hidden_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 5, "max_position_embeddings": 8, "num_labels": 3, "initializer_range": 0.5,
}  # fmt: skip
IDS = np.array([[1, 2, 3, 4], [5, 6, 7, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])


pytestmark = pytest.mark.usefixtures("on_numpy")


def model(task, **changes):
    return getattr(bertcore, f"AutoModelFor{task}").from_config(CONFIG | changes)


def test_the_config_says_what_is_returned_by_default():
    shown = model("MaskedLM", output_hidden_states=True, output_attentions=True)
    out, less = shown(IDS), shown(IDS, output_attentions=False)
    assert len(out.hidden_states) == 2 and len(out.attentions) == 1
    assert less.attentions is None and less.hidden_states is not None
    assert model("MaskedLM")(IDS).hidden_states is None


def test_one_label_is_a_regression():
    out = model("SequenceClassification", num_labels=1)(IDS, MASK, labels=[0.5, -2])
    np.testing.assert_allclose(out.loss, ((out.logits[:, 0] - [0.5, -2]) ** 2).mean(), rtol=1e-6)


def test_numbers_for_several_labels_are_flags():
    flags = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    several = model("SequenceClassification", problem_type="multi_label_classification")
    out = model("SequenceClassification")(IDS, MASK, labels=flags)
    assert out.loss == several(IDS, MASK, labels=flags.astype(int)).loss


def test_question_answering_leaves_out_answers_that_were_truncated():
    qa = model("QuestionAnswering")
    whole = qa(IDS, start_positions=[1, 4], end_positions=[2, 9])
    one = qa(IDS[:1], start_positions=[1], end_positions=[2])
    np.testing.assert_allclose(whole.loss, one.loss, rtol=1e-6)


def test_multiple_choice_scores_each_text_by_itself():
    choices = np.stack([IDS, IDS[::-1]], axis=1)
    masks = np.stack([MASK, MASK[::-1]], axis=1)
    out = model("MultipleChoice")(choices, masks)
    assert out.logits.shape == (2, 2)
    np.testing.assert_allclose(out.logits[0], out.logits[1][::-1], rtol=1e-5)


def test_pretraining_needs_both_labels():
    out = model("PreTraining")(IDS, MASK, labels=np.where(MASK, IDS, -100))
    assert out.loss is None  # as in transformers: both labels or no loss


@pytest.mark.parametrize(
    ("task", "targets", "error", "message"),
    [
        ("SequenceClassification", {"labels": [0, 3]}, ValueError, r"labels\[1\] is 3, expected 0 to 2"),
        ("SequenceClassification", {"labels": [0]}, ValueError, r"labels has shape \(1,\), expected \(2,\)"),
        ("SequenceClassification", {"labels": ["a", "b"]}, TypeError, r"labels holds <U1, expected numbers"),
        ("SequenceClassification", {"labels": [[0.0, 1.0]] * 2}, ValueError, r"shape \(2, 2\), expected \(2, 3\)"),
        ("TokenClassification", {"labels": [[0, 1, 2, 3], [0] * 4]}, ValueError, r"labels\[0, 3\] is 3, expected 0"),
        ("TokenClassification", {"labels": [[0] * 4] * 2}, ValueError, "labels has a label at a padded position"),
        ("QuestionAnswering", {"start_positions": [0, -1], "end_positions": [0, 0]}, ValueError,
         r"start_positions\[1\] is -1, expected a column"),
        ("QuestionAnswering", {"start_positions": [0], "end_positions": [0, 0]}, ValueError, r"integers, \(2,\)"),
        ("NextSentencePrediction", {"labels": [0.5, 1]}, TypeError, "labels holds float64, expected integers"),
        ("SequenceClassification", {"labels": [[1.0, 0.0, -100.0]] * 2}, ValueError, r"labels\[0, 2\] is -100.0"),
        ("SequenceClassification", {"labels": [[1], [2, 3]]}, ValueError, "labels is not a table of numbers"),
        ("MaskedLM", {"next_sentence_label": [0, 1]}, TypeError, "unexpected argument 'next_sentence_label'"),
    ],
)  # fmt: skip
def test_wrong_targets_are_named(task, targets, error, message):
    refuses(error, message, model(task), IDS, MASK, **targets)


def of_electra(**given):
    config = CONFIG | {"model_type": "electra", "embedding_size": 4}
    return bertcore.AutoModelForPreTraining.from_config(config)(IDS, **given)


def of_classes(*given, labels=(0, 1), **changes):
    return model("SequenceClassification", **changes)(IDS, *given, labels=labels)


REFUSED = [
    (lambda: of_classes([[1, 1, 1, 1], [0, 0, 0, 0]]), r"input_ids\[1\] has no real token"),
    (lambda: of_classes(problem_type="ranking"), "problem_type is 'ranking', known are regression"),
    # Pandas converts a column of integers with a missing value to such floats.
    (lambda: of_classes(labels=[1.0, 2.0]), r"labels holds float64 of shape \(2,\), expected integers, a class for"),
    (lambda: of_classes(labels=[0.5, 1e300], num_labels=1), r"labels holds 1e\+300, expected finite numbers of float"),
    (lambda: of_electra(labels=[[0, 1, -100, 1]] * 2), r"labels\[2\] is -100, expected 0 to 1"),
    (lambda: model("MultipleChoice")(IDS), r"input_ids has shape \(2, 4\), expected \(questions, choices, length\)"),
    (lambda: model("MultipleChoice")(None), "input_ids is None"),
    (lambda: model("MultipleChoice")([[1, 2], [3]]), "input_ids is ragged"),
    (lambda: model("CausalLM"), "type 'bert' have no head for causal_lm; they have"),
    (lambda: ClassifierSpec("classifier", "frist"), "source is 'frist', known are pooler, first"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_a_head_cannot_take(call, message):
    refuses((TypeError, ValueError), message, call)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0)])
def test_multiple_choice_of_nothing(shape):
    assert model("MultipleChoice")(np.zeros(shape, int)).logits.shape == shape[:2]


@pytest.mark.parametrize(("architecture", "name"), [
    ("BertModel", "AutoModel"),
    ("BertForMaskedLM", "AutoModelForMaskedLM"),
    ("BertForQuestionAnswering", "AutoModelForQuestionAnswering"),
    ("BertForSequenceClassification", "AutoModelForSequenceClassification"),
])  # fmt: skip
def test_a_checkpoint_is_loaded_as_what_it_is(tmp_path, architecture, name):
    kind = getattr(bertcore, name)
    made = kind.from_config(CONFIG)
    made.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
    loaded = bertcore.load_model(tmp_path)
    assert type(loaded) is kind
    assert_same_arrays(loaded(IDS), made(IDS))


@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification"])
def test_a_new_task_has_its_own_number_of_labels(task, tmp_path):
    made = getattr(bertcore, f"AutoModelFor{task}").from_config(CONFIG, num_labels=5)
    assert made(IDS).logits.shape[-1] == 5
    made.save_pretrained(tmp_path)
    assert bertcore.load_model(tmp_path)(IDS).logits.shape[-1] == 5
    with pytest.raises(ValueError, match="num_labels is 0, expected a positive integer"):
        getattr(bertcore, f"AutoModelFor{task}").from_config(CONFIG, num_labels=0)


@pytest.mark.parametrize(
    ("task", "options", "count"), [("SequenceClassification", {"num_labels": 5}, 5), ("QuestionAnswering", {}, 2)]
)
@pytest.mark.parametrize("labels", [{"num_labels": 3}, {"id2label": {"0": "no", "1": "yes", "2": "perhaps"}}], ids=str)
def test_a_saved_config_has_the_labels_of_the_head(task, options, count, labels, tmp_path):
    """transformers makes as many scores as num_labels says, or id2label, for question answering too."""
    config = {key: value for key, value in CONFIG.items() if key != "num_labels"} | labels
    getattr(bertcore, f"AutoModelFor{task}").from_config(config, **options).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert len(saved["id2label"]) == saved.get("num_labels", count) == count


def test_num_labels_wins_over_names_of_another_number():
    reader = ConfigReader({"num_labels": 2, "id2label": {"0": "no", "1": "yes", "2": "perhaps"}})
    assert reader.label_names() == ["LABEL_0", "LABEL_1"]  # as transformers has it


def test_an_unknown_architecture_is_named(tmp_path):
    bertcore.AutoModel.from_config(CONFIG).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for names in (["BertForSomethingElse"], 5):
        (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": names}))
        refuses(ValueError, r"architectures is .* expected one that ends in ForMaskedLM", bertcore.load_model, tmp_path)


def test_a_head_of_another_task_under_the_same_name_is_left(tmp_path):
    """RoBERTa's classifier of tokens is one map, that of sequences two, all called classifier."""
    config = CONFIG | {"model_type": "roberta", "max_position_embeddings": 12}
    bertcore.AutoModelForTokenClassification.from_config(config).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="does not hold classifier.dense.weight"):
        found = bertcore.AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    assert found(IDS).logits.shape == (2, 5)


@pytest.mark.parametrize("config", [5, None, ["a"]])
def test_no_config_at_all(config):
    refuses(TypeError, r"config is .*, expected a mapping", bertcore.AutoModel.from_config, config)
    for kind in (bertcore.AutoModelForQuestionAnswering, bertcore.AutoModelForSequenceClassification):
        refuses(TypeError, r"config is .*, expected a mapping", kind, config)


@pytest.mark.parametrize("load", [bertcore.AutoModel.from_pretrained, bertcore.load_model], ids=["AutoModel", "load"])
def test_a_wrong_config_is_named_with_its_folder(load, tmp_path):
    model("SequenceClassification").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for changes, message, load_with in (
        ({}, "models of type 'bert' have no head", bertcore.AutoModelForCausalLM.from_pretrained),
        ({"hidden_size": "6"}, "hidden_size is '6', expected a positive integer", load),
        ({"model_type": "lstm"}, "model_type is 'lstm', known are", load),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        refuses(CheckpointError, f"^{re.escape(str(tmp_path))}: config: {message}", load_with, tmp_path)


@pytest.mark.parametrize(("option", "error", "message"), [
    ({"num_labels": "3"}, TypeError, "^num_labels is '3', expected a positive integer"),
    ({"num_labels": 2**20 + 1}, ValueError, "^num_labels is 1048577, expected at most 1048576"),
    ({"problem_type": "classes"}, ValueError, "^problem_type is 'classes', expected one of 'regression'"),
])  # fmt: skip
def test_an_option_is_told_of_by_its_name_and_not_as_a_key_of_the_config(tmp_path, option, error, message):
    bertcore.AutoModel.from_config(CONFIG).save_pretrained(tmp_path)
    with pytest.raises(error, match=message) as caught:
        bertcore.AutoModelForSequenceClassification.from_pretrained(tmp_path, **option)
    assert str(tmp_path) not in str(caught.value)


def test_an_option_that_there_is_not_is_told_of_with_those_that_there_are(tmp_path):
    bertcore.AutoModel.from_config(CONFIG).save_pretrained(tmp_path)
    known = "expected one of num_labels, problem_type, dtype, task, revision, token, cache_dir, local_files_only$"
    for wrong in ("torch_dtype", "config", "trust_remote_code"):
        with pytest.raises(TypeError, match=f"^AutoModelForSequenceClassification got an .* '{wrong}', {known}"):
            bertcore.AutoModelForSequenceClassification.from_pretrained(tmp_path, **{wrong: None})
    with pytest.raises(TypeError, match=r"^AutoModel got .* 'task', expected one of add_pooling_layer, dtype, seed$"):
        bertcore.AutoModel.from_config(CONFIG, task="x")


@pytest.mark.parametrize(("labels", "message"), [
    ({"no": 0, "yes": 1, "perhaps": 2}, "id2label has the key 'no', expected numbers of classes, 0 to 2"),
    ({1: "no", 2: "yes", 3: "perhaps"}, "id2label has the key 3, expected numbers of classes, 0 to 2"),
    (["no", "yes", "perhaps"], r"id2label is \['no', 'yes', 'perhaps'\], expected an object of names"),
], ids=["names first", "from 1 on", "a list"])  # fmt: skip
def test_names_of_labels_that_are_none(labels, message):
    """A class with the name of another, or with none, would be a wrong answer."""
    refuses(ValueError, f"config: {message}", ConfigReader({"id2label": labels}).label_names)
