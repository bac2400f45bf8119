"""The files beside a tokenizer: their old and new forms, and the ways they can be broken."""

import base64
import json
import re
import shutil

import pytest

from bertcore.arguments import warn_caller
from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.files import MOST_BYTES
from bertcore.tokenization import AutoTokenizer
from tests.refusals import refuses
from tests.tokenization.corpus import HARD_TEXTS, write_json
from tests.tokenization.sentencepiece_writer import charsmap


@pytest.fixture
def folder(tmp_path, vocabulary_folder):
    shutil.copy(vocabulary_folder / "vocab.txt", tmp_path / "vocab.txt")
    return tmp_path


def load(folder):
    return AutoTokenizer.from_pretrained(folder)


def test_tokenizer_json_equals_its_vocabulary(demo_folder, tmp_path):
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(demo_folder / name, tmp_path / name)
    assert load(tmp_path)(HARD_TEXTS, HARD_TEXTS) == load(demo_folder)(HARD_TEXTS, HARD_TEXTS)


def test_tokenizer_json_alone(demo_folder, tmp_path):
    shutil.copy(demo_folder / "tokenizer.json", tmp_path / "tokenizer.json")
    tokenizer = load(str(tmp_path))
    assert tokenizer(HARD_TEXTS) == load(demo_folder)(HARD_TEXTS)
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id) == (103, 0)


