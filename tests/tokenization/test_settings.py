"""Settings of a tokenizer, from its files and its caller, saved and read again."""

import itertools
import json
import os
import shutil

import pytest

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.files import NOTE
from bertcore.tokenization import AutoTokenizer
from tests.refusals import refuses
from tests.tokenization.corpus import HARD_TEXTS, write_json
from tests.tokenization.family_folders import write_family

load = AutoTokenizer.from_pretrained


def test_unknown_setting(roberta):
    with pytest.raises(TypeError, match="add_prefix_spaces is not a setting of a tokenizer, expected one of do_lower"):
        load(roberta, add_prefix_spaces=True)


def test_wrong_value(roberta):
    with pytest.raises(ValueError, match="add_prefix_space is 'yes', expected true, false or null"):
        load(roberta, add_prefix_space="yes")


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
