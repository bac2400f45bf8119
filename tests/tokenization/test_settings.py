"""Settings of tokenizers, padding, and the beginnings of long texts."""

import itertools
import json
import os
import random
import shutil
import sys

import numpy as np
import pytest

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.files import NOTE
from bertcore.tokenization import AutoTokenizer, engine
from bertcore.tokenization.families import FAMILIES
from tests.processes import run_python
from tests.refusals import refuses
from tests.tokenization.corpus import HARD_TEXTS, write_json
from tests.tokenization.family_folders import write_family

load = AutoTokenizer.from_pretrained


def test_unknown_setting(roberta):
    with pytest.raises(TypeError, match="add_prefix_spaces is not a setting of a tokenizer, expected one of do_lower"):
        load(roberta, add_prefix_spaces=True)


def test_option_that_tokenizer_json_cannot_follow(albert, demo_folder):
    load(albert).save_pretrained(albert)
    with pytest.raises(ValueError, match=r"tokenizer\.json has nothing that do_lower_case, keep_accents could change"):
        load(albert, do_lower_case=False, keep_accents=True)
    refuses(ValueError, "nothing that add_prefix_space could change", load, demo_folder, add_prefix_space=True)


def test_win_over_the_files(roberta):
    write_json(roberta / "tokenizer_config.json", {"model_max_length": 7, "tokenizer_class": "RobertaTokenizer"})
    assert load(roberta).model_max_length == 7
    tokenizer = load(roberta, model_max_length=5, padding_side="left", mask_token="<gap>")
    assert (tokenizer.model_max_length, tokenizer.padding_side, tokenizer.mask_token) == (5, "left", "<gap>")
    assert tokenizer.mask_token_id == len(tokenizer) - 7 + 6 and "<gap>" in tokenizer("the <gap>").tokens()


def test_own_special_tokens(roberta):
    config = {"tokenizer_class": "RobertaTokenizer", "speaker_token": "<speaker>", "add_bos_token": False}
    write_json(roberta / "tokenizer_config.json", config | {"extra_special_tokens": {"scene_token": "<scene>"}})
    tokenizer = load(roberta)
    assert tokenizer.tokenize("the<scene><speaker>") == ["the", "<scene>", "<speaker>"]
    assert tokenizer.speaker_token == "<speaker>" and tokenizer.scene_token_id == tokenizer.get_vocab()["<scene>"]


@pytest.mark.parametrize("extra", [3, "the", {"a": 3}])
def test_wrong_extra_special_tokens(roberta, extra):
    write_json(roberta / "tokenizer_config.json", {"extra_special_tokens": extra})
    refuses(CheckpointError, r"(extra_special_tokens|a) is ", load, roberta)


def test_files_of_an_unknown_family(roberta):
    for config in ({}, {"tokenizer_class": "PreTrainedTokenizerFast"}):
        write_json(roberta / "tokenizer_config.json", config)
        refuses(CheckpointError, r"has vocab\.json and merges\.txt of an unknown family", load, roberta)


def test_clean_up(albert):
    tokenizer = load(albert)
    ids = tokenizer("the . the ? 's", add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == "the . the <unk> <unk>s"
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=True).startswith("the. the")
    assert load(albert, clean_up_tokenization_spaces=True).batch_decode([ids])[0].startswith("the. the")


def test_clean_up_of_byte_bpe(roberta):
    tokenizer = load(roberta)
    ids = tokenizer("the .", add_special_tokens=False).input_ids
    with pytest.warns(UserWarning, match="does nothing for byte-level BPE"):
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=True) == "the ."


