"""`bertcore pretrain`: a model and its tokenizer from texts, interrupted runs, and what is refused."""

import errno
import json
import re

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, AutoTokenizer, load_model
from bertcore.checkpoint import open_checkpoint
from bertcore.cli import main
from bertcore.training import checkpoints
from bertcore.training import run as training_run
from bertcore.training.data import StoredExamples
from tests.tiny_bert import CONFIG, random_texts
from tests.tiny_families import tiny_config
from tests.tokenization.corpus import write_json
from tests.tokenization.family_folders import write_family

GPT2 = {"model_type": "gpt2", "vocab_size": 300, "n_embd": 24, "n_layer": 1, "n_head": 2, "n_positions": 32}
STEPS = ["--max-steps", "3", "--batch", "4", "--backend", "numpy", "--held-out", "0.1"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a corpus and configs."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "corpus").mkdir()
    texts = random_texts(60, longest=30)
    (folder / "corpus" / "a.txt").write_text("\n\n".join(texts[:30]))
    lines = [json.dumps({"text": text}) for text in texts[30:]]
    (folder / "corpus" / "b.jsonl").write_text("\n".join([lines[0], "{", *lines[1:], '"text"']))
    (folder / "good.txt").write_text("\n\n".join(texts))
    (folder / "bert.json").write_text(json.dumps(CONFIG))
    (folder / "albert.json").write_text(json.dumps({**CONFIG, "model_type": "albert"}))
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "embedding_size": 10}
    (folder / "electra.json").write_text(json.dumps({**CONFIG, **sizes, "model_type": "electra"}))
    (folder / "gpt2.json").write_text(json.dumps(GPT2))
    (folder / "xlnet.json").write_text(json.dumps(tiny_config("xlnet-base-cased")))
    return folder


def pretrain(inputs, out, *options, corpus="good.txt", model="bert.json"):
    return main(["pretrain", str(inputs / corpus), "--model", str(inputs / model), "--out", str(out), *STEPS, *options])


def weights(folder):
    opened = open_checkpoint(folder)
    return {name: opened[name].tobytes() for name in opened}


