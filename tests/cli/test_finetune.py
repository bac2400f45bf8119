"""`bertcore finetune`: each task learns from a table and is measured; errors name the line."""

import contextlib
import importlib
import json

import numpy as np
import pytest

from bertcore import AutoModelForSequenceClassification, AutoTokenizer, SentenceEncoder, load_model, use_backend
from bertcore.cli import main
from bertcore.lora import PeftModel
from tests.tiny_bert import save_tiny_bert, save_tiny_encoder
from tests.tolerances import assert_same_arrays

STEPS = ["--max-steps", "12", "--batch", "8", "--lr", "0.01", "--backend", "numpy"]
QUESTION = {"question": "x", "context": "y", "answers": {"text": [], "answer_start": []}}
CONTEXT = "the cat sat on an mat . paris is the capital of france"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


def write(folder, name, rows):
    (folder / name).write_text("\n".join(json.dumps(row) for row in rows))
    return str(folder / name)


def finetune(model, out, data, task, *options):
    return main(["finetune", data, "--model", str(model), "--task", task, "--out", str(out), *STEPS, *options])


def test_classes(model, tmp_path, capsys):
    rows = [{"text": text, "label": text} for text in ("paris", "cat")] * 40
    assert finetune(model, tmp_path / "out", write(tmp_path, "a.jsonl", rows), "sequence") == 0
    shown = capsys.readouterr().out
    assert "72 examples, 8 held out; 2 labels (cat, paris)" in shown
    assert "held out  accuracy 1.0000" in shown and "held out  f1 1.0000" in shown
    made, tokenizer = load_model(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert made.config["id2label"] == {"0": "cat", "1": "paris"} and made.config["label2id"] == {"cat": 0, "paris": 1}
    with use_backend("numpy"):
        assert made(**tokenizer(["paris", "cat"])).logits.argmax(-1).tolist() == [1, 0]


def run_card(text, folder):
    """The variables of a model card's code, run beside the folder."""
    made = {}
    code = text.partition("```python\n")[2].partition("```")[0]
    with contextlib.chdir(folder), use_backend("numpy"):
        exec(code, made)
    return made


def test_scores_and_a_card_beside_the_model(model, tmp_path, capsys):
    """No checkpoint is left unless asked for; a finished run goes on only from a checkpoint."""
    rows = [{"text": text, "label": text} for text in ("paris", "cat")] * 40
    data, out = write(tmp_path, "a.jsonl", rows), tmp_path / "out"
    assert finetune(model, out, data, "sequence") == 0
    results = json.loads((out / "all_results.json").read_text())
    assert results["train_steps"] == 12 and {"eval_loss", "eval_accuracy", "eval_f1"} <= results.keys()
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: bertcore\npipeline_tag: text-classification\n---\n\n# out\n")
    for line in (
        f"Made by `bertcore finetune` (sequence) from `{model.name}`.",
        "`a.jsonl`: 72 examples, 8 held out.",
        f"| accuracy | {results['eval_accuracy']:.4f} |",
        "| `learning_rate` | `0.01` |",
    ):
        assert line in card.splitlines()
    assert run_card(card, tmp_path)["model"]("paris")[0]["label"] == "paris"
    assert not list(out.glob("checkpoint-*")) and str(tmp_path) not in card
    capsys.readouterr()
    assert finetune(model, out, data, "sequence", "--resume") == 0
    assert capsys.readouterr().out == "finished  no step is left to train: the run had made all 12 before\n"
    assert finetune(model, out, data, "sequence", "--resume", "--max-steps", "14") == 1
    assert "--max-steps 14 cannot go on from " in capsys.readouterr().err
    assert finetune(model, out, data, "sequence", "--resume", "--lr", "1") == 1
    assert "--lr 1.0 cannot go on from a checkpoint that was made with --lr 0.01" in capsys.readouterr().err
    assert finetune(model, tmp_path / "kept", data, "sequence", "--keep-checkpoints") == 0
    assert [path.name for path in (tmp_path / "kept").glob("checkpoint-*")] == ["checkpoint-12"]
    assert finetune(model, tmp_path / "kept", data, "sequence", "--resume", "--max-steps", "14") == 0
    assert "steps     2 of 14 in" in capsys.readouterr().out


def test_class_weights(model, tmp_path, capsys):
    """One over the shares of the examples that are learned from; a class of weight 0 is not learned."""
    rows = [{"text": text, "label": text} for text in ["paris"] * 30 + ["cat"] * 10]
    data, options = write(tmp_path, "a.jsonl", rows), ["--label-smoothing-factor", "0.1", "--held-out", "0"]
    assert finetune(model, tmp_path / "a", data, "sequence", *options, "--class-weights", "balanced") == 0
    assert "weights   cat 2, paris 0.6667\n" in capsys.readouterr().out
    assert finetune(model, tmp_path / "b", data, "sequence", *options, "--class-weights", "1", "0") == 0
    made, tokenizer = load_model(tmp_path / "b"), AutoTokenizer.from_pretrained(tmp_path / "b")
    with use_backend("numpy"):
        assert made(**tokenizer(["paris", "cat"])).logits.argmax(-1).tolist() == [0, 0]
    (tmp_path / "c.txt").write_text("\n\n".join(["the O\ncat B-X", "is O"] * 8))
    weighted = ["--class-weights", "balanced", "--held-out", "0"]
    assert finetune(model, tmp_path / "c", str(tmp_path / "c.txt"), "token", *weighted) == 0
    assert "weights   B-X 1.5, O 0.75\n" in capsys.readouterr().out
    for task, given, error in (
        ("sequence", "1 2 3", "--class-weights has 3 numbers, the labels are cat, paris"),
        ("sequence", "0 0", "expected at least one number above 0"),
        ("sequence", "balanced 2", "--class-weights has balanced beside other weights"),
        ("sequence", "much", "--class-weights is 'much', expected balanced, or a number from 0 up for each class"),
        ("qa", "balanced", "--class-weights is for --task sequence, token, "),
    ):
        assert finetune(model, tmp_path / "d", data, task, "--class-weights", *given.split()) in (1, 2)
        assert error in capsys.readouterr().err
    numbers = write(tmp_path, "d.jsonl", [{"text": "cat", "label": label / 2} for label in range(9)])
    assert finetune(model, tmp_path / "d", numbers, "sequence", "--class-weights", "1") == 1
    assert "expected data with one class for each text or word" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["sequence", "token"])
