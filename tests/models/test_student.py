"""Students that begin with layers of their teachers: what is copied, what is new, and what does not fit."""

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, student_from_teacher
from bertcore.models.student import with_layers
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import drawn_anew, tiny_config

pytestmark = pytest.mark.usefixtures("on_numpy")

TWELVE = {**CONFIG, "num_hidden_layers": 12}
DISTILBERT = {
    "model_type": "distilbert", "vocab_size": CONFIG["vocab_size"], "dim": 39, "n_layers": 6, "n_heads": 3,
    "hidden_dim": 53, "max_position_embeddings": 40,
}  # fmt: skip


def drawn(kind, config, **options):
    return drawn_anew(kind.from_config(config, **options))


def test_bert_to_distilbert_with_the_layers_of_the_paper():
    teacher = drawn(AutoModelForMaskedLM, TWELVE)
    student = student_from_teacher(DISTILBERT, teacher)
    assert type(student) is AutoModelForMaskedLM and student.family.model_type == "distilbert"
    own, other = student.state_dict(), teacher.state_dict()
    for layer, place in enumerate((0, 2, 4, 7, 9, 11)):
        for mine, its in (
            ("attention.q_lin.weight", "attention.self.query.weight"),
            ("attention.v_lin.bias", "attention.self.value.bias"),
            ("attention.out_lin.weight", "attention.output.dense.weight"),
            ("sa_layer_norm.bias", "attention.output.LayerNorm.bias"),
            ("ffn.lin1.weight", "intermediate.dense.weight"),
            ("ffn.lin2.bias", "output.dense.bias"),
            ("output_layer_norm.weight", "output.LayerNorm.weight"),
        ):
            found = own[f"distilbert.transformer.layer.{layer}.{mine}"]
            np.testing.assert_array_equal(found, other[f"bert.encoder.layer.{place}.{its}"])
    for mine, its in (
        ("distilbert.embeddings.word_embeddings.weight", "bert.embeddings.word_embeddings.weight"),
        ("distilbert.embeddings.position_embeddings.weight", "bert.embeddings.position_embeddings.weight"),
        ("distilbert.embeddings.LayerNorm.bias", "bert.embeddings.LayerNorm.bias"),
        ("vocab_transform.weight", "cls.predictions.transform.dense.weight"),
        ("vocab_layer_norm.weight", "cls.predictions.transform.LayerNorm.weight"),
        ("vocab_projector.bias", "cls.predictions.bias"),
    ):
        np.testing.assert_array_equal(own[mine], other[its])
    assert student.newly_initialised == []


@pytest.mark.parametrize(
    "name", ["bert-base-uncased", "roberta-base", "mobilebert-uncased", "deberta-v3-base", "gpt2", "modernbert-base"]
)
def test_all_layers_make_the_teacher_again(name):
    config = tiny_config(name)
    kind = bertcore.AutoModelForCausalLM if name == "gpt2" else AutoModelForMaskedLM
    teacher = drawn(kind, config)
    student = student_from_teacher(teacher.config, teacher)
    assert student.newly_initialised == []
    for one, other in zip(student.parameters(), teacher.parameters(), strict=True):
        np.testing.assert_array_equal(one.array(), other.array())
        assert not np.shares_memory(one.array(), other.array())


@pytest.mark.parametrize("count, chosen", [(1, [0]), (2, [0, 11]), (3, [0, 6, 11]), (5, [0, 3, 6, 8, 11])])
def test_fewer_layers_are_spread_evenly(count, chosen):
    teacher = drawn(AutoModel, TWELVE)
    student = student_from_teacher(with_layers(TWELVE, count), teacher)
    explicit = student_from_teacher(with_layers(TWELVE, count), teacher, layers=[5] * count)
    for made, places in ((student, chosen), (explicit, [5] * count)):
        for layer, place in enumerate(places):
            found = made.state_dict()[f"encoder.layer.{layer}.output.dense.weight"]
            np.testing.assert_array_equal(found, teacher.state_dict()[f"encoder.layer.{place}.output.dense.weight"])


