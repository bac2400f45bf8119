"""The table of tokenizers, and vocabulary files of byte-level BPE and SentencePiece."""

import base64
import json
import pickle

import pytest

from bertcore.checkpoint import CheckpointError
from bertcore.tokenization import AutoTokenizer
from bertcore.tokenization.engine import copied
from bertcore.tokenization.families import CLASS_OF_MODEL_TYPE, FAMILIES
from bertcore.tokenization.settings import GENERIC_CLASSES
from tests.refusals import refuses
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
    "T5Tokenizer": ("▁the ▁value </s>", "▁the </s> ▁value </s>", [0] * 4),
    "DebertaV2Tokenizer": ("[CLS] ▁the ▁value [SEP]", "[CLS] ▁the [SEP] ▁value [SEP]", [0, 0, 0, 1, 1]),
}
TEMPLATES |= dict.fromkeys(WORD_PIECE, TEMPLATES["BertTokenizer"])
TEMPLATES["MPNetTokenizer"] = "<s> the value </s>", "<s> the </s> </s> value </s>", [0] * 6


@pytest.fixture(params=FAMILIES)
def family(request, tmp_path):
    """(class name, folder) of each family."""
    write_family(tmp_path, request.param)
    return request.param, tmp_path


class TestTable:
    def test_every_family_is_tested(self):
        assert set(TEMPLATES) == set(FAMILIES) == {*BYTE_BPE, *SENTENCEPIECE, *WORD_PIECE}

    def test_model_types(self):
        assert set(CLASS_OF_MODEL_TYPE.values()) == {*FAMILIES, *GENERIC_CLASSES[:1]}

    @pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
    def test_templates_name_special_tokens(self, family):
        parts = {part.split(":")[0] for part in f"{family.single} {family.pair}".split()} - {"$A", "$B"}
        pieces = {entry for entry in (*family.pieces.head, *family.pieces.tail) if isinstance(entry, str)}
        assert parts | pieces <= family.special_tokens.keys()


class TestFamilies:
    def test_template(self, family):
        name, folder = family
        tokenizer, (single, pair, types) = load(folder), TEMPLATES[name]
        assert tokenizer("the value").tokens() == single.split()
        found = tokenizer("the", " value", return_token_type_ids=True, return_special_tokens_mask=True)
        assert found.tokens() == pair.split() and found.token_type_ids == types
        special = set(tokenizer.all_special_tokens)
        assert found.special_tokens_mask == [int(token in special) for token in pair.split()]

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
        assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
        names = set(vars(tokenizer)) - {"backend_tokenizer", "_engine", "_settings", "_family"}
        assert {name: getattr(again, name) for name in names} == {name: getattr(tokenizer, name) for name in names}
        again.save_pretrained(tmp_path / "again")
        one, other = (tmp_path / name / "tokenizer_config.json" for name in ("saved/deeper", "again"))
        assert one.read_text() == other.read_text()

    def test_copies_for_truncation_and_other_processes(self, family):
        tokenizer = load(family[1])
        assert copied(tokenizer.backend_tokenizer).to_str() == tokenizer.backend_tokenizer.to_str()
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again(HARD_TEXTS) == tokenizer(HARD_TEXTS) and type(again) is type(tokenizer)

    def test_missing_files(self, family):
        name, folder = family
        wanted = FAMILIES[name].vocabulary_files
        (folder / wanted[-1]).unlink()
        message = f"has neither tokenizer.json nor {' and '.join(wanted)}, which make a {name}; it holds"
        refuses(CheckpointError, message, load, folder)