def test_labels_that_only_eval_has_are_an_error(model, tmp_path, capsys, task):
    names, known = (("text", "label"), "AB") if task == "sequence" else (("tokens", "tags"), (["O"], ["B-X"]))
    rows = [dict(zip(names, ("cat" if task == "sequence" else ["cat"], label), strict=True)) for label in known]
    other = rows[0] | {names[1]: "C" if task == "sequence" else ["C"]}
    data, measured = write(tmp_path, "a.jsonl", rows * 4), write(tmp_path, "b.jsonl", [*rows, other])
    assert finetune(model, tmp_path / "out", data, task, "--eval", measured) == 1
    error = capsys.readouterr().err
    assert "b.jsonl:3: " in error and "'C'" in error


def test_cut_texts_are_reported(model, tmp_path, capsys):
    rows = [{"text": "the cat sat " * times, "label": times} for times in (1, 2, 3)] * 10
    data, options = write(tmp_path, "a.jsonl", rows), ["--held-out", "0", "--max-steps", "1"]
    assert finetune(model, tmp_path / "out", data, "sequence", "--max-length", "8", *options) == 0
    assert "length    20 have 8 tokens, where longer texts are cut" in capsys.readouterr().out
    assert finetune(model, tmp_path / "whole", data, "sequence", "--max-length", "12", *options) == 0
    assert "longer texts are cut" not in capsys.readouterr().out


def test_numbers_of_pairs_in_a_table(model, tmp_path, capsys):
    lines = ["a,b,score", *["paris,france,4.5", "cat,mat,0.5", "the cat,is,1"] * 20]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    columns = ["--text", "a", "--text-pair", "b", "--label", "score", "--eval", str(tmp_path / "a.csv")]
    assert finetune(model, tmp_path / "out", str(tmp_path / "a.csv"), "sequence", *columns) == 0
    shown = capsys.readouterr().out
    assert "60 examples, 60 held out; numbers to predict" in shown
    assert float(shown.partition("held out  pearson ")[2].split()[0]) > 0.9
    assert load_model(tmp_path / "out").config["problem_type"] == "regression"


def test_several_labels(model, tmp_path, capsys):
    rows = [{"text": "paris", "label": ["x", "y"]}, {"text": "cat", "label": ["y"]}, {"text": "mat", "label": []}] * 20
    assert finetune(model, tmp_path / "out", write(tmp_path, "a.jsonl", rows), "sequence") == 0
    assert "2 labels (x, y)" in capsys.readouterr().out
    assert load_model(tmp_path / "out").config["problem_type"] == "multi_label_classification"


