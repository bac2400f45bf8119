"""Texts that go on from others."""

import json

import numpy as np
import pytest

from bertcore import AutoModelForCausalLM, AutoTokenizer, pipeline
from bertcore.cli import main
from tests.refusals import refuses
from tests.tasks.pipelines.forms import assert_same_form
from tests.tokenization.family_folders import write_family

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
