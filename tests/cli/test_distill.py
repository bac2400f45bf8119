"""`bertcore distill`: a student of fewer layers, of another family or of a checkpoint; what is measured and refused."""

import json

import numpy as np
import pytest

from bertcore import AutoModelForSequenceClassification, AutoTokenizer, SentenceEncoder, load_model, use_backend
from bertcore.cli import main
from tests.tiny_bert import CONFIG, random_texts, save_tiny_bert, write_json

STEPS = ["--max-steps", "4", "--save-steps", "2", "--batch", "8", "--lr", "0.003", "--backend", "numpy"]
DISTILBERT = {
    "model_type": "distilbert", "dim": 39, "n_layers": 1, "n_heads": 3, "hidden_dim": 53,
    "max_position_embeddings": 40,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint, its classifier of "paris" and "cat", labelled texts and raw ones."""
    folder = tmp_path_factory.mktemp("distill")
    save_tiny_bert(folder / "bert", head=True)
    rows = [{"text": text, "label": text} for text in ("paris", "cat")] * 30
    (folder / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "a.txt").write_text("\n\n".join(random_texts(200)))
    write_json(folder / "student.json", DISTILBERT)
    write_json(folder / "narrow.json", {**CONFIG, "hidden_size": 30, "num_hidden_layers": 1})
    given = ["--model", str(folder / "bert"), "--task", "sequence", "--out", str(folder / "teacher")]
    options = ["--max-steps", "12", "--batch", "8", "--lr", "0.01", "--backend", "numpy"]
    assert main(["finetune", str(folder / "a.jsonl"), *given, *options]) == 0
    return folder


def distill(folder, out, *options, data="a.jsonl", task="sequence", teacher="teacher"):
    given = ["--teacher", str(folder / teacher), "--task", task, "--out", str(out), *STEPS]
    return main(["distill", str(folder / data), *given, *options])


def test_fewer_layers(folder, tmp_path, capsys):
    assert distill(folder, tmp_path, "--layers", "1", "--terms", "soft=2", "cosine", "relations", "attention") == 0
    shown = capsys.readouterr().out
    assert "54 examples, 6 held out; 2 labels (cat, paris)" in shown
    assert "teacher   accuracy 1.0000" in shown and "held out  accuracy 1.0000" in shown
    student, teacher = load_model(tmp_path), load_model(folder / "teacher")
    assert f"{teacher.num_parameters():,} parameters, 2 layers" in shown
    assert f"{student.num_parameters():,} parameters, 1 layer\n" in shown
    assert student.config["id2label"] == {"0": "cat", "1": "paris"} and student.spec.num_layers == 1
    with use_backend("numpy"):
        assert student(**AutoTokenizer.from_pretrained(tmp_path)(["paris", "cat"])).logits.argmax(-1).tolist() == [1, 0]


def test_another_family_with_chosen_layers(folder, tmp_path):
    options = ["--student", str(folder / "student.json"), "--take", "1", "--max-steps", "1", "--lr", "1e-9"]
    assert distill(folder, tmp_path, *options) == 0
    student, teacher = load_model(tmp_path), load_model(folder / "teacher")
    assert student.family.model_type == "distilbert"
    name, other = "distilbert.transformer.layer.0.ffn.lin1.weight", "bert.encoder.layer.1.intermediate.dense.weight"
    np.testing.assert_allclose(student.state_dict()[name], teacher.state_dict()[other], atol=1e-6)


def test_a_narrow_student_learns_maps(folder, tmp_path, capsys):
    options = ["--student", str(folder / "narrow.json"), "--terms", "states=0.1", "scores=0.1"]
    assert distill(folder, tmp_path / "a", *options) == 1
    assert "hidden_size is 30 in the student's layer 0 but 39 in the teacher's layer 0" in capsys.readouterr().err
    assert distill(folder, tmp_path / "b", *options, "--take", "none") == 0
    assert (tmp_path / "b" / "checkpoint-4" / "objective.safetensors").is_file()
    student = load_model(tmp_path / "b")
    assert student.spec.hidden_size == 30 and student.config["id2label"] == {"0": "cat", "1": "paris"}


def test_a_checkpoint_as_student(folder, tmp_path):
    assert distill(folder, tmp_path, "--student", str(folder / "bert")) == 0
    assert load_model(tmp_path).config["id2label"] == {"0": "cat", "1": "paris"}


def test_masked_words(folder, tmp_path, capsys):
    options = ["--layers", "1", "--terms", "soft=5", "cosine", "--label-weight", "2", "--max-length", "16"]
    options += ["--labelled-only"]
    assert distill(folder, tmp_path, *options, data="a.txt", task="mlm", teacher="bert") == 0
    shown = capsys.readouterr().out
    assert "teacher   masked_accuracy" in shown and "held out  masked_accuracy" in shown
    assert type(load_model(tmp_path)).__name__ == "AutoModelForMaskedLM"


def test_an_interrupted_run_goes_on_to_the_same_bits(folder, tmp_path, capsys, interrupted):
    options = ["--student", str(folder / "narrow.json"), "--take", "none", "--terms", "states=0.1"]
    assert distill(folder, tmp_path / "whole", *options) == 0
    with interrupted():
        assert distill(folder, tmp_path / "parts", *options) == 130
    assert distill(folder, tmp_path / "parts", *options, "--resume", teacher="other") == 1
    error, taught = capsys.readouterr().err, f"made with --teacher {folder / 'teacher'}"
    assert f"--teacher {folder / 'other'} cannot go on" in error and taught in error
    assert distill(folder, tmp_path / "parts", *options, "--resume") == 0
    for name in ("model.safetensors", "checkpoint-4/objective.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


@pytest.mark.parametrize("label, kind", [("0.5", "regression"), ('["cat", "paris"]', "multi_label_classification")])
def test_labels_of_another_kind_than_the_teachers(folder, tmp_path, capsys, label, kind):
    (tmp_path / "b.jsonl").write_text(f'{{"text": "cat", "label": {label}}}\n' * 20)
    assert distill(folder, tmp_path / "out", "--layers", "1", data=tmp_path / "b.jsonl") == 1
    assert f"the labels are for {kind}, the teacher is for single_label_classification" in capsys.readouterr().err


def test_a_student_of_another_family_has_the_special_tokens_of_its_tokenizer(folder, tmp_path):
    write_json(tmp_path / "roberta.json", {**CONFIG, "model_type": "roberta", "pad_token_id": 1})
    options = ["--student", str(tmp_path / "roberta.json"), "--take", "none", "--max-steps", "1"]
    assert distill(folder, tmp_path / "out", *options) == 0
    assert load_model(tmp_path / "out").config["pad_token_id"] == 0


def test_classes_without_names_are_numbers(folder, tmp_path):
    AutoModelForSequenceClassification.from_config({**CONFIG, "num_labels": 3}).save_pretrained(tmp_path / "teacher")
    for name in ("vocab.txt", "tokenizer_config.json"):
        (tmp_path / "teacher" / name).write_bytes((folder / "bert" / name).read_bytes())
    (tmp_path / "c.jsonl").write_text('{"text": "cat", "label": 2}\n{"text": "paris", "label": 0}\n' * 20)
    assert (
        distill(folder, tmp_path / "out", "--layers", "1", data=tmp_path / "c.jsonl", teacher=tmp_path / "teacher") == 0
    )


def test_static_embeddings(folder, tmp_path, capsys):
    (tmp_path / "words.txt").write_text("paris cat\n", encoding="utf-8")
    given = ["distill", "--static", "--teacher", str(folder / "bert"), "--out", str(tmp_path / "static")]
    assert main([*given, "--dims", "7", "--vocabulary", str(tmp_path / "words.txt")]) == 0
    assert "68 tokens, 7 dimensions" in capsys.readouterr().out
    assert SentenceEncoder(tmp_path / "static").encode(["paris cat"]).shape == (1, 7)


@pytest.mark.parametrize("options, message", [
    (["--static", "--layers", "1"], "--layers is given with --static, which takes --teacher, --out"),
    (["--static", "--epochs", "1"], "--num-train-epochs is given with --static"),
    (["--static", "a.jsonl"], "data is given with --static"),
    (["--dims", "7"], "--dims is given without --static"),
    (["--task", "mlm"], "DATA is missing, expected files, or --static"),
])  # fmt: skip
def test_static_embeddings_with_other_options(folder, tmp_path, capsys, options, message):
    assert main(["distill", "--teacher", str(folder / "bert"), "--out", str(tmp_path / "out"), *options]) != 0
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()
