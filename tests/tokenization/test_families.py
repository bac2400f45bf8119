"""Every family's tokenizer from hand-made older files: special tokens, templates, ids, settings, and broken files."""

import base64
import itertools
import json
import os
import pickle
import shutil

import pytest

from bertcore.checkpoint import CheckpointError, replacing
from bertcore.tokenization import AutoTokenizer
from bertcore.tokenization.engine import _copy
from bertcore.tokenization.families import CLASS_OF_MODEL_TYPE, FAMILIES
from tests.tokenization.corpus import HARD_TEXTS, write_json
from tests.tokenization.family_folders import (
    BYTE_BPE,
    SENTENCEPIECE,
    WORD_PIECE,
    sentencepiece_model,
    write_byte_bpe,
    write_family,
)
from tests.tokenization.sentencepiece_writer import BYTE, charsmap, integer_field, model, piece

load = AutoTokenizer.from_pretrained

# class name: (its tokens of one text "the value", of the pair "the", " value", and the pair's types)
TEMPLATES = {
    "BertTokenizer": ("[CLS] the value [SEP]", "[CLS] the [SEP] value [SEP]", [0, 0, 0, 1, 1]),
    "RobertaTokenizer": ("<s> the Ġvalue </s>", "<s> the </s> </s> Ġvalue </s>", [0] * 6),
    "LukeTokenizer": ("<s> the Ġvalue </s>", "<s> the </s> </s> Ġvalue </s>", [0] * 6),
    "DebertaTokenizer": ("[CLS] the Ġvalue [SEP]", "[CLS] the [SEP] [SEP] Ġvalue [SEP]", [0] * 6),
    "GPT2Tokenizer": ("the Ġvalue", "the Ġvalue", [0, 1]),
    "AlbertTokenizer": ("[CLS] ▁the ▁value [SEP]", "[CLS] ▁the [SEP] ▁value [SEP]", [0, 0, 0, 1, 1]),
    "XLNetTokenizer": ("▁the ▁value <sep> <cls>", "▁the <sep> ▁value <sep> <cls>", [0, 0, 1, 1, 2]),
    "XLMRobertaTokenizer": ("<s> ▁the ▁value </s>", "<s> ▁the </s> </s> ▁value </s>", [0] * 6),
    "MLukeTokenizer": ("<s> ▁the ▁value </s>", "<s> ▁the </s> </s> ▁value </s>", [0] * 6),
    "CamembertTokenizer": ("<s> ▁the ▁value </s>", "<s> ▁the </s> </s> ▁value </s>", [0] * 6),
    "DebertaV2Tokenizer": ("[CLS] ▁the ▁value [SEP]", "[CLS] ▁the [SEP] ▁value [SEP]", [0, 0, 0, 1, 1]),
}
TEMPLATES |= dict.fromkeys(WORD_PIECE, TEMPLATES["BertTokenizer"])


@pytest.fixture(params=FAMILIES)
def family(request, tmp_path):
    """(class name, folder) of each family."""
    write_family(tmp_path, request.param)
    return request.param, tmp_path


@pytest.fixture
def roberta(tmp_path):
    write_family(tmp_path, "RobertaTokenizer")
    return tmp_path


@pytest.fixture
def albert(tmp_path):
    write_family(tmp_path, "AlbertTokenizer")
    return tmp_path


class TestTable:
    def test_every_family_is_tested(self):
        assert set(TEMPLATES) == set(FAMILIES) == {*BYTE_BPE, *SENTENCEPIECE, *WORD_PIECE}

    def test_model_types(self):
        assert set(CLASS_OF_MODEL_TYPE.values()) == set(FAMILIES)

    @pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
    def test_templates_name_special_tokens(self, family):
        parts = {part.split(":")[0] for part in f"{family.single} {family.pair}".split()} - {"$A", "$B"}
        layout = {entry for entry in (*family.layout.head, *family.layout.tail) if isinstance(entry, str)}
        assert parts | layout <= family.special_tokens.keys()