def test_a_classifier_keeps_its_labels_and_tells_what_is_new():
    teacher = drawn(AutoModelForSequenceClassification, TWELVE, num_labels=3)
    teacher.config["id2label"] = {"0": "no", "1": "yes", "2": "perhaps"}
    student = student_from_teacher(DISTILBERT, teacher)
    assert student.config["id2label"] == teacher.config["id2label"]
    np.testing.assert_array_equal(student.state_dict()["classifier.weight"], teacher.state_dict()["classifier.weight"])
    assert student.newly_initialised == ["pre_classifier.weight", "pre_classifier.bias"]
    again = student_from_teacher(DISTILBERT, teacher, seed=1)
    assert (again.state_dict()["pre_classifier.weight"] != student.state_dict()["pre_classifier.weight"]).any()


def test_positions_of_roberta_begin_elsewhere():
    config = {**CONFIG, "model_type": "roberta", "max_position_embeddings": 42, "pad_token_id": 1}
    teacher = drawn(AutoModelForMaskedLM, config)
    assert teacher.spec.position_offset == 2
    student = student_from_teacher({**DISTILBERT, "n_layers": 1}, teacher, layers=[1])
    own, other = student.state_dict(), teacher.state_dict()
    places = "embeddings.position_embeddings.weight"
    np.testing.assert_array_equal(own[f"distilbert.{places}"], other[f"roberta.{places}"][2:])
    np.testing.assert_array_equal(own["vocab_transform.bias"], other["lm_head.dense.bias"])


def test_albert_has_one_layer_many_times():
    config = tiny_config("albert-base-v2")
    teacher = drawn(AutoModel, config)
    assert student_from_teacher(with_layers(config, 1), teacher).newly_initialised == []
    with pytest.raises(ValueError, match="expected one for all that share"):
        student_from_teacher(config, drawn(AutoModel, {**config, "num_hidden_groups": 2}), layers=[0, 1])


def test_a_teacher_in_low_precision_and_in_float64():
    for dtype, expected in (("bfloat16", "float32"), ("float64", "float64")):
        teacher = AutoModel.from_config(CONFIG, dtype=dtype)
        student = student_from_teacher(CONFIG, teacher)
        assert student.dtype == expected
        for one, other in zip(student.parameters(), teacher.parameters(), strict=True):
            np.testing.assert_array_equal(one.array(), other.array().astype(expected))


@pytest.mark.parametrize("name, key", [("distilbert-base-uncased", "n_layers"), ("gpt2", "n_layer")])
def test_configs_with_other_names_of_the_number_of_layers(name, key):
    assert with_layers(tiny_config(name), 1)[key] == 1


@pytest.mark.parametrize("config, layers, message", [
    (CONFIG, [0], "layers has 1 entries, expected one for each of the student's 2"),
    (CONFIG, [0, 12], "layers has 12, the teacher's are 0 to 11"),
    (CONFIG, [-1, 0], "layers has -1"),
    ({**CONFIG, "hidden_size": 30}, None, "hidden_size is 30 in the student's layer 0 but 39 in the teacher's layer 0"),
    ({**CONFIG, "num_attention_heads": 13}, None, "num_heads is 13 in the student's layer 0"),
    ({**CONFIG, "hidden_act": "relu"}, None, "activation is relu in the student's layer 0"),
    ({**CONFIG, "vocab_size": 76}, None, r"word_embeddings.weight has shape \(76, 39\), expected \(75, 39\)"),
    ({**CONFIG, "max_position_embeddings": 30}, None, r"position_embeddings.weight has shape \(30, 39\)"),
    (tiny_config("deberta-base"), None, r"the student's layers \(deberta\) are of a different kind"),
])  # fmt: skip
def test_what_does_not_fit(config, layers, message):
    refuses(ValueError, message, student_from_teacher, config, AutoModel.from_config(TWELVE), layers)


def test_a_teacher_is_a_model():
    refuses(TypeError, "teacher is dict, expected a model", student_from_teacher, CONFIG, {})
    with pytest.raises(TypeError, match="layers is 3, expected a list of the teacher's layers"):
        student_from_teacher(CONFIG, AutoModel.from_config(CONFIG), 3)