def test_tokenizer_json_of_another_model_than_the_class(albert, tmp_path):
    load(albert).save_pretrained(tmp_path / "other")
    write_json(tmp_path / "other" / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"})
    assert load(tmp_path / "other").special_tokens_map == {}


def test_generic_class(albert, tmp_path):
    load(albert).save_pretrained(tmp_path / "other")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
    write_json(tmp_path / "other" / "tokenizer_config.json", config)
    tokenizer = load(tmp_path / "other")
    assert tokenizer("the")["input_ids"] == load(albert)("the")["input_ids"]
    assert tokenizer.special_tokens_map == {"pad_token": "<pad>"}
    shutil.rmtree(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    assert load(tmp_path / "other")(HARD_TEXTS) == tokenizer(HARD_TEXTS)


def test_save_keeps_options_of_tokenizer_json(tmp_path):
    write_family(tmp_path, "BertTokenizer")
    load(tmp_path, do_lower_case=False, strip_accents=True).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    load(tmp_path).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "tokenizer_class")
    assert [config[name] for name in names] == [False, True, True, "BertTokenizer"]


@pytest.mark.parametrize("failing", [0, 1, 2, 3])
def test_save_leaves_the_old_files_when_it_fails(albert, monkeypatch, failing):
    tokenizer = load(albert)
    tokenizer.save_pretrained(albert)
    before = {file.name: file.read_bytes() for file in albert.iterdir()}
    calls, replace = itertools.count(), os.replace

    def fail(*paths):
        if next(calls) == failing:
            raise OSError(28, "No space left on device")
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fail)
        refuses(OSError, "No space left", tokenizer.save_pretrained, albert)
    assert {file.name: file.read_bytes() for file in albert.iterdir()} == before


def test_interrupted_save_is_reported(albert):
    (albert / "tokenizer.json").write_bytes(NOTE)  # beside the files it was made from
    refuses(CheckpointError, r"saving was interrupted before tokenizer\.json was in place", load, albert)


def test_special_tokens_mask(roberta):
    tokenizer = load(roberta)
    assert tokenizer.get_special_tokens_mask(tokenizer("the value").input_ids) == [1, 0, 0, 1]
    assert tokenizer.convert_tokens_to_string(["the", "Ġvalue"]) == "the value"