class TestFamilies:
    def test_template(self, family):
        name, folder = family
        tokenizer, (single, pair, types) = load(folder), TEMPLATES[name]
        assert tokenizer("the value").tokens() == single.split()
        found = tokenizer("the", " value", return_token_type_ids=True, return_special_tokens_mask=True)
        assert found.tokens() == pair.split() and found.token_type_ids == types
        special = set(tokenizer.all_special_tokens)
        assert found.special_tokens_mask == [int(token in special) for token in pair.split()]

    def test_special_tokens_have_ids_of_their_own(self, family):
        tokenizer = load(family[1])
        ids = tokenizer.get_vocab()
        assert len(set(ids.values())) == len(ids) == len(tokenizer)
        assert tokenizer.all_special_ids == [ids[token] for token in tokenizer.all_special_tokens]
        assert all(tokenizer.decode([number]) for number in tokenizer.all_special_ids)
        assert tokenizer.decode(tokenizer.all_special_ids, skip_special_tokens=True) == ""

    def test_padding(self, family):
        name, folder = family
        tokenizer = load(folder, pad_token="<|endoftext|>") if name == "GPT2Tokenizer" else load(folder)
        found = tokenizer(["the", "the value"], padding=True)
        assert found.attention_mask[0] == (
            [0, 1, 1, 1] if name == "XLNetTokenizer" else [1] * (len(found[0]) - 1) + [0]
        )
        assert tokenizer.pad_token_id in found.input_ids[0]

    def test_settings_by_model_type(self, family):
        name, folder = family
        wanted = load(folder)
        (folder / "tokenizer_config.json").unlink()
        model_types = [model_type for model_type, of in CLASS_OF_MODEL_TYPE.items() if of == name]
        for config in ({"model_type": model_types[0]}, {"model_type": "any", "tokenizer_class": f"{name}Fast"}):
            write_json(folder / "config.json", config)
            found = load(folder)
            assert found("the value") == wanted("the value") and found.special_tokens_map == wanted.special_tokens_map

    def test_saved(self, family, tmp_path):
        tokenizer = load(family[1])
        files = tokenizer.save_pretrained(tmp_path / "saved" / "deeper")
        assert sorted(file.rsplit("/")[-1] for file in files) == ["tokenizer.json", "tokenizer_config.json"]
        assert sorted(map(str, (tmp_path / "saved" / "deeper").iterdir())) == sorted(files)
        again = load(tmp_path / "saved" / "deeper")
        assert again._backend.to_str() == tokenizer._backend.to_str()
        names = set(vars(tokenizer)) - {"_backend", "_engine", "_settings", "_family"}
        assert {name: getattr(again, name) for name in names} == {name: getattr(tokenizer, name) for name in names}
        assert again._family is tokenizer._family or family[0] in WORD_PIECE

    def test_copies_for_truncation_and_other_processes(self, family):
        tokenizer = load(family[1])
        assert _copy(tokenizer._backend).to_str() == tokenizer._backend.to_str()
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again(HARD_TEXTS) == tokenizer(HARD_TEXTS) and type(again) is type(tokenizer)

    def test_missing_files(self, family):
        name, folder = family
        wanted = FAMILIES[name].vocabulary_files
        (folder / wanted[-1]).unlink()
        told = f"has neither tokenizer.json nor {' and '.join(wanted)}, which make a {name}; it holds"
        with pytest.raises(CheckpointError, match=told):
            load(folder)

    def test_truncation_keeps_the_special_tokens(self, family):
        name, folder = family
        single = TEMPLATES[name][0].split()
        special = [token for token in single if "the" not in token and "value" not in token]
        cut = load(folder)("the value " * 9, truncation=True, max_length=len(special) + 2).tokens()
        assert [token for token in cut if token in special] == special and len(cut) == len(single)


