"""Vocabularies learnt from texts: reproducible, of the requested size, loaded by bertcore and transformers."""

import hashlib
import subprocess
import sys

import pytest

from bertcore.tokenization import AutoTokenizer, train_tokenizer
from bertcore.tokenization import training as module
from tests.refusals import refuses
from tests.tokenization.corpus import HARD_TEXTS, training_texts
from tests.tokenization.parity import check_same

TEXTS = [text.replace("\0", "") for text in training_texts()][-16:]
CLASSES = [
    "BertTokenizer", "DistilBertTokenizer", "MPNetTokenizer", "RobertaTokenizer", "GPT2Tokenizer", "DebertaTokenizer",
    "AlbertTokenizer", "XLNetTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer", "DebertaV2Tokenizer",
]  # fmt: skip
SIZE = 400


@pytest.fixture(scope="module", params=CLASSES)
def trained(request):
    return request.param, train_tokenizer(TEXTS, tokenizer_class=request.param, vocab_size=SIZE, model_max_length=64)


def test_saved_and_loaded(trained, tmp_path):
    _, tokenizer = trained
    assert len(tokenizer) <= SIZE
    special = tokenizer.special_tokens_map.values()
    assert set(tokenizer.all_special_ids) == set(range(len(set(special))))
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in HARD_TEXTS:
        check_same(loaded(text, text[:9], truncation=True), tokenizer(text, text[:9], truncation=True))
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert (loaded.model_max_length, loaded.model_input_names) == (64, tokenizer.model_input_names)


def test_texts_come_back(trained):
    _, tokenizer = trained
    text = "it was a plain sentence with words"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True).strip() == text
    assert len(tokenizer.encode(text, add_special_tokens=False)) < len(text)


@pytest.mark.parity
def test_transformers_loads_it(trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    _, tokenizer = trained
    tokenizer.save_pretrained(tmp_path)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in [*HARD_TEXTS, *TEXTS]:
        ours, theirs = tokenizer(text, "the"), peer(text, "the")
        assert ours["input_ids"] == theirs["input_ids"], text
        assert ours.get("token_type_ids") == theirs.get("token_type_ids")
    assert (peer.mask_token_id, peer.pad_token_id) == (tokenizer.mask_token_id, tokenizer.pad_token_id)


def digest(tokenizer):
    return hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_the_same_texts_give_the_same_tokenizer_in_another_process(kind):
    """The other process has another order of hash tables."""
    of_texts = f"train_tokenizer(TEXTS, kind={kind!r}, vocab_size={SIZE})"
    code = f"from tests.tokenization.test_training import *; print(digest({of_texts}))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    here = digest(train_tokenizer(iter(TEXTS), kind=kind, vocab_size=SIZE))
    assert here == digest(train_tokenizer(TEXTS, kind=kind, vocab_size=SIZE)) == there.stdout.strip()
    assert here != digest(train_tokenizer(TEXTS[1:], kind=kind, vocab_size=SIZE))


def test_words_are_counted(monkeypatch):
    monkeypatch.setattr(module, "REPEATED", 7)
    texts = ["often often often rare"] * 40
    few = train_tokenizer(texts, vocab_size=5 + 2 * 8 + 5, min_frequency=50)
    assert "often" in few.get_vocab() and "rare" not in few.get_vocab()


def test_rare_letters_give_way_to_words():
    texts = ["the words of these texts"] * 9 + ["".join(map(chr, range(0x4E00, 0x4E00 + 500)))]
    tokenizer = train_tokenizer(texts, vocab_size=60)
    assert "words" in tokenizer.get_vocab() and len(tokenizer) <= 60


def test_case():
    texts = ["Upper UPPER upper"] * 9
    for name in ("BertTokenizer", "AlbertTokenizer"):
        lower, kept = (
            train_tokenizer(texts, tokenizer_class=name, vocab_size=60, lower_case=flag) for flag in (None, False)
        )
        assert lower.encode("UPPER") == lower.encode("upper")
        assert kept.encode("UPPER") != kept.encode("upper")


@pytest.mark.parametrize("kind", [None, "bpe", "unigram"])
@pytest.mark.parametrize("texts, error, message", [
    ("text", TypeError, "texts is a string"),
    (["a", 3], TypeError, r"texts\[1\] is int"),
    (["a", "\ud800"], ValueError, r"texts\[1\] is not valid Unicode"),
    ([], ValueError, "no words to learn from"),
    (["", " \n"], ValueError, "no words to learn from"),
])  # fmt: skip
def test_wrong_texts(kind, texts, error, message):
    refuses(error, message, train_tokenizer, texts, kind=kind)


@pytest.mark.parametrize("options, error, message", [
    ({"kind": "word"}, ValueError, "kind is 'word', expected one of wordpiece, bpe, unigram"),
    ({"tokenizer_class": "LukeTokenizer"}, ValueError, "tokenizer_class is 'LukeTokenizer', expected one of Bert"),
    ({"kind": "bpe", "tokenizer_class": "BertTokenizer"}, ValueError, "a BertTokenizer is of the kind 'wordpiece'"),
    ({"vocab_size": 8}, ValueError, "vocab_size is 8, expected an integer of at least 9"),
    ({"kind": "bpe", "vocab_size": 260}, ValueError, "vocab_size is 260, expected an integer of at least 261"),
    ({"vocab_size": 1e4}, TypeError, "vocab_size is .*, expected an integer"),
    ({"min_frequency": 0}, ValueError, "min_frequency is 0"),
    ({"kind": "bpe", "lower_case": True}, ValueError, "a RobertaTokenizer keeps upper case"),
    ({"lower_case": "yes"}, TypeError, "lower_case is 'yes'"),
    ({"model_max_length": -1}, ValueError, "model_max_length is -1"),
])  # fmt: skip
def test_wrong_arguments(options, error, message):
    refuses(error, message, train_tokenizer, TEXTS, **options)