class TestByteBpe:
    def test_prefix_space(self, roberta):
        assert load(roberta, add_prefix_space=True)("the value").tokens() == ["<s>", "Ġthe", "Ġvalue", "</s>"]
        load(roberta).save_pretrained(roberta)
        again = load(roberta, add_prefix_space=True)
        assert again("the").tokens() == ["<s>", "Ġthe", "</s>"]
        (roberta / "tokenizer.json").unlink()
        assert again.backend_tokenizer.to_str() == load(roberta, add_prefix_space=True).backend_tokenizer.to_str()

    def test_words(self, roberta):
        words = ["the", "values", "the"]
        found = load(roberta, add_prefix_space=True)(words, is_split_into_words=True)
        assert found.tokens() == ["<s>", "Ġthe", "Ġvalue", "s", "Ġthe", "</s>"]
        assert found.word_ids() == [None, 0, 1, 1, 2, None]
        assert found.word_to_tokens(1) == (2, 4) and found.token_to_word(-2) == 2
        assert found.char_to_token(0) == 1 and found.token_to_chars(3) == (5, 6)
        assert load(roberta)(words, is_split_into_words=True).tokens() == ["<s>", "the", "value", "s", "the", "</s>"]

    @pytest.mark.parametrize(("text", "pair", "message"), [
        ("the", None, r"text is str, expected a list of words \(is_split_into_words\)"),
        (["the", 3], None, r"text\[1\] is int, expected a string"),
        ([["the"], "the"], None, r"text\[1\] is str, expected a list of words"),
        ([["the"], ["the", None]], None, r"text\[1\]\[1\] is NoneType, expected a string"),
        (["the"], [["the"]], r"text_pair\[0\] is list, expected a string"),
        ([["the"]], 3, "text_pair is int, expected a list of words, or a list of such lists"),
        ({"the": 1}, None, "text is dict, expected a list of words"),
    ])  # fmt: skip
    def test_wrong_words(self, roberta, text, pair, message):
        refuses(TypeError, message, load(roberta), text, pair, is_split_into_words=True)

    def test_lone_surrogate_among_words(self, roberta):
        with pytest.raises(ValueError, match=r"text\[1\]\[0\] is not valid Unicode"):
            load(roberta)([["the"], ["\ud800"]], is_split_into_words=True)

    @pytest.mark.parametrize(
        "merges", ["t h\nth e\n", "#version: 0.2\nt h\nth e", "#version: 0.2\r\nt h\r\nth e\r\n\r\n"]
    )
    def test_forms_of_merges(self, roberta, merges):
        (roberta / "merges.txt").write_bytes(merges.encode())
        assert load(roberta).tokenize("the") == ["the"]

    @pytest.mark.parametrize(("name", "content", "message"), [
        ("vocab.json", b"\xff", r"vocab\.json is not valid JSON"),
        ("vocab.json", b"[1]", r"vocab\.json holds a JSON list, expected an object"),
        ("vocab.json", b"[" * 100_000, r"vocab\.json cannot be read: its JSON is nested too deeply"),
        ("vocab.json", b'{"a": "0"}', "the id of 'a' is '0', expected an integer"),
        ("vocab.json", b'{"a": true}', "the id of 'a' is True, expected an integer"),
        ("vocab.json", b'{"a": 0, "a": 0}', "a token occurs twice"),
        ("vocab.json", b'{"a": 0, "b": 0}', "2 tokens share 1 ids"),
        ("vocab.json", b'{"a": 0, "b": 2}', "2 tokens have ids other than 0 to 1: 1 missing"),
        ("vocab.json", b'{"a": 0, "b": -1}', "2 tokens have ids other than 0 to 1: 1 missing"),
        ("vocab.json", b'{"a": 0, "b": 1e30}', "the id of 'b' is 1e[+]30, expected an integer"),
        ("merges.txt", b"\xff\xfe", r"merges\.txt is not UTF-8"),
        ("merges.txt", b"t h\nt h e\n", "line 2 has 3 parts, expected two tokens"),
        ("merges.txt", b"t h\nth\n", "line 2 has 1 parts"),
        ("merges.txt", b"#version: 0.2\nt x\n", "line 2 merges .*; the vocabulary lacks 'x'"),
        ("merges.txt", b"h t\n", "line 1 merges .*; the vocabulary lacks 'ht'"),
    ])  # fmt: skip
    def test_broken(self, roberta, name, content, message):
        (roberta / name).write_bytes(content)
        refuses(CheckpointError, message, load, roberta)

    def test_invalid_unicode_token(self, tmp_path):
        write_byte_bpe(tmp_path, ["<s>", "\ud800"])
        write_json(tmp_path / "config.json", {"model_type": "roberta"})
        refuses(CheckpointError, r"vocab\.json cannot be read by the tokenizers library", load, tmp_path)


class TestSentencePiece:
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
        """A character map in tokenizer.json that leads outside, at which the library would panic."""
        load(albert).save_pretrained(albert)
        content = json.loads((albert / "tokenizer.json").read_text())
        (step,) = [one for one in content["normalizer"]["normalizers"] if one["type"] == "Precompiled"]
        data = charsmap({"ﬁ": "fi"})
        step["precompiled_charsmap"] = base64.b64encode(data[:4] + b"\0\0\xff\xff" + data[8:]).decode()
        write_json(albert / "tokenizer.json", content)
        refuses(CheckpointError, r"tokenizer\.json .*precompiled_charsmap is broken: its trie leads to", load, albert)

    @pytest.mark.parametrize("name", ["AlbertTokenizer", "XLMRobertaTokenizer", "DebertaV2Tokenizer"])
    def test_broken(self, tmp_path, name):
        write_family(tmp_path, name)
        file = tmp_path / FAMILIES[name].vocabulary_files[0]
        content = file.read_bytes()
        for wrong in (b"", b"\0", content[:-1], b'{"model": 1}', content[:7]):
            file.write_bytes(wrong)
            refuses(CheckpointError, rf"{file.name} is not a SentencePiece model: ", load, tmp_path)

    def test_pieces_in_another_order(self, tmp_path):
        write_family(tmp_path, "XLMRobertaTokenizer")
        file = tmp_path / "sentencepiece.bpe.model"
        file.write_bytes(sentencepiece_model(["a", "b"], ("<unk>", 0), words=["<s>", "</s>"]))
        refuses(CheckpointError, r"sentencepiece\.bpe\.model has first pieces that differ", load, tmp_path)