class TestByteBpe:
    def test_prefix_space(self, roberta):
        assert load(roberta, add_prefix_space=True)("the value").tokens() == ["<s>", "Ġthe", "Ġvalue", "</s>"]
        load(roberta).save_pretrained(roberta)
        again = load(roberta, add_prefix_space=True)
        assert again("the").tokens() == ["<s>", "Ġthe", "</s>"]
        (roberta / "tokenizer.json").unlink()
        assert again._backend.to_str() == load(roberta, add_prefix_space=True)._backend.to_str()

    def test_offsets_leave_out_the_space(self, roberta):
        assert load(roberta)("the value", return_offsets_mapping=True).offset_mapping[2] == (4, 9)

    def test_words(self, roberta):
        words = ["the", "values", "the"]
        found = load(roberta, add_prefix_space=True)(words, is_split_into_words=True)
        assert found.tokens() == ["<s>", "Ġthe", "Ġvalue", "s", "Ġthe", "</s>"]
        assert found.word_ids() == [None, 0, 1, 1, 2, None]
        assert found.word_to_tokens(1) == (2, 4) and found.token_to_word(-2) == 2
        assert found.char_to_token(0) == 1 and found.token_to_chars(3) == (5, 6)
        assert load(roberta)(words, is_split_into_words=True).tokens() == ["<s>", "the", "value", "s", "the", "</s>"]

    @pytest.mark.parametrize(
        ("text", "pair", "told"),
        [
            ("the", None, r"text is str; expected a list of words \(is_split_into_words\)"),
            (["the", 3], None, r"text\[1\] is int; expected a string"),
            ([["the"], "the"], None, r"text\[1\] is str; expected a list of words"),
            ([["the"], ["the", None]], None, r"text\[1\]\[1\] is NoneType; expected a string"),
            (["the"], [["the"]], r"text_pair\[0\] is list; expected a string"),
            ([["the"]], 3, "text_pair is int; expected a list of words, or a list of such lists"),
            ({"the": 1}, None, "text is dict; expected a list of words"),
        ],
    )
    def test_what_is_no_words(self, roberta, text, pair, told):
        with pytest.raises(TypeError, match=told):
            load(roberta)(text, pair, is_split_into_words=True)

    def test_lone_surrogate_among_words(self, roberta):
        with pytest.raises(ValueError, match=r"text\[1\]\[0\] is not valid Unicode"):
            load(roberta)([["the"], ["\ud800"]], is_split_into_words=True)

    @pytest.mark.parametrize(
        "merges", ["t h\nth e\n", "#version: 0.2\nt h\nth e", "#version: 0.2\r\nt h\r\nth e\r\n\r\n"]
    )
    def test_forms_of_merges(self, roberta, merges):
        (roberta / "merges.txt").write_bytes(merges.encode())
        assert load(roberta).tokenize("the") == ["the"]

    @pytest.mark.parametrize(
        ("name", "content", "told"),
        [
            ("vocab.json", b"\xff", r"vocab\.json is not valid JSON"),
            ("vocab.json", b"[1]", r"vocab\.json holds a JSON list; expected an object"),
            ("vocab.json", b"[" * 100_000, r"vocab\.json cannot be read: its JSON is nested too deeply"),
            ("vocab.json", b'{"a": "0"}', "the id of 'a' is '0'; expected an integer"),
            ("vocab.json", b'{"a": true}', "the id of 'a' is True; expected an integer"),
            ("vocab.json", b'{"a": 0, "a": 0}', "a token occurs twice"),
            ("vocab.json", b'{"a": 0, "b": 0}', "2 tokens share 1 ids"),
            ("vocab.json", b'{"a": 0, "b": 2}', "2 tokens have ids other than 0 to 1: 1 missing"),
            ("vocab.json", b'{"a": 0, "b": -1}', "2 tokens have ids other than 0 to 1: 1 missing"),
            ("vocab.json", b'{"a": 0, "b": 1e30}', "the id of 'b' is 1e[+]30; expected an integer"),
            ("merges.txt", b"\xff\xfe", r"merges\.txt is not UTF-8"),
            ("merges.txt", b"t h\nt h e\n", "line 2 has 3 parts; expected two tokens"),
            ("merges.txt", b"t h\nth\n", "line 2 has 1 parts"),
            ("merges.txt", b"#version: 0.2\nt x\n", "line 2 merges .*; the vocabulary lacks 'x'"),
            ("merges.txt", b"h t\n", "line 1 merges .*; the vocabulary lacks 'ht'"),
        ],
    )
    def test_broken(self, roberta, name, content, told):
        (roberta / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=told):
            load(roberta)

    def test_token_that_is_no_unicode(self, tmp_path):
        write_byte_bpe(tmp_path, ["<s>", "\ud800"])
        write_json(tmp_path / "config.json", {"model_type": "roberta"})
        with pytest.raises(CheckpointError, match=r"vocab\.json cannot be read by the tokenizers library"):
            load(tmp_path)


