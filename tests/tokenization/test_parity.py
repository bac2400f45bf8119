"""Every family's tokenizer equal to transformers' (which needs SentencePiece for some), whatever text and options."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertcore.tokenization import AutoTokenizer
from tests.tokenization.corpus import HARD_TEXTS, train_byte_bpe, train_sentencepiece, train_vocabulary, write_json
from tests.tokenization.parity import OPTIONS, RETURN_ALL, check_same

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

ANGLES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BRACKETS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
# model_type: the tokens that stand first in its vocab.json
BYTE_BPE = {"roberta": ANGLES, "luke": ANGLES, "gpt2": ["<|endoftext|>"], "deberta": BRACKETS}
SYMBOLS = ["(", ")", '"', "-", ".", "\u2013", "£", "€"]
# model_type: (its file, how it was trained)
SENTENCEPIECE = {
    "albert": (
        "spiece.model",
        {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
        | {"user_defined_symbols": SYMBOLS},
    ),
    "xlm-roberta": ("sentencepiece.bpe.model", {}),
    "camembert": ("sentencepiece.bpe.model", {"user_defined_symbols": ["<new>"]}),
    "deberta-v2": (
        "spm.model",
        {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]"}
        | {"eos_piece": "[SEP]", "unk_piece": "[UNK]"},
    ),
    "t5": ("spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
    "xlnet": (
        "spiece.model",
        {"control_symbols": ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"]}
        | {"user_defined_symbols": ["<eop>", *SYMBOLS]},
    ),
}
# model_type: the tokens that stand first in its vocab.txt
WORD_PIECE = {"mpnet": ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]}
FAMILIES = [*BYTE_BPE, *SENTENCEPIECE, *WORD_PIECE]
LSTRIP = {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
# How BERT's tokenizer is written: its tokenizer_config.json, and the files of the demonstration model that it has.
BERT = {
    "bert, demo": (None, ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json")),
    "bert": ({}, ()),
    "bert, cased": ({"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}, ()),
    # Under its older name, additional_special_tokens, transformers 5 forgets that [ENT] is special.
    "bert, added tokens": ({}, ()),
    "bert, overruled": ({"do_lower_case": True, "strip_accents": False}, ("tokenizer.json", "vocab.txt")),
}


def load_both(folder):
    return AutoTokenizer.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


def write_bert(folder, name, request):
    config, files = BERT[name]
    for file in files:
        shutil.copy(request.getfixturevalue("demo_folder") / file, folder / file)
    if not files:
        train_vocabulary(folder / "vocab.txt", lower_case=name != "bert, cased")
    if name == "bert, added tokens":
        size = len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
        write_json(folder / "special_tokens_map.json", {"mask_token": LSTRIP, "extra_special_tokens": ["[ENT]"]})
        write_json(folder / "added_tokens.json", {"plain": size, "[ENT]": size + 1, "Word": size + 2})
    write_json(folder / "config.json", {"model_type": "bert"})
    if config is not None:
        config = {"tokenizer_class": "BertTokenizer", "model_max_length": 64} | config
        write_json(folder / "tokenizer_config.json", config)


@pytest.fixture(scope="module")
def folders(request, tmp_path_factory):
    """The folder of a family's older checkpoint, made at first use."""
    made = {}

    def make(model_type):
        if model_type not in made:
            folder = made[model_type] = tmp_path_factory.mktemp(model_type)
            if model_type in BERT:
                write_bert(folder, model_type, request)
                return folder
            config = {"model_max_length": 64}
            write_json(folder / "config.json", {"model_type": model_type})
            if model_type in BYTE_BPE:
                train_byte_bpe(folder, BYTE_BPE[model_type])
                config |= {"pad_token": "<|endoftext|>"} if model_type == "gpt2" else {}
            elif model_type in WORD_PIECE:
                train_vocabulary(folder / "vocab.txt", lower_case=True, special=WORD_PIECE[model_type])
            else:
                file, options = SENTENCEPIECE[model_type]
                train_sentencepiece(folder / file, **options)
            write_json(folder / "tokenizer_config.json", config)
        return made[model_type]

    return make


@pytest.fixture(scope="module", params=[*BERT, *FAMILIES])
def both(request, folders):
    """(our tokenizer, transformers') of one family's older files."""
    return load_both(folders(request.param))


def backend_json(tokenizer):
    backend = tokenizer.backend_tokenizer
    parts = json.loads(backend.to_str())
    return parts | {"truncation": None, "padding": None}  # transformers' stay as its last call set them


def test_backend(both):
    ours, theirs = map(backend_json, both)
    for part, content in theirs.items():
        assert ours[part] == content, part