def test_a_new_model_with_its_tokenizer(inputs, tmp_path, capsys):
    assert pretrain(inputs, tmp_path / "out", "--skip-malformed", "--vocab-size", "70", corpus="corpus") == 0
    shown = capsys.readouterr()
    assert "b.jsonl:2: not JSON" in shown.err and "b.jsonl:32: a JSON str, expected an object in each line" in shown.err
    assert "malformed 2 records were left out" in shown.err
    for line in ("steps     3 in", "loss      ", "held out  loss", "held out  masked_accuracy", "held out  perplexity"):
        assert line in shown.out
    model, tokenizer = load_model(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert isinstance(model, AutoModelForMaskedLM)
    assert model.config["vocab_size"] == len(tokenizer) <= 70
    assert tokenizer.model_max_length == CONFIG["max_position_embeddings"]
    stored = StoredExamples(tmp_path / "out" / "examples")
    assert {len(stored[index]["input_ids"]) <= 40 for index in range(len(stored))} == {True}


@pytest.mark.parametrize("objective, config", [("mlm+nsp", "bert.json"), ("mlm+sop", "albert.json")])
def test_pairs_of_sentences(inputs, tmp_path, capsys, objective, config):
    pytest.importorskip("sentencex")
    text = "\n\n".join(f"{one}. {other}. {one}." for one in random_texts(9) for other in ("Paris", "The cat sat"))
    (tmp_path / "a.txt").write_text(text)
    options = ["--objective", objective, "--mask", "word", "--vocab-size", "70"]
    assert pretrain(inputs, tmp_path / "out", *options, corpus=tmp_path / "a.txt", model=config) == 0
    shown = capsys.readouterr().out
    assert "held out  masked_accuracy" in shown and "held out  pair_accuracy" in shown
    example = StoredExamples(tmp_path / "out" / "examples")[0]
    assert set(example["token_type_ids"]) == {0, 1}
    assert example["next_sentence_label" if objective == "mlm+nsp" else "sentence_order_label"] in (0, 1)


def test_remains_of_a_run_without_checkpoints(inputs, tmp_path):
    (tmp_path / "out" / ".examples.0123456789abcdef.tmp").mkdir(parents=True)  # of a process that is gone
    (tmp_path / "out" / "examples").mkdir()
    (tmp_path / "out" / "examples" / "examples.json").write_text("{}")
    (tmp_path / "out" / "log.jsonl").write_text("{}\n")
    (tmp_path / "out" / "loss.png").touch()
    assert pretrain(inputs, tmp_path / "out") == 0
    assert len(StoredExamples(tmp_path / "out" / "examples")) > 0
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("objective, model, options, metric", [
    ("clm", "gpt2.json", [], "next_word_accuracy"),
    ("mlm+sbo", "bert.json", [], "masked_accuracy"),
    ("plm", "xlnet.json", ["--vocab-size", "90"], "masked_accuracy"),
])  # fmt: skip
def test_objectives(inputs, tmp_path, capsys, objective, model, options, metric):
    options = ["--objective", objective, "--max-length", "16", *options]
    assert pretrain(inputs, tmp_path / "out", *options, model=model) == 0
    assert metric in capsys.readouterr().out
    assert len(StoredExamples(tmp_path / "out" / "examples")[0]["input_ids"]) <= 16
    spans = any(name.startswith("span_boundary.") for name in weights(tmp_path / "out"))
    assert spans == (objective == "mlm+sbo")


def test_translations(inputs, tmp_path, capsys):
    texts = random_texts(30)
    pairs = [{"en": f"the {one}", "de": f"cat {other}"} for one, other in zip(texts, texts[::-1], strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    options = ["--objective", "tlm", "--column", "en", "--pair-column", "de", "--vocab-size", "70"]
    assert pretrain(inputs, tmp_path / "out", *options, corpus=tmp_path / "a.jsonl") == 0
    assert "masked_accuracy" in capsys.readouterr().out
    example = StoredExamples(tmp_path / "out" / "examples")[0]
    assert set(example["token_type_ids"]) == {0, 1} and len(example["restart"]) == 2
    assert pretrain(inputs, tmp_path / "other", *options[:4], corpus=tmp_path / "a.jsonl") == 1
    assert "'text_pair'" in capsys.readouterr().err


@pytest.fixture
def mentions(tmp_path):
    """A LUKE's config and tokenizer, and texts with entities."""
    (tmp_path / "luke").mkdir()
    write_family(tmp_path / "luke", "LukeTokenizer")
    vocabulary = {name: number for number, name in enumerate(("[PAD]", "[UNK]", "[MASK]", "[MASK2]", "A", "B"))}
    write_json(tmp_path / "luke" / "entity_vocab.json", vocabulary)
    write_json(tmp_path / "luke.json", tiny_config("luke-base"))
    record = {"text": "the value the values", "entity_spans": [[0, 3], [4, 9], [14, 20]], "entities": ["A", "B", "A"]}
    (tmp_path / "good.jsonl").write_text("\n".join([json.dumps(record)] * 20))
    return record


def test_entities(inputs, mentions, tmp_path, capsys):
    options = ["--objective", "mlm+entities", "--tokenizer", str(tmp_path / "luke"), "--save-steps", "2"]
    given = {"corpus": tmp_path / "good.jsonl", "model": tmp_path / "luke.json"}
    assert pretrain(inputs, tmp_path / "out", *options, **given) == 0
    assert "masked_accuracy" in capsys.readouterr().out
    model, tokenizer = load_model(tmp_path / "out"), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert model.config["entity_vocab_size"] == len(tokenizer.entity_vocab) == 6
    before = weights(tmp_path / "out")
    assert pretrain(inputs, tmp_path / "out", *options, "--resume", **given) == 0
    assert weights(tmp_path / "out") == before
    assert pretrain(inputs, tmp_path / "on", *options[:2], **given | {"model": tmp_path / "out"}) == 0
    for wrong, error in (
        ({"entities": ["A"]}, "has 3 entity_spans and 1 entities"),
        ({"entities": ["A", "B", 3]}, "'entities' is .*, expected a list of names"),
        ({"entity_spans": [[0, 3], [4, 9], [14, 21]]}, "'entity_spans' is .*, characters of the text, from 0 to 20"),
        ({"entity_spans": None}, "'entity_spans' is null"),
        ({"text": 3}, "'text' is 3, expected a text"),
    ):
        lines = [json.dumps(mentions), json.dumps(mentions | wrong)]
        (tmp_path / "wrong.jsonl").write_text("\n".join(lines))
        assert pretrain(inputs, tmp_path / "no", *options, **given | {"corpus": tmp_path / "wrong.jsonl"}) == 1
        assert re.search(f"wrong.jsonl:2: {error}", capsys.readouterr().err)
    (tmp_path / "luke" / "entity_vocab.json").unlink()
    for some, model, error in (
        (options[:2], tmp_path / "luke.json", "mlm.entities needs --tokenizer: LUKE's"),
        (options, tmp_path / "luke.json", "needs entity_vocab.json beside the tokenizer, which has none"),
        (options, "bert.json", "mlm.entities is for LUKE, whose entities .*bert.json does not have"),
    ):
        assert pretrain(inputs, tmp_path / "no", *some, **given | {"model": model}) == 1
        assert re.search(error, capsys.readouterr().err)


@pytest.mark.parametrize("options", [["--embeddings", "gradient_disentangled"], ["--generator-size", "0.5"]])
def test_replaced_tokens(inputs, tmp_path, capsys, options):
    options = ["--objective", "rtd", "--vocab-size", "70", "--save-steps", "2", *options]
    assert pretrain(inputs, tmp_path / "out", *options, model="electra.json") == 0
    shown = capsys.readouterr().out
    for name in ("masked_accuracy", "replaced_accuracy", "replaced_precision"):
        assert f"held out  {name} " in shown and f"held out  {name}_trivial " in shown
    found = [load_model(tmp_path / "out" / part) for part in ("generator", "discriminator")]
    assert [type(model).__name__ for model in found] == ["AutoModelForMaskedLM", "Discriminator"]
    assert found[0].spec.hidden_size == (12 if "--generator-size" in options else 6)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out" / "discriminator")) == found[1].spec.vocab_size
    before = weights(tmp_path / "out" / "discriminator")
    assert pretrain(inputs, tmp_path / "out", *options[:6], "--resume", model="electra.json") == 1
    error = f"no {options[6]} cannot go on from a checkpoint that was made with {options[6]} {options[7]}"
    assert error in capsys.readouterr().err
    assert pretrain(inputs, tmp_path / "out", *options, "--resume", model="electra.json") == 0
    assert weights(tmp_path / "out" / "discriminator") == before


def test_published_pairs_are_trained_on(inputs, masked_lm_folder, tmp_path, capsys):
    options, first = ["--objective", "rtd", "--lr", "1e-3"], tmp_path / "first"
    assert pretrain(inputs, first, *options, "--vocab-size", "70", model="electra.json") == 0
    pair = ["--generator", str(first / "generator")]
    assert pretrain(inputs, tmp_path / "both", *options, model=first) == 0
    assert pretrain(inputs, tmp_path / "each", *options, *pair, model=first / "discriminator") == 0
    for part in ("generator", "discriminator"):
        found = [weights(tmp_path / name / part) for name in ("first", "both", "each")]
        assert found[0] != found[1] == found[2]
        assert len(AutoTokenizer.from_pretrained(tmp_path / "each" / part)) <= 70
    capsys.readouterr()
    for model, more, error in (
        ("discriminator", [], "has no generator beside it: give --generator"),
        ("discriminator", [*pair, "--generator-size", "0.5"], "whose generator exists: leave out"),
        (masked_lm_folder, pair, "expected an AutoModelForPreTraining with a head for replaced tokens"),
        ("", pair, "has a generator: leave out --generator and --embeddings"),
    ):
        assert pretrain(inputs, tmp_path / "no", *options, *more, model=first / model) == 1
        assert re.search(error, capsys.readouterr().err)
    assert pretrain(inputs, tmp_path / "no", *options, *pair, model="electra.json") == 1
    assert "--generator goes with a checkpoint" in capsys.readouterr().err


def test_a_checkpoint_is_trained_on(inputs, masked_lm_folder, tmp_path):
    assert pretrain(inputs, tmp_path / "a", model=masked_lm_folder) == 0
    before, after = weights(masked_lm_folder), weights(tmp_path / "a")
    assert before.keys() == after.keys() and before != after
    assert len(AutoTokenizer.from_pretrained(tmp_path / "a")) == len(AutoTokenizer.from_pretrained(masked_lm_folder))


def test_texts_from_stdin(inputs, masked_lm_folder, tmp_path, stdin, capsys):
    stdin((inputs / "good.txt").read_bytes())
    options = ["--model", str(inputs / "bert.json"), "--out", str(tmp_path / "a"), *STEPS]
    assert main(["pretrain", "-", *options]) == 1
    assert "can be read once, and a tokenizer is learned from it first: give --tokenizer" in capsys.readouterr().err
    assert main(["pretrain", "-", *options, "--tokenizer", str(masked_lm_folder)]) == 0


def test_an_interrupted_run_goes_on_to_the_same_bits(inputs, tmp_path, capsys, monkeypatch, interrupted):
    assert pretrain(inputs, tmp_path / "whole") == 0
    with interrupted():
        assert pretrain(inputs, tmp_path / "parts") == 130
    shown = capsys.readouterr().err
    assert "the same command with --resume goes on" in shown and "interrupted" in shown
    assert [path.name for path in (tmp_path / "parts").glob("checkpoint-*")] == ["checkpoint-2"]
    assert pretrain(inputs, tmp_path / "parts") == 1
    assert "holds files: go on with --resume" in capsys.readouterr().err
    paths = f"--tokenizer {inputs}", f"--model {inputs / 'gpt2.json'}"
    for other in ("--column body", "--lr 0.001", "--bf16", "--seed 3", *paths):
        assert pretrain(inputs, tmp_path / "parts", "--resume", *other.split()) == 1
        assert f"{other} cannot go on from a checkpoint that was made with " in capsys.readouterr().err
    monkeypatch.setattr("bertcore.cli.training.store_examples", None)  # they are there
    assert pretrain(inputs, tmp_path / "parts", "--resume") == 0
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    shown = capsys.readouterr().out
    assert "resumed   after step 2 of 3\n" in shown and "steps     1 of 3 in " in shown
    assert "Made by `bertcore pretrain` (mlm) from `bert.json`." in (tmp_path / "parts" / "README.md").read_text()
    assert pretrain(inputs, tmp_path / "parts", "--resume") == 0
    shown = capsys.readouterr().out
    assert "finished  no step is left to train: the run had made all 3 before\n" in shown and "steps  " not in shown
    assert "resumed" not in shown
    assert pretrain(inputs, tmp_path / "parts", "--resume", "--max-steps", "4") == 0
    shown = capsys.readouterr()
    assert "resumed   after step 3 of 4\n" in shown.out and "steps     1 of 4 in " in shown.out
    assert "max_steps is 4, in " in shown.err and "it was 3: the learning rates now follow" in shown.err


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_loss_of_nan_is_an_error(inputs, tmp_path, capsys):
    assert pretrain(inputs, tmp_path, "--lr", "1e30", "--warmup", "0", "--max-steps", "1") == 1
    assert "the held-out loss is nan" in capsys.readouterr().err


def test_failed_runs_are_reported_in_a_line(inputs, tmp_path, capsys, monkeypatch):
    def full(file, arrays):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_safetensors", full)
        assert pretrain(inputs, tmp_path / "full") == 1
    shown = capsys.readouterr().err
    assert re.search("bertcore pretrain: .*No space left on device while writing .*checkpoint-3; there is no", shown)
    monkeypatch.setattr(training_run, "grad_norm", lambda grads: np.array(np.inf))
    assert pretrain(inputs, tmp_path / "diverged") == 1
    shown = capsys.readouterr().err
    assert re.search("bertcore pretrain: step 1: the loss is .*diverged-1 holds .*\n", shown)


def test_adapters_beside_a_checkpoint(inputs, tmp_path, capsys):
    assert pretrain(inputs, tmp_path / "base") == 0
    base, options = str(tmp_path / "base"), ["--lora", "2", "--save-steps", "2"]
    corpus = ["pretrain", str(inputs / "good.txt"), "--model", base, *STEPS, *options]
    assert main([*corpus, "--out", str(tmp_path / "whole")]) == 0
    whole, before = weights(tmp_path / "whole"), weights(base)
    assert {name.split(".")[2] for name in whole if whole[name] != before[name]} == {"layer"}
    (tmp_path / "parts").mkdir()
    (tmp_path / "whole" / "checkpoint-2").rename(tmp_path / "parts" / "checkpoint-2")
    (tmp_path / "whole" / "examples").rename(tmp_path / "parts" / "examples")
    assert main([*corpus, "--out", str(tmp_path / "parts"), "--resume", "--mask-share", "0.3"]) == 1
    assert "--mask-share 0.3 cannot go on from a checkpoint that was made with no --mask" in capsys.readouterr().err
    assert main([*corpus, "--out", str(tmp_path / "parts"), "--resume"]) == 0
    assert weights(tmp_path / "parts") == whole