class TestSentencePiece:
    def test_fairseq_ids(self, tmp_path):
        """fairseq's vocabularies: other special tokens first, the file's pieces moved behind them, <mask> last."""
        write_family(tmp_path, "XLMRobertaTokenizer")
        tokenizer = load(tmp_path)
        assert tokenizer.convert_ids_to_tokens(range(6)) == ["<s>", "<pad>", "</s>", "<unk>", "▁the", "▁The"]
        assert tokenizer.mask_token_id == len(tokenizer) - 1
        write_family(tmp_path, "CamembertTokenizer")
        french = load(tmp_path)
        first = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "▁the"]
        assert french.convert_ids_to_tokens(range(8)) == first
        assert french.tokenize("the日") == ["▁the", "日"] and french("日").input_ids[2] == french.unk_token_id

    def test_mluke_is_xlm_roberta_with_entity_tokens(self, tmp_path):
        write_family(tmp_path, "XLMRobertaTokenizer")
        plain = load(tmp_path)
        write_family(tmp_path, "MLukeTokenizer")
        size = len(plain)
        write_json(tmp_path / "added_tokens.json", {"<ent>": size, "<ent2>": size + 1})
        tokenizer = load(tmp_path)
        assert tokenizer(HARD_TEXTS) == plain(HARD_TEXTS)
        assert (tokenizer.entity_1_token_id, tokenizer.entity_2_token_id) == (size, size + 1)
        write_json(tmp_path / "entity_vocab.json", {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[MASK2]": 3})
        found = load(tmp_path, task="entity_classification")("the value the", entity_spans=[(4, 9)])
        assert found.tokens() == ["<s>", "▁the", "<ent>", "▁value", "<ent>", "▁the", "</s>"]
        assert found.entity_position_ids == [[2, 3, 4, *[-1] * 27]]

    def test_normalization(self, albert):
        assert load(albert).tokenize("ﬁ\u00a0THE") == ["▁", "fi", "▁the"]
        assert load(albert, do_lower_case=False).tokenize("The") == ["▁The"]
        assert load(albert, keep_accents=True).tokenize("thé") == ["▁", "t", "h", "é"]
        assert load(albert).tokenize("thé") == ["▁the"]

    def test_symbols_are_matched_in_the_text(self, albert):
        tokenizer = load(albert)
        assert tokenizer.tokenize("the<new>the") == ["▁the", "<new>", "▁the"]
        assert "<new>" not in tokenizer.all_special_tokens
        assert "<new>" in tokenizer.decode(tokenizer("the<new>").input_ids, skip_special_tokens=True)

    def test_byte_fallback(self, albert):
        control, words = ["<pad>", "[CLS]", "[SEP]", "[MASK]"], ["▁the", "▁"]
        data = sentencepiece_model(control, ("<unk>", 1), integer_field(35, 1), words)
        data += b"".join(
            b"\x0a" + bytes([len(one)]) + one for one in (piece(f"<0x{n:02X}>", kind=BYTE) for n in range(256))
        )
        (albert / "spiece.model").write_bytes(data)
        tokenizer = load(albert)
        assert tokenizer.tokenize("the 日") == ["▁the", "▁", "<0xE6>", "<0x97>", "<0xA5>"]
        assert tokenizer.decode(tokenizer("the 日").input_ids, skip_special_tokens=True) == "the 日"

    def test_no_space_before_the_text(self, albert):
        data = model([], b"", integer_field(3, 0))
        (albert / "spiece.model").write_bytes((albert / "spiece.model").read_bytes() + data)
        assert load(albert).tokenize("the the") == ["t", "h", "e", "t", "h", "e"]
        assert load(albert, add_prefix_space=True).tokenize("the the") == ["▁the", "▁the"]

    def test_broken_map_of_characters(self, albert):
        """A tokenizer.json with a map that leads outside: the library's panic is an ordinary error."""
        load(albert).save_pretrained(albert)
        content = json.loads((albert / "tokenizer.json").read_text())
        (step,) = [one for one in content["normalizer"]["normalizers"] if one["type"] == "Precompiled"]
        data = charsmap({"ﬁ": "fi"})
        step["precompiled_charsmap"] = base64.b64encode(data[:4] + b"\0\0\xff\xff" + data[8:]).decode()
        write_json(albert / "tokenizer.json", content)
        with pytest.raises(RuntimeError, match="the tokenizers library failed, as it does on a broken tokenizer"):
            load(albert)("ﬁ")

    @pytest.mark.parametrize("name", ["AlbertTokenizer", "XLMRobertaTokenizer", "DebertaV2Tokenizer"])
    def test_broken(self, tmp_path, name):
        write_family(tmp_path, name)
        file = tmp_path / FAMILIES[name].vocabulary_files[0]
        content = file.read_bytes()
        for wrong in (b"", b"\0", content[:-1], b'{"model": 1}', content[:7]):
            file.write_bytes(wrong)
            with pytest.raises(CheckpointError, match=rf"{file.name} is not a SentencePiece model: "):
                load(tmp_path)

    def test_pieces_in_another_order(self, tmp_path):
        write_family(tmp_path, "XLMRobertaTokenizer")
        file = tmp_path / "sentencepiece.bpe.model"
        file.write_bytes(sentencepiece_model(["a", "b"], ("<unk>", 0), words=["<s>", "</s>"]))
        with pytest.raises(CheckpointError, match=r"sentencepiece\.bpe\.model has other first pieces than"):
            load(tmp_path)


class TestSettings:
    def test_name_that_is_none(self, roberta):
        with pytest.raises(TypeError, match="add_prefix_spaces is no setting of a tokenizer; expected one of do_lower"):
            load(roberta, add_prefix_spaces=True)

    def test_value_that_is_none(self, roberta):
        with pytest.raises(CheckpointError, match="add_prefix_space is 'yes'; expected true, false or null"):
            load(roberta, add_prefix_space="yes")

    def test_that_tokenizer_json_cannot_follow(self, albert, demo_folder):
        load(albert).save_pretrained(albert)
        with pytest.raises(
            ValueError, match=r"tokenizer\.json has nothing that do_lower_case, keep_accents could change"
        ):
            load(albert, do_lower_case=False, keep_accents=True)
        with pytest.raises(ValueError, match="nothing that add_prefix_space could change"):
            load(demo_folder, add_prefix_space=True)

    def test_win_over_the_files(self, roberta):
        write_json(roberta / "tokenizer_config.json", {"model_max_length": 7, "tokenizer_class": "RobertaTokenizer"})
        assert load(roberta).model_max_length == 7
        tokenizer = load(roberta, model_max_length=5, padding_side="left", mask_token="<gap>")
        assert (tokenizer.model_max_length, tokenizer.padding_side, tokenizer.mask_token) == (5, "left", "<gap>")
        assert tokenizer.mask_token_id == len(tokenizer) - 7 + 6 and "<gap>" in tokenizer("the <gap>").tokens()

    def test_own_special_tokens(self, roberta):
        config = {"tokenizer_class": "RobertaTokenizer", "speaker_token": "<speaker>", "add_bos_token": False}
        write_json(roberta / "tokenizer_config.json", config | {"extra_special_tokens": {"scene_token": "<scene>"}})
        tokenizer = load(roberta)
        assert tokenizer.tokenize("the<scene><speaker>") == ["the", "<scene>", "<speaker>"]
        assert tokenizer.speaker_token == "<speaker>" and tokenizer.scene_token_id == tokenizer.get_vocab()["<scene>"]

    @pytest.mark.parametrize("extra", [3, "the", {"a": 3}])
    def test_extra_special_tokens_that_are_none(self, roberta, extra):
        write_json(roberta / "tokenizer_config.json", {"extra_special_tokens": extra})
        with pytest.raises(CheckpointError, match=r"(extra_special_tokens|a) is "):
            load(roberta)

    def test_files_that_do_not_say_whose_they_are(self, roberta):
        for config in ({}, {"tokenizer_class": "PreTrainedTokenizerFast"}):
            write_json(roberta / "tokenizer_config.json", config)
            with pytest.raises(CheckpointError, match=r"has vocab\.json and merges\.txt and does not say whose"):
                load(roberta)

    def test_clean_up(self, albert):
        tokenizer = load(albert)
        ids = tokenizer("the . the ? 's", add_special_tokens=False).input_ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == "the . the <unk> <unk>s"
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=True).startswith("the. the")
        assert load(albert, clean_up_tokenization_spaces=True).batch_decode([ids])[0].startswith("the. the")

    def test_clean_up_of_byte_bpe(self, roberta):
        tokenizer = load(roberta)
        ids = tokenizer("the .", add_special_tokens=False).input_ids
        with pytest.warns(UserWarning, match="does nothing for byte-level BPE"):
            assert tokenizer.decode(ids, clean_up_tokenization_spaces=True) == "the ."

    def test_tokenizer_json_of_another_model_than_named(self, albert, tmp_path):
        load(albert).save_pretrained(tmp_path / "other")
        write_json(tmp_path / "other" / "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"})
        assert load(tmp_path / "other").special_tokens_map == {}

    def test_generic_class(self, albert, tmp_path):
        load(albert).save_pretrained(tmp_path / "other")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
        write_json(tmp_path / "other" / "tokenizer_config.json", config)
        tokenizer = load(tmp_path / "other")
        assert tokenizer("the")["input_ids"] == load(albert)("the")["input_ids"]
        assert tokenizer.special_tokens_map == {"pad_token": "<pad>"}
        shutil.rmtree(tmp_path / "other")
        tokenizer.save_pretrained(tmp_path / "other")
        assert load(tmp_path / "other")(HARD_TEXTS) == tokenizer(HARD_TEXTS)

    def test_save_says_what_tokenizer_json_alone_said(self, tmp_path):
        write_family(tmp_path, "BertTokenizer")
        load(tmp_path, do_lower_case=False, strip_accents=True).save_pretrained(tmp_path)
        (tmp_path / "tokenizer_config.json").unlink()
        load(tmp_path).save_pretrained(tmp_path)
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "tokenizer_class")
        assert [config[name] for name in names] == [False, True, True, "BertTokenizer"]

    @pytest.mark.parametrize("failing", [0, 1, 2, 3])
    def test_save_leaves_the_old_files_when_it_fails(self, albert, monkeypatch, failing):
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
            with pytest.raises(OSError, match="No space left"):
                tokenizer.save_pretrained(albert)
        assert {file.name: file.read_bytes() for file in albert.iterdir()} == before

    def test_a_save_that_was_killed_says_so(self, albert):
        (albert / "tokenizer.json").write_bytes(replacing.NOTE)  # beside the files it was made from
        with pytest.raises(CheckpointError, match=r"saving was interrupted before tokenizer\.json was in place"):
            load(albert)


def test_special_tokens_mask(roberta):
    tokenizer = load(roberta)
    assert tokenizer.get_special_tokens_mask(tokenizer("the value").input_ids) == [1, 0, 0, 1]
    assert tokenizer.convert_tokens_to_string(["the", "Ġvalue"]) == "the value"