def test_bert_tokenizer_json_without_a_template_gets_it(demo_folder, tmp_path):
    content = json.loads((demo_folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["post_processor"] = None
    write_json(tmp_path / "tokenizer.json", content)
    assert load(tmp_path)("word", "word").tokens() == ["[CLS]", "word", "[SEP]", "word", "[SEP]"]


def test_tokenizer_json_of_another_kind_is_taken_as_it_is(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "value": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"})
    tokenizer = load(tmp_path)
    assert tokenizer("the [CLS] value").input_ids == [1, 0, 0, 0, 2]
    assert list(tokenizer("the", "value")) == ["input_ids", "attention_mask"]
    assert tokenizer("the", "value", return_token_type_ids=True).token_type_ids == [0, 1]
    assert tokenizer.pad_token is None and tokenizer.unk_token_id == 0
    refuses(ValueError, "padding needs a pad token", tokenizer, ["the"], padding=True)


@pytest.mark.parametrize("config, tokens", [
    ({}, ["the", "e", "中", "日"]),
    ({"do_lower_case": False}, ["The", "É", "中", "日"]),
    ({"do_lower_case": False, "strip_accents": True}, ["The", "E", "中", "日"]),
    ({"strip_accents": False}, ["the", "é", "中", "日"]),
    ({"tokenize_chinese_chars": False}, ["the", "e", "中", "##日"]),
], ids=str)  # fmt: skip
def test_normalization(tmp_path, config, tokens):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "e", "é", "E", "É", "中", "日", "##日"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    write_json(tmp_path / "tokenizer_config.json", config)
    assert load(tmp_path).tokenize("The É 中日") == tokens


@pytest.mark.parametrize("key", ["do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"])
def test_null_means_default(demo_folder, tmp_path, key):
    shutil.copy(demo_folder / "tokenizer.json", tmp_path / "tokenizer.json")
    plain = load(tmp_path)(HARD_TEXTS)
    write_json(tmp_path / "tokenizer_config.json", {key: None})
    assert load(tmp_path)(HARD_TEXTS) == plain


def test_config_overrules_tokenizer_json(demo_folder, tmp_path):
    shutil.copy(demo_folder / "tokenizer.json", tmp_path / "tokenizer.json")
    write_json(tmp_path / "tokenizer_config.json", {"do_lower_case": False})
    assert load(tmp_path).tokenize("word Word") == ["word", "[UNK]"]


def test_special_tokens_map(folder):
    write_json(folder / "tokenizer_config.json", {"sep_token": "[MASK]"})
    write_json(folder / "special_tokens_map.json", {"sep_token": {"content": "[PAD]", "lstrip": False}})
    assert load(folder)("the").tokens() == ["[CLS]", "the", "[PAD]"]


@pytest.mark.parametrize("newer", [False, True], ids=["added_tokens.json", "added_tokens_decoder"])
def test_added_tokens(folder, newer):
    size = len(load(folder))
    if newer:
        plain = {"content": "newword", "special": False, "normalized": True}
        decoder = {str(size + 1): plain, str(size): {"content": "[E]", "special": True}, "4": {"content": "[MASK]"}}
        write_json(folder / "tokenizer_config.json", {"added_tokens_decoder": decoder})
    else:
        write_json(folder / "added_tokens.json", {"newword": size + 1, "[E]": size})
        write_json(folder / "special_tokens_map.json", {"additional_special_tokens": ["[E]"]})
    tokenizer = load(folder)
    assert tokenizer("the NewWord [E]").input_ids[2:4] == [size + 1, size]
    assert len(tokenizer) == size + 2
    cut = tokenizer(["the NewWord [E] the the the"] * 2, truncation=True, max_length=5)
    assert cut.tokens() == ["[CLS]", "the", "newword", "[E]", "[SEP]"]  # the truncating copy knows them too


def test_windows_line_ends(folder, vocabulary_folder):
    content = (folder / "vocab.txt").read_bytes()
    (folder / "vocab.txt").write_bytes(content.replace(b"\n", b"\r\n"))
    assert load(folder).get_vocab() == load(vocabulary_folder).get_vocab()


@pytest.mark.parametrize("key", ["model_max_length", "max_len"])
def test_model_max_length(folder, key):
    write_json(folder / "tokenizer_config.json", {key: 77})
    assert load(folder).model_max_length == 77
    for unlimited in (1e30, float("inf"), None):
        write_json(folder / "tokenizer_config.json", {key: unlimited})
        assert load(folder).model_max_length == int(1e30)


def test_input_names(folder):
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "DistilBertTokenizerFast"})
    assert list(load(folder)("the")) == ["input_ids", "attention_mask"]
    write_json(folder / "tokenizer_config.json", {"model_input_names": ["input_ids"]})
    assert list(load(folder)("the")) == ["input_ids"]
    assert list(load(folder)("the", return_token_type_ids=True)) == ["input_ids", "token_type_ids"]


def tokenizer_json(model, **more):
    return {"version": "1.0", "added_tokens": [], "model": model, **more}


def words_alone(kind, **more):
    return tokenizer_json({"type": kind, "unk_token": "[UNK]", "vocab": {"the": 0}, **more})


def precompiled(text):
    return {"type": "Precompiled", "precompiled_charsmap": text}


def replace(pattern, content, count=1):
    return {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": pattern, "content": content}] * count}


ADDED_UNKNOWN = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False) | {
    "id": 1, "content": "[UNK]",
}  # fmt: skip
PIECES = {"max_input_chars_per_word": 100, "continuing_subword_prefix": "##"}
UNREADABLE = r"tokenizer\.json cannot be read by the tokenizers library: "
NO_UNICODE = r"tokenizer files of .*: the token '\\ud800' is not valid Unicode"
JSON_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# (file beside a vocab.txt, its content, error).
BROKEN = [
    *[("tokenizer.json", content, r"tokenizer\.json is not valid JSON: ") for content in (b"", b"{", b'{"\xff": 0}')],
    ("tokenizer.json", b"[]", r"tokenizer\.json cannot be read: it is a JSON list, expected an object"),
    ("tokenizer.json", b"[" * 100_000, r"tokenizer\.json cannot be read: its JSON is nested too deeply"),
    ("tokenizer.json", b'{"normalizer": 0, "normalizer": 1}', "the key 'normalizer' occurs twice"),
    ("tokenizer.json", {"version": "1.0"}, UNREADABLE),
    ("tokenizer.json", {"model": {"type": "Other"}}, UNREADABLE),
    ("tokenizer.json", {"pre_tokenizer": {"pattern": {"Regex": "\ud800"}}}, "the tokenizers library: .* hex escape"),
    *[
        ("tokenizer.json", words_alone("WordPiece", **PIECES) | changes, rf"tokenizer\.json cannot be read: {message}")
        for changes, message in [
            ({"normalizer": precompiled("AAAA")}, "normalizer: precompiled_charsmap is broken: its trie has 0 bytes"),
            ({"normalizer": precompiled(5)}, "normalizer: precompiled_charsmap is int, expected text in base64"),
            ({"post_processor": {"single": [{"SpecialToken": {"id": "a"}}], "special_tokens": {}}},
             "post_processor has the special token 'a', which it does not define"),
            ({"normalizer": precompiled("/////w==")}, "normalizer: .* is broken: its trie has 4294967295 bytes"),
            ({"decoder": [{"a": precompiled("A")}]}, "decoder: precompiled_charsmap is broken: "),
            ({"normalizer": replace({"String": "a"}, "a" * 1025)}, "normalizer replaces a .* by up to 1.02e.03, exp"),
            ({"normalizer": replace({"String": "a"}, "aa", 40)}, "normalizer replaces a .* up to 1.1e.12, e"),
            ({"normalizer": replace({"Regex": "x*"}, "a", 40)}, "normalizer replaces a .* up to 1.1e.12, e"),
            ({"normalizer": replace({"Regex": r"\p{L}"}, "aaa", 6)}, r"normalizer replaces a .* 4.1e\+03"),
            ({"decoder": replace({"String": ""}, "a", 40)}, "decoder replaces a character by up to 1.1e.12"),
            ({"pre_tokenizer": [{"type": "ByteLevel"}] * 11}, r"pre_tokenizer replaces a .* 2.05e\+03"),
            ({"pre_tokenizer": [{"trim_offsets": False}] * 11}, r"pre_tokenizer replaces a .* 2.05e\+03"),
            ({"normalizer": [{"handle_chinese_chars": True}] * 7}, r"normalizer replaces a .* 2.19e\+03"),
            ({"added_tokens": [{"id": 2**32 - 1}]}, "it has the id 4294967295, expected at most 2147483647"),
            ({"added_tokens": [{"id": -1}]}, "it has the id -1, expected"),
            ({"post_processor": {"special_tokens": {"a": {"ids": [0, 2**32 - 1]}}}}, "it has the id 4294967295"),
            ({"normalizer": [{"type": "Prepend", "prepend": "a" * 300}] * 4}, "normalizer puts 1200 characters before"),
            *[
                ({part: {"type": "Split", "pattern": {"Regex": regex}}}, f"{part} has the expression .*expon")
                for part, regex in [("pre_tokenizer", r"(a+)+$"), ("normalizer", r"(\s|\s)*\S\d"),
                                    ("pre_tokenizer", "(a|a)*b"), ("decoder", "(é|é)*y"), ("normalizer", "(ab|ab)*c"),
                                    ("normalizer", r"(.|.){0,22}[^\x{4e00}-\x{9fff}]"),
                                    ("normalizer", r"(.|.){0,22}[^\u0430-\u044f]"),
                                    ("decoder", r"(.|.){0,22}\P{Greek}")]
            ],
            ({"normalizer": [{"type": "NFC"}] * 5000}, "normalizer has 5000 objects, expected at most 4096"),
            (
                {"post_processor": {"single": [{"SpecialToken": {"id": "a"}}] * 40,
                                    "special_tokens": {"a": {"id": "a", "ids": [0] * 30}}}},
                "post_processor puts 1200 tokens around a text, expected at most 1024",
            ),
            ({"model": {"vocab": {"the": 0, "a": 2**31}}}, "it has the id 2147483648, expected at most 2147483647"),
        ]
    ],
    ("tokenizer.json", words_alone("WordPiece", **PIECES), r"tokenizer\.json lacks the unknown token '\[UNK\]'"),
    (
        "tokenizer.json",
        words_alone("WordPiece", **PIECES) | {"added_tokens": [ADDED_UNKNOWN]},
        r"tokenizer\.json lacks the unknown token '\[UNK\]'",
    ),
    ("tokenizer.json", words_alone("WordLevel"), r"tokenizer\.json lacks the unknown token '\[UNK\]'"),
    *[(name, b"{", rf"{name} is not valid JSON") for name in JSON_FILES],
    ("vocab.txt", b"\xff\xfe\x00", r"vocab\.txt cannot be read as a vocabulary: "),
    *[("vocab.txt", content, r"vocab\.txt lacks the unknown token '\[UNK\]'") for content in (b"", b"the\nvalue\n")],
    ("added_tokens.json", {"newword": 7}, "'newword' has the id 7, but the vocabulary gives it 7"),
    ("added_tokens.json", {"newword": "seven"}, r"added_tokens\.json is .*, expected an object of ids by token"),
    *[
        ("tokenizer_config.json", config, message)
        for config, message in [
            ({"tokenizer_class": "BertJapaneseTokenizer"}, r"BertJapaneseTokenizer without tokenizer\.json"),
            ({"tokenizer_class": [1]}, r"tokenizer_class is \[1\], expected the name of a class"),
            ({"model_max_length": "many"}, "model_max_length is 'many', expected a number of at least 0"),
            ({"pad_token_type_id": 2**32 - 1}, "pad_token_type_id is 4294967295, expected at most 2147483647"),
            ({"pad_token_type_id": [0]}, r"pad_token_type_id is \[0\], expected a number"),
            ({"model_input_names": 3}, "model_input_names is 3, expected a list of names"),
            ({"do_lower_case": "yes"}, "do_lower_case is 'yes', expected true, false or null"),
            ({"added_tokens_decoder": [1]}, r"added_tokens_decoder is \[1\], expected an object of tokens by id"),
            ({"added_tokens_decoder": {"x": "a"}}, "added_tokens_decoder is .*, expected an object of tokens by id"),
            ({"pad_token": "\ud800"}, NO_UNICODE),
            ({"mask_token": {"content": "\ud800"}}, NO_UNICODE),
            ({"additional_special_tokens": ["\ud800"]}, NO_UNICODE),
            ({"added_tokens_decoder": {"4": {"content": "\ud800"}}}, NO_UNICODE),
        ]
    ],
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_broken_files(folder, name, content, message, capfd):
    if isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        write_json(folder / name, content)
    refuses(CheckpointError, message, load, folder)
    assert not capfd.readouterr().err  # such as a panic of the library


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model", "merges.txt"])
def test_a_file_beyond_the_limit_is_not_read(tmp_path, name):
    kinds = {"spiece.model": "AlbertTokenizer", "merges.txt": "GPT2Tokenizer"}
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": kinds.get(name, "BertTokenizer")})
    write_json(tmp_path / "vocab.json", {"a": 0})
    with (tmp_path / name).open("wb") as stream:
        stream.truncate(MOST_BYTES + 1)  # a hole: no disk is used
    refuses(CheckpointError, rf"{name} has 268435457 bytes, expected at most 268435456", load, tmp_path)


def test_replacements_as_published_are_read(folder):
    """Replacements of albert, t5, llama and clip, and a character map, in one."""
    steps = [replace({"String": "``"}, '"'), replace({"String": " "}, "▁"), replace({"Regex": r"\s{2,}|[\n\r]"}, " ")]
    steps += [precompiled(base64.b64encode(charsmap({"ﷺ": "x" * 18})).decode()), replace({"Regex": " {2,}"}, "▁")]
    model = {**PIECES, "type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "x" * 18: 1}}
    write_json(
        folder / "tokenizer.json", tokenizer_json(model) | {"normalizer": {"type": "Sequence", "normalizers": steps}}
    )
    assert load(folder).tokenize("ﷺ") == ["x" * 18]


def test_control_characters_of_a_file_are_escaped(folder):
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "\x1b[31mRed"})
    refuses(CheckpointError, r"a \\x1b\[31mRed without tokenizer\.json", load, folder)


@pytest.mark.parametrize(("setting", "message"), [
    ({"padding_side": "top"}, "padding_side is 'top', expected 'left' or 'right'"),
    ({"model_max_length": -5}, "model_max_length is -5, expected a number of at least 0"),
    ({"mask_token": 3}, "mask_token is 3, expected a string or an object"),
])  # fmt: skip
def test_errors_name_files_only_for_their_own_settings(folder, setting, message):
    refuses(ValueError, f"^{message}", AutoTokenizer.from_pretrained, folder, **setting)
    write_json(folder / "tokenizer_config.json", setting)
    refuses(CheckpointError, f"^tokenizer files of {re.escape(str(folder))}: {message}", load, folder)


def test_missing_files_and_folders(tmp_path):
    refuses(CheckpointError, "nowhere does not exist", load, tmp_path / "nowhere")
    (tmp_path / "vocab.json").write_text("{}")
    refuses(CheckpointError, r"neither tokenizer\.json nor vocab\.txt nor .*; it holds vocab\.json", load, tmp_path)
    refuses(TypeError, "from_pretrained", AutoTokenizer)


def test_control_characters_in_a_warning_are_escaped():
    with pytest.warns(UserWarning, match=r"^a \\x1b\[31m\n\\u202e b$"):
        warn_caller("a \x1b[31m\n\u202e b")


def test_a_text_beyond_the_steps_of_an_expression(tmp_path):
    """Such as one whose letters the file does not show: the trial at loading has none of them."""
    slow = {"type": "Split", "pattern": {"Regex": r"(?:\p{Armenian}|\p{L})*!"}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}
    write_json(tmp_path / "tokenizer.json", tokenizer_json(model) | {"pre_tokenizer": slow})
    tokenizer = load(tmp_path)
    message = r'a text takes too many steps of .*; its regular expressions are "\(\?:\\\\p{Armenian}'
    for texts in ("բ" * 40 + "0!", ["բ" * 40 + "0!"] * 20):
        refuses(ValueError, message, tokenizer, texts)
    assert tokenizer("a!")["input_ids"] == [0]


def test_unknown_piece_without_a_token(tmp_path):
    model = {"type": "Unigram", "unk_id": None, "vocab": [["the", 0.0]], "byte_fallback": False}
    write_json(tmp_path / "tokenizer.json", tokenizer_json(model))
    refuses(RuntimeError, "the tokenizers library failed, as it does on a broken tokenizer", load(tmp_path), "z")