def test_tags_of_words(model, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("\n\n".join(["the O\ncat B-X\nsat I-X", "paris B-Y\nis O"] * 30))
    assert finetune(model, tmp_path / "out", str(tmp_path / "a.txt"), "token", "--max-steps", "40") == 0
    shown = capsys.readouterr().out
    assert "54 examples, 6 held out; 4 labels (B-X, B-Y, I-X, O)" in shown and "held out  precision" in shown
    assert float(shown.partition("held out  f1 ")[2].split()[0]) > 0.9


def test_answers_to_questions(model, tmp_path, capsys):
    answers = {"text": ["paris"], "answer_start": [CONTEXT.index("paris")]}
    rows = [{"question": "the capital", "context": CONTEXT, "answers": answers}] * 30
    data = write(tmp_path, "a.jsonl", rows)
    assert finetune(model, tmp_path / "out", data, "qa") == 0  # by a model of 40 positions
    shown = capsys.readouterr().out
    assert "held out  exact_match 100.0000" in shown and "held out  f1 100.0000" in shown


@pytest.mark.parametrize("pooling, task, figure", [
    (None, "similarity", "spearmanr"),
    ("cls", "pair", "first_of_all"),
    pytest.param("cls", "similarity", "spearmanr", marks=pytest.mark.slow),
    pytest.param(None, "pair", "first_of_all", marks=pytest.mark.slow),
])  # fmt: skip
def test_sentence_encoders(model, tmp_path, capsys, task, figure, pooling):
    source = model
    if pooling:
        source = save_tiny_encoder(tmp_path / "encoder", {"pooling_mode": pooling}, normalize=True)
    words = ["cat", "mat", "paris", "france", "upper", "capital"]
    if task == "similarity":
        rows = [{"text": one, "text_pair": other, "label": 5.0 * (one == other)} for one in words for other in words]
    else:
        rows = [{"text": one, "text_pair": f"{one} sat"} for one in words]
    data = write(tmp_path, "a.jsonl", rows)
    assert finetune(source, tmp_path / "out", data, task, "--eval", data, "--max-steps", "20", "--lr", "0.003") == 0
    shown = capsys.readouterr().out
    assert float(shown.partition(f"held out  {figure} ")[2].split()[0]) > 0.6
    encoder = SentenceEncoder(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| {figure} |" in card and run_card(card, tmp_path)["model"].settings.pooling == encoder.settings.pooling
    assert encoder.settings.pooling == (pooling or "mean",)
    with use_backend("numpy"):
        vectors, before = encoder.encode(words), SentenceEncoder(source).encode(words)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5) == bool(pooling)
    assert not np.allclose(vectors, before, atol=0.01)


def test_an_encoder_of_another_pooling_is_refused(tmp_path, capsys):
    source = save_tiny_encoder(tmp_path / "encoder", {"pooling_mode": "max"})
    data = write(tmp_path, "a.jsonl", [{"text": "cat", "text_pair": "mat"}] * 9)
    assert finetune(source, tmp_path / "out", data, "pair") == 1
    assert "with pooling max, expected only Transformer, Pooling (mean" in capsys.readouterr().err


@pytest.mark.parametrize("task, row, error", [
    ("sequence", {"text": "x"}, "a.jsonl:2: has no 'label'; it has 'text'"),
    ("sequence", {"label": "x"}, "a.jsonl:2: has no 'text'"),
    ("token", {"tokens": ["x"], "tags": []}, "a.jsonl:2: has 1 words and 0 tags"),
    ("qa", QUESTION | {"answers": {"text": ["z"], "answer_start": [0]}}, "a.jsonl:2: the answer"),
])  # fmt: skip
def test_a_wrong_record_is_reported_by_its_line(model, tmp_path, capsys, task, row, error):
    good = QUESTION | {"text": "x", "label": "y", "tokens": ["x"], "tags": ["O"]}
    data = write(tmp_path, "a.jsonl", [good, row])
    assert finetune(model, tmp_path / "out", data, task, "--held-out", "0", "--max-length", "20") == 1
    shown = capsys.readouterr()
    assert error in shown.err and shown.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("task, package", [("sequence", "scikit-learn"), ("similarity", "SciPy")])
def test_packages_of_metrics_are_checked_first(model, tmp_path, capsys, monkeypatch, task, package):
    find = importlib.import_module

    def missing(name, *where):
        if name.partition(".")[0] in ("sklearn", "scipy"):
            raise ImportError(name)
        return find(name, *where)

    monkeypatch.setattr(importlib, "import_module", missing)
    labels = ("x", "y") if task == "sequence" else (0.5, 1.5)
    data = write(tmp_path, "a.jsonl", [{"text": "cat", "text_pair": "mat", "label": label} for label in labels])
    assert finetune(model, tmp_path / "out", data, task) == 1
    assert f"{package} is not installed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_column_is_reported_at_the_first_line(model, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("review;stars\n" + "cat;1\n" * 20)
    assert finetune(model, tmp_path / "out", str(tmp_path / "a.csv"), "sequence") == 1
    shown = capsys.readouterr().err
    assert "a.csv:1: has no column 'label' (see --text, --label, --column); it has 'review;stars'; is its" in shown


def test_malformed_lines(model, tmp_path, capsys):
    good = '{"text": "cat", "label": "x"}\n{"text": "mat", "label": "y"}\n'
    (tmp_path / "a.jsonl").write_text(good * 10 + "{\n")
    assert finetune(model, tmp_path / "out", str(tmp_path / "a.jsonl"), "sequence") == 1
    assert "a.jsonl:21: not JSON" in capsys.readouterr().err
    assert finetune(model, tmp_path / "out", str(tmp_path / "a.jsonl"), "sequence", "--skip-malformed") == 0
    shown = capsys.readouterr().err
    assert "a.jsonl:21: not JSON" in shown and "malformed 1 record was left out" in shown


@pytest.mark.filterwarnings("ignore::bertcore.models.model.NewlyInitialisedWarning")
def test_adapters_are_trained_and_merged(model, tmp_path, capsys):
    rows = [{"text": text, "label": text} for text in ("paris", "cat")] * 40
    data, options = write(tmp_path, "a.jsonl", rows), ["--lora", "3", "--lora-targets", "query", "value"]
    options += ["--keep-checkpoints"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert finetune(model, whole, data, "sequence", *options, "--save-steps", "5") == 0
    assert "held out  accuracy" in capsys.readouterr().out
    made, base = load_model(whole), AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
    changed = {name for name, array in made.state_dict().items() if (array != base.state_dict()[name]).any()}
    assert {name.split(".")[-2] for name in changed} == {"query", "value", "classifier"}
    adapted = PeftModel.from_pretrained(base, whole / "adapter")
    with use_backend("numpy"):
        ids = [[2, 7, 9, 3]]
        np.testing.assert_allclose(adapted(ids).logits, made(ids).logits, atol=1e-5)
    parts.mkdir()
    (whole / "checkpoint-10").rename(parts / "checkpoint-10")
    assert finetune(model, parts, data, "sequence", *options, "--save-steps", "5", "--resume") == 0
    assert_same_arrays(load_model(parts).state_dict(), made.state_dict())


def test_an_encoder_by_adapters(model, tmp_path, capsys):
    rows = [{"text": text, "text_pair": other} for text, other in (("paris", "france"), ("cat", "mat"))] * 20
    data = write(tmp_path, "a.jsonl", rows)
    assert finetune(model, tmp_path / "out", data, "pair", "--lora", "2") == 0
    assert "held out  first_of_all" in capsys.readouterr().out
    assert SentenceEncoder(tmp_path / "out").encode(["paris"]).shape == (1, 39)


def test_a_run_ends_when_it_gets_no_better(model, tmp_path, capsys):
    rows = [{"text": text, "label": label} for text, label in (("paris", "a"), ("cat", "b"))] * 20
    data, options = write(tmp_path, "a.jsonl", rows), ["--early-stopping", "2", "--save-steps", "1", "--lr", "100"]
    more = ["--optim", "muon", "--bf16", "--max-steps", "40", "--keep-checkpoints"]
    assert finetune(model, tmp_path / "out", data, "sequence", *options, *more) == 0
    shown = capsys.readouterr().out
    steps = int(shown.partition("steps     ")[2].split()[0])
    assert 3 <= steps < 40
    (state,) = (tmp_path / "out").glob(f"checkpoint-{steps}/trainer_state.json")
    assert json.loads(state.read_text())["best_global_step"] == steps - 2
    settings = json.loads((state.parent / "training_args.json").read_text())
    assert settings["optim"] == "muon" and settings["bf16"] is True