@pytest.mark.filterwarnings("ignore:max_length")
@pytest.mark.parametrize("pair", [False, True], ids=["texts", "pairs"])
def test_every_option(both, pair):
    ours, theirs = both
    short = [text[:20] for text in HARD_TEXTS]  # the library takes all pairs of two texts' overflowing pieces
    texts = (short, short[5:] + short[:5]) if pair else (HARD_TEXTS,)
    for options in (OPTIONS | {"only special tokens left": {"truncation": True, "max_length": 4}}).values():
        options = {"return_token_type_ids": True} | options
        check_same(ours(*texts, **RETURN_ALL, **options), theirs(*texts, **RETURN_ALL, **options))


@pytest.mark.parametrize("strategy", ["only_first", "only_second"])
def test_truncation_of_one(both, strategy):
    ours, theirs = both
    short, long = ["a short question?"] * 5, HARD_TEXTS[3:8]
    texts = (long, short) if strategy == "only_first" else (short, long)
    options = {"truncation": strategy, "max_length": 48, "stride": 2, "return_overflowing_tokens": True}
    check_same(ours(*texts, **RETURN_ALL, **options), theirs(*texts, **RETURN_ALL, **options))


def test_arrays(both):
    ours, theirs = both
    found, wanted = (each(HARD_TEXTS, padding=True, return_tensors="np", **RETURN_ALL) for each in both)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape and (found[name] == array).all()
    assert ours("one", return_tensors="np").input_ids.shape == theirs("one", return_tensors="np").input_ids.shape


@pytest.mark.parametrize("max_length", [3, 4, 5, 10, 11, 12, 13, 21, 22])
def test_longest_first(folders, max_length):
    ours, theirs = load_both(folders("bert"))
    lengths = [(20, 4), (4, 20), (9, 9), (9, 10), (10, 9), (0, 20), (20, 0), (1, 1)]
    pair = [["ab " * length for length in column] for column in zip(*lengths, strict=True)]
    check_same(*(each(*pair, truncation=True, max_length=max_length) for each in (ours, theirs)))


def test_special_tokens_alone_and_in_the_text(both):
    ours, theirs = both
    special = [*ours.all_special_tokens, "<s>", "</s>", "<mask>", "[MASK]", "<pad>", "<ent>", "<|endoftext|>"]
    texts = [form for token in special for form in (token, f" {token} ", f"a {token} b", f"a{token}{token}b.")]
    check_same(ours(texts, **RETURN_ALL), theirs(texts, **RETURN_ALL))


@pytest.mark.filterwarnings("ignore:clean_up_tokenization_spaces does nothing")
def test_back_to_text(both):
    ours, theirs = both
    ids = theirs([*HARD_TEXTS, "don 't , isn 't . I 'm ? we 've ! you 're ' it 's"]).input_ids
    for skip in (False, True):
        for clean in (None, False, True):
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean}
            assert ours.batch_decode(ids, **options) == theirs.batch_decode(ids, **options)
    tokens = [*theirs.convert_ids_to_tokens(ids[3]), "no such token"]
    assert ours.convert_ids_to_tokens(ids[3]) == tokens[:-1]
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert ours.convert_tokens_to_string(tokens) == theirs.convert_tokens_to_string(tokens)
    every = list(range(len(ours)))
    assert ours.decode(every) == theirs.decode(every)
    some = every[:: max(1, len(every) // 2000)]
    assert [ours.decode([number]) for number in some] == [theirs.decode([number]) for number in some]


def test_attributes(both):
    ours, theirs = both
    names = ["vocab_size", "model_max_length", "padding_side", "truncation_side", "model_input_names"]
    names += ["special_tokens_map", "pad_token_type_id", "clean_up_tokenization_spaces"]
    for name in ("cls", "sep", "pad", "unk", "mask", "bos", "eos"):
        names += [f"{name}_token", f"{name}_token_id"]
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs) and ours.get_vocab() == theirs.get_vocab()
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    for pair in (False, True):
        assert ours.num_special_tokens_to_add(pair) == theirs.num_special_tokens_to_add(pair)
    # Symbols that a SentencePiece model's makers defined are special to transformers, but not to its backend, which
    # decodes them with skip_special_tokens=True.
    plain = {token.content for token in theirs.added_tokens_decoder.values() if not token.special}
    assert ours.all_special_tokens == [token for token in theirs.all_special_tokens if token not in plain]


WORDS = [["Hello", "world", "!"], ["naïve", "日本語", "x" * 30], [], [""], ["a b", " c", "\n", "<mask>", "[MASK]"]]


def test_words(both):
    ours, theirs = both
    for words in WORDS:
        check_same(ours(words, is_split_into_words=True), theirs(words, is_split_into_words=True))
    if type(theirs).__name__ == "LukeTokenizer":  # takes the words of a batch for texts and their pairs
        return
    options = RETURN_ALL | {"is_split_into_words": True, "padding": True}
    found, wanted = ours(WORDS, **options), theirs(WORDS, **options)
    check_same(found, wanted)
    assert [found.word_ids(row) for row in range(5)] == [wanted.word_ids(row) for row in range(5)]
    check_same(ours(WORDS, WORDS[::-1], **options), theirs(WORDS, WORDS[::-1], **options))
    long = {"truncation": True, "max_length": 9, "stride": 1, "return_overflowing_tokens": True}
    check_same(ours(WORDS, is_split_into_words=True, **long), theirs(WORDS, is_split_into_words=True, **long))


def test_tokens_words_and_characters(both):
    ours, theirs = both
    texts = ["Hello  wörld, it's 日本語", "the second"], ["one\ttwo", " leading <mask>"]
    found, wanted = ours(*texts), theirs(*texts)
    assert found.n_sequences == wanted.n_sequences == 2
    for row in range(2):
        assert found.tokens(row) == wanted.tokens(row) and found[row].ids == wanted[row].ids
        assert found.sequence_ids(row) == wanted.sequence_ids(row)
        for token in range(len(found.tokens(row)) + 1):
            for method in ("token_to_sequence", "token_to_word", "token_to_chars"):
                assert getattr(found, method)(row, token) == getattr(wanted, method)(row, token)
        for place in range(30):
            for method in ("char_to_token", "char_to_word", "word_to_tokens"):
                for sequence in (0, 1):
                    ask = (row, place, sequence)
                    assert getattr(found, method)(*ask) == getattr(wanted, method)(*ask)
        assert found.word_to_chars(row, 0, 1) == wanted.word_to_chars(row, 0, 1)


@pytest.mark.parametrize("by", ["ours", "theirs"])
def test_saved(both, by, tmp_path):
    ours, theirs = both
    (ours if by == "ours" else theirs).save_pretrained(tmp_path)
    again = load_both(tmp_path)
    for tokenizer in again:
        check_same(tokenizer(HARD_TEXTS, HARD_TEXTS, **RETURN_ALL), ours(HARD_TEXTS, HARD_TEXTS, **RETURN_ALL))
        for name in ("special_tokens_map", "model_max_length", "padding_side", "model_input_names"):
            assert getattr(tokenizer, name) == getattr(ours, name)
    assert type(again[1]) is type(theirs)
    assert again[0].all_special_tokens == ours.all_special_tokens or by == "theirs"


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=4))
def test_any_text(both, texts):
    ours, theirs = both
    found, wanted = ours(texts, **RETURN_ALL), theirs(texts, **RETURN_ALL)
    check_same(found, wanted)
    assert ours.batch_decode(found.input_ids) == theirs.batch_decode(found.input_ids)


