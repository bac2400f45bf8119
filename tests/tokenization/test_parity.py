"""Equal to transformers' BertTokenizer, whatever the text and the options."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertcore.tokenization import AutoTokenizer
from tests.tokenization.corpus import HARD_TEXTS, train_vocabulary, write_json
from tests.tokenization.parity import OPTIONS, RETURN_ALL, check_same

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module", params=["demo", "vocab.txt", "cased", "added tokens", "tokenizer.json overruled"])
def both(request, tmp_path_factory, vocabulary_folder, demo_folder):
    """(our tokenizer, transformers') of one folder."""
    import transformers

    folder = tmp_path_factory.mktemp("tokenizer")
    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 64}
    if request.param == "demo":
        folder = demo_folder
    elif request.param == "cased":
        train_vocabulary(folder / "vocab.txt", lower_case=False)
        config |= {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False}
        write_json(folder / "tokenizer_config.json", config)
    elif request.param == "tokenizer.json overruled":
        for name in ("tokenizer.json", "vocab.txt"):
            shutil.copy(demo_folder / name, folder / name)
        write_json(folder / "tokenizer_config.json", config | {"do_lower_case": True, "strip_accents": False})
    else:
        shutil.copy(vocabulary_folder / "vocab.txt", folder / "vocab.txt")
        if request.param == "added tokens":
            size = len((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
            write_json(folder / "added_tokens.json", {"plain": size, "[ENT]": size + 1, "Word": size + 2})
            mask = {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
            # Under its older name, additional_special_tokens, transformers 5 forgets that this token is special.
            special = {"mask_token": mask, "extra_special_tokens": ["[ENT]"]}
            write_json(folder / "special_tokens_map.json", special)
        write_json(folder / "tokenizer_config.json", config)
    return AutoTokenizer.from_pretrained(folder), transformers.BertTokenizer.from_pretrained(folder)


@pytest.mark.filterwarnings("ignore:max_length")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_texts(both, options):
    ours, theirs = both
    check_same(ours(HARD_TEXTS, **RETURN_ALL, **options), theirs(HARD_TEXTS, **RETURN_ALL, **options))
    for text in HARD_TEXTS[:5]:
        check_same(ours(text, **options), theirs(text, **options))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_pairs(both, options):
    ours, theirs = both
    texts = [text[:60] for text in HARD_TEXTS]  # the library takes all pairs of two texts' overflowing pieces
    pairs = texts[5:] + texts[:5]
    check_same(ours(texts, pairs, **RETURN_ALL, **options), theirs(texts, pairs, **RETURN_ALL, **options))
    check_same(ours(pairs[3], pairs[4], **options), theirs(pairs[3], pairs[4], **options))


@pytest.mark.parametrize("max_length", [3, 4, 5, 10, 11, 12, 13, 21, 22])
def test_longest_first(both, max_length):
    ours, theirs = both
    lengths = [(20, 4), (4, 20), (9, 9), (9, 10), (10, 9), (0, 20), (20, 0), (1, 1)]
    pair = [["ab " * length for length in column] for column in zip(*lengths, strict=True)]
    options = {"truncation": True, "max_length": max_length}
    check_same(ours(*pair, **options), theirs(*pair, **options))


@pytest.mark.parametrize("strategy", ["only_first", "only_second"])
@pytest.mark.parametrize("stride", [0, 2])
def test_truncation_of_one(both, strategy, stride):
    ours, theirs = both
    short, long = ["a short question?"] * 5, HARD_TEXTS[3:8]
    texts = (long, short) if strategy == "only_first" else (short, long)
    options = {"truncation": strategy, "max_length": 32, "stride": stride, "return_overflowing_tokens": True}
    check_same(ours(*texts, **RETURN_ALL, **options), theirs(*texts, **RETURN_ALL, **options))


def test_truncation_from_the_left(demo_folder, tmp_path):
    import transformers

    for file in ("tokenizer.json", "vocab.txt"):
        shutil.copy(demo_folder / file, tmp_path / file)
    config = json.loads((demo_folder / "tokenizer_config.json").read_text())
    write_json(tmp_path / "tokenizer_config.json", config | {"truncation_side": "left", "padding_side": "left"})
    ours = AutoTokenizer.from_pretrained(tmp_path)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    options = {"truncation": True, "max_length": 12, "stride": 2, "padding": True, "return_overflowing_tokens": True}
    check_same(ours(HARD_TEXTS, **options), theirs(HARD_TEXTS, **options))


def test_arrays(both):
    ours, theirs = both
    found = ours(HARD_TEXTS, padding=True, return_tensors="np", **RETURN_ALL)
    wanted = theirs(HARD_TEXTS, padding=True, return_tensors="np", **RETURN_ALL)
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape and (found[name] == array).all()
    assert (
        ours("one text", return_tensors="np").input_ids.shape == theirs("one text", return_tensors="np").input_ids.shape
    )


@pytest.mark.parametrize("overflow", [False, True], ids=["whole", "overflow"])
def test_rows(both, overflow):
    ours, theirs = both
    options = {
        "padding": True,
        "truncation": overflow,
        "max_length": 23 if overflow else None,
        "return_overflowing_tokens": overflow,
    }
    texts, pairs = HARD_TEXTS[:18:2], HARD_TEXTS[1:19:2]
    found, wanted = ours(texts, pairs, **options), theirs(texts, pairs, **options)
    for row in range(len(wanted.input_ids)):
        assert found.tokens(row) == wanted.tokens(row)
        assert found.word_ids(row) == wanted.word_ids(row)
        assert found.sequence_ids(row) == wanted.sequence_ids(row)


def test_back_to_text(both):
    ours, theirs = both
    ids = theirs(HARD_TEXTS).input_ids
    for skip in (False, True):
        assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
        assert ours.batch_decode(ids, skip_special_tokens=skip) == theirs.batch_decode(ids, skip_special_tokens=skip)
        for row in ids:
            found = ours.convert_ids_to_tokens(row, skip_special_tokens=skip)
            assert found == theirs.convert_ids_to_tokens(row, skip_special_tokens=skip)
    tokens = [*theirs.convert_ids_to_tokens(ids[3]), "no such token"]
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert [ours.tokenize(text) for text in HARD_TEXTS] == [theirs.tokenize(text) for text in HARD_TEXTS]
    assert [ours.encode(text) for text in HARD_TEXTS] == [theirs.encode(text) for text in HARD_TEXTS]


def test_attributes(both):
    ours, theirs = both
    names = ["vocab_size", "model_max_length", "padding_side", "truncation_side", "model_input_names"]
    for name in ("cls", "sep", "pad", "unk", "mask", "bos", "eos"):
        names += [f"{name}_token", f"{name}_token_id"]
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs) and ours.get_vocab() == theirs.get_vocab()
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)
    assert ours.special_tokens_map == {k: v for k, v in theirs.special_tokens_map.items() if k.endswith("_token")}
    assert ours.num_special_tokens_to_add() == 2 and ours.num_special_tokens_to_add(pair=True) == 3


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=4))
def test_any_text(both, texts):
    ours, theirs = both
    check_same(ours(texts, **RETURN_ALL), theirs(texts, **RETURN_ALL))


def test_long_model_max_length_is_theirs(vocabulary_folder):
    import transformers

    ours = AutoTokenizer.from_pretrained(vocabulary_folder)
    theirs = transformers.BertTokenizer.from_pretrained(vocabulary_folder)
    assert ours.model_max_length == theirs.model_max_length > 10**20


@pytest.mark.parametrize(
    "name", ["BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer"]
)
def test_classes_that_are_berts(vocabulary_folder, tmp_path, name):
    import transformers

    shutil.copy(vocabulary_folder / "vocab.txt", tmp_path / "vocab.txt")
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": name})
    ours = AutoTokenizer.from_pretrained(tmp_path)
    theirs = getattr(transformers, name).from_pretrained(tmp_path)
    check_same(ours(HARD_TEXTS, HARD_TEXTS), theirs(HARD_TEXTS, HARD_TEXTS))