WORDS = ["the", " value", "  ", "ü", "\n", " of\t", "the value ", "zzz", " 12", "。", *HARD_TEXTS]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokens_are_those_of_the_whole_text(name, tmp_path, monkeypatch):
    write_family(tmp_path, name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    monkeypatch.setattr(engine, "PIECE", 1000)
    rng = random.Random(name)
    for length in (0, 1, 1999, 2000, 2001, 9000):
        text = "".join(rng.choices(WORDS, k=length))[: max(length, 0)]
        whole = tokenizer(text)["input_ids"]
        for most in (4, 7, 39, 160, len(whole) - 1, len(whole), len(whole) + 1):
            if most < 4:
                continue
            expected = tokenizer(text, truncation=True, max_length=most)["input_ids"]
            ((ids, was_cut),) = tokenizer.encode_beginnings([text], most)
            assert ids == expected
            assert was_cut == (len(whole) > most)


@pytest.mark.parametrize("name", FAMILIES)
def test_many_texts_have_the_tokens_of_each(name, tmp_path):
    """Many texts are encoded by a pool of threads, and without offsets where only the ids are needed."""
    write_family(tmp_path, name)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    rng = random.Random(name)
    texts, others = (
        ["".join(rng.choices(WORDS, k=rng.randrange(40))) for _ in range(3 * engine.PARALLEL_TEXTS)] for _ in range(2)
    )
    options = {"truncation": True, "return_offsets_mapping": True, "return_special_tokens_mask": True}
    # The library pairs all pieces of two cut texts with each other: pieces of 9 tokens took gigabytes.
    for length, rows in ((9, [(text,) for text in texts]), (99, list(zip(texts, others, strict=True)))):
        each = [dict(tokenizer(*row, max_length=length, **options)) for row in rows]
        together = tokenizer(*map(list, zip(*rows, strict=True)), max_length=length, **options)
        assert [dict(zip(together, values, strict=True)) for values in zip(*together.values(), strict=True)] == each
    each = [tokenizer(text, truncation=True, max_length=9)["input_ids"] for text in texts]
    assert [ids for ids, _ in tokenizer.encode_beginnings(texts, 9)] == each
    assert tokenizer.whole_ids(texts) == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def test_endless_words_are_cut(tmp_path, monkeypatch):
    write_family(tmp_path, "BertTokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    monkeypatch.setattr(engine, "PIECE", 1000)
    ((ids, was_cut),) = tokenizer.encode_beginnings(["z" * 6000], 5)
    assert was_cut and ids == tokenizer("z " * 6000, truncation=True, max_length=5)["input_ids"]


MEMORY = """
import re, sys
from pathlib import Path
from bertcore import AutoTokenizer

def resident(name):
    return int(re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

tokenizer, text = AutoTokenizer.from_pretrained(sys.argv[1]), "the value of " * 1_200_000
tokenizer.encode_beginnings(["the"], 512)
before = resident("VmRSS")
((ids, was_cut),) = tokenizer.encode_beginnings([text], 512)
assert was_cut and len(ids) == 512
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_for_a_line_of_15_megabytes(tmp_path):
    write_family(tmp_path, "BertTokenizer")
    assert int(run_python(MEMORY, str(tmp_path))[0]) < 2 * 15e6


def test_batch_is_padded_as_in_a_call(tokenizer):
    batch = tokenizer(HARD_TEXTS)
    rows = [tokenizer(text) for text in HARD_TEXTS]
    longest = {"padding": "max_length", "max_length": 300}
    for options in ({}, {"pad_to_multiple_of": 16}, {"padding_side": "left"}, longest, {"padding": False}):
        wanted = tokenizer(HARD_TEXTS, **({"padding": True} | options))
        assert tokenizer.pad(batch, **options) == tokenizer.pad(rows, **options) == wanted
    arrays = tokenizer.pad(rows, return_tensors="np")
    assert arrays.input_ids.tolist() == tokenizer.pad(rows).input_ids and arrays.input_ids.dtype == np.int64
    assert tokenizer.pad([{"input_ids": np.array(row)} for row in batch.input_ids]) == {
        name: rows for name, rows in tokenizer.pad(batch).items() if name != "token_type_ids"
    }


def test_other_columns_stay(tokenizer):
    rows = [tokenizer("the") | {"label": 1}, tokenizer("the value") | {"label": 0}]
    found = tokenizer.pad(rows, return_tensors="np")
    assert found["label"].tolist() == [1, 0] and found.input_ids.shape == (2, 4)
    with pytest.raises(ValueError, match="words cannot form an array"):
        tokenizer.pad([rows[0] | {"words": [1]}, rows[1] | {"words": [1, 2]}], return_tensors="np")


def test_one_row(tokenizer):
    found = tokenizer.pad(tokenizer("the"), padding="max_length", max_length=5)
    assert found.attention_mask == [1, 1, 1, 0, 0]
    assert tokenizer.pad([]) == {"input_ids": [], "attention_mask": []}


@pytest.mark.parametrize(("rows", "error", "message"), [
    (3, TypeError, "encoded_inputs has no input_ids"),
    ({"ids": [1]}, TypeError, "encoded_inputs has no input_ids"),
    ([[1, 2]], TypeError, "encoded_inputs has items that are not mappings"),
    ([{"input_ids": [1]}, {"ids": [1]}], ValueError, r"encoded_inputs\[1\] has ids, expected input_ids"),
    ({"input_ids": [[1]], "labels": [1, 2]}, ValueError, "labels has 2 rows, expected 1"),
    ({"input_ids": [["a"]]}, TypeError, r"input_ids\[0\]\[0\] is str, expected an integer"),
])  # fmt: skip
def test_wrong_rows(tokenizer, rows, error, message):
    refuses(error, message, tokenizer.pad, rows)