CONFIGS = {
    "prefix space": (["roberta", "gpt2", "deberta", "luke"], {"add_prefix_space": True}),
    "no prefix space": (["albert", "xlm-roberta", "camembert", "deberta-v2"], {"add_prefix_space": False}),
    "begin and end": (["gpt2"], {"add_bos_token": True, "add_eos_token": True}),
    "begin": (["gpt2"], {"add_bos_token": True, "bos_token": "<begin>"}),
    "cased": (["albert"], {"do_lower_case": False}),
    "lower case": (["deberta-v2", "xlnet"], {"do_lower_case": True}),
    "accents": (["albert"], {"keep_accents": True}),
    "punctuation apart": (["deberta-v2"], {"split_by_punct": True}),
    "other tokens": (["roberta", "xlnet", "deberta-v2"], {"mask_token": "<blank>", "pad_token": "<nothing>"}),
    "extra tokens": (["roberta", "xlm-roberta", "deberta-v2"], {"extra_special_tokens": ["<e1>", "the"]}),
    "clean": (["luke", "albert", "xlnet"], {"clean_up_tokenization_spaces": True}),
    "left": (["roberta", "albert", "bert"], {"padding_side": "left", "truncation_side": "left"}),
    "mask with its space": (
        FAMILIES, {"mask_token": {"__type": "AddedToken", "content": "<gap>", "lstrip": True, "normalized": False}}
    ),
}  # fmt: skip
CASES = [(name, model_type) for name, (model_types, _) in CONFIGS.items() for model_type in model_types]


@pytest.mark.parametrize("name, model_type", CASES, ids=[" ".join(case) for case in CASES])
def test_settings(folders, tmp_path, name, model_type):
    config = CONFIGS[name][1]
    for file in folders(model_type).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    given = json.loads((tmp_path / "tokenizer_config.json").read_text())
    write_json(tmp_path / "tokenizer_config.json", given | config)
    ours, theirs = load_both(tmp_path)
    texts = [*HARD_TEXTS, "a <gap> b <e1> c <begin> the <blank>"]
    options = RETURN_ALL | {"padding": True, "truncation": True, "max_length": 30}
    check_same(ours(texts, texts, **options), theirs(texts, texts, **options))
    ids = ours(texts).input_ids
    assert ours.batch_decode(ids, skip_special_tokens=True) == theirs.batch_decode(ids, skip_special_tokens=True)
    if not any(isinstance(value, dict) for value in config.values()):  # a file's form of a token
        check_same(AutoTokenizer.from_pretrained(folders(model_type), **config)(texts), theirs(texts))
