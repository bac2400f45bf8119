"""Collators: shares and units of masking by their definition, padding as transformers has it."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from bertcore import AutoTokenizer, DataCollatorForMultipleChoice, DataCollatorForTokenClassification
from bertcore.training import DataCollatorForLanguageModeling, DataCollatorWithPadding, Masking, TrainingArguments
from bertcore.training.collators import IGNORED, NumberedCollator, Words
from tests.refusals import refuses
from tests.tiny_bert import VOCABULARY
from tests.tolerances import assert_same_arrays

COUNT = 97
WORDS = Words(
    mask=4,
    is_special=np.arange(COUNT) < 5,
    begins=np.arange(COUNT) % 3 > 0,  # a third of the tokens goes on with a word
    ordinary=np.arange(5, COUNT),
)


def texts(count=200, longest=160):
    rng = np.random.default_rng(1)
    for _ in range(count):
        ids = rng.integers(5, COUNT, rng.integers(3, longest))
        ids[[0, -1]] = 2, 3
        yield ids


def masked(masking, ids, seed=0):
    replaced, labels = masking.apply(ids, WORDS, np.random.default_rng(seed))
    assert (labels[labels != IGNORED] == ids[labels != IGNORED]).all()
    assert (replaced[labels == IGNORED] == ids[labels == IGNORED]).all()
    assert (labels[WORDS.is_special[ids]] == IGNORED).all()
    return replaced, labels


ROWS = [
    {"input_ids": [2, 5, 6, 3], "token_type_ids": [0, 0, 1, 1], "label": 1, "special_tokens_mask": [1, 0, 0, 1]},
    {"input_ids": [2, 3], "token_type_ids": [0, 0], "label": 0, "special_tokens_mask": [1, 1]},
]


class Tensor:
    """An array of another library."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self.values


def test_arrays_of_other_libraries_are_padded(tokenizer):
    collate, rows = DataCollatorWithPadding(tokenizer), [{name: Tensor(it) for name, it in row.items()} for row in ROWS]
    assert_same_arrays(collate(rows), collate(ROWS))


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_rows_of_formatted_datasets_are_padded(tokenizer, kind):
    pytest.importorskip("torch")
    table, collate = pytest.importorskip("datasets").Dataset.from_list(ROWS), DataCollatorWithPadding(tokenizer)
    assert_same_arrays(collate(list(table.with_format(kind))), collate(ROWS))


def test_labels_of_none_are_left_out(tokenizer):
    collate = DataCollatorWithPadding(tokenizer)
    assert repr(collate).startswith("DataCollatorWithPadding(padding=True, max_length=None, pad_to_multiple_of=1")
    made = collate([row | {"label": None} for row in ROWS])
    assert "labels" not in made and made["input_ids"].shape == (2, 4)
    with pytest.raises(ValueError, match=r"examples\[1\]\['label'\] is None, expected numbers"):
        collate([ROWS[0], ROWS[1] | {"label": None}])


@pytest.mark.parametrize("unit", ["token", "word", "span"])
@pytest.mark.parametrize("share", [0.0, 0.15, 0.5, 1.0])
def test_share(unit, share):
    """Of every text the share of its tokens, within a word's length; at least one, and all or none at the ends."""
    for ids in texts():
        _, labels = masked(Masking(share, unit=unit), ids)
        found, wanted = (labels != IGNORED).sum(), max(1, round(share * (len(ids) - 2))) if share else 0
        if unit == "token" or share in (0, 1):
            assert found == wanted
        else:
            assert 1 <= found <= max(wanted, 12)


@pytest.mark.parametrize("mask_share, random_share", [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.7, 0.3)])
def test_what_stands_in_the_place_of_a_token(mask_share, random_share):
    masking, counts = Masking(0.5, mask_share, random_share), np.zeros(3)
    for seed, ids in enumerate(texts(400)):
        replaced, labels = masked(masking, ids, seed)
        chosen = labels != IGNORED
        is_mask, stays = replaced[chosen] == WORDS.mask, replaced[chosen] == ids[chosen]
        counts += [is_mask.sum(), stays.sum(), (~is_mask & ~stays).sum()]
        assert not WORDS.is_special[replaced[chosen & (replaced != WORDS.mask)]].any()
    by_chance = random_share / len(WORDS.ordinary)  # a random word may be the same
    expected = [mask_share, 1 - mask_share - random_share + by_chance, random_share - by_chance]
    np.testing.assert_allclose(counts / counts.sum(), expected, atol=0.015)


def test_whole_words_share_their_fate():
    for seed, ids in enumerate(texts()):
        replaced, labels = masked(Masking(0.3, 0.5, 0.0, unit="word"), ids, seed)
        words = WORDS.units(ids, by_word=True)
        for word in range(words.max() + 1):
            assert len(set((labels != IGNORED)[words == word])) == 1
            assert len(set((replaced == WORDS.mask)[words == word])) == 1


def test_spans():
    """Spans are longer than words that are chosen one by one are by chance, and do not cross a special token."""
    longest, runs = 0, []
    for seed, ids in enumerate(texts()):
        ids[len(ids) // 2] = 3
        words = WORDS.units(ids, by_word=True)
        _, labels = masked(Masking(0.15, unit="span"), ids, seed)
        chosen = np.zeros(words.max() + 2, bool)
        chosen[words[labels != IGNORED]] = True
        edges = np.flatnonzero(np.diff(np.concatenate([[False], chosen, [False]])))
        runs += (edges[1::2] - edges[::2]).tolist()
        longest = max(longest, *runs)
    assert np.mean(runs) > 2
    assert longest > 5


def test_lengths_of_spans_are_those_of_spanbert():
    """Geometric among 1 to 10 words, where 3.8 is the mean (Joshi et al. 2020, section 3.1)."""
    ids, lengths = np.full(20000, 7), []  # words of one token; of so few spans hardly any two touch
    for seed in range(12):
        units = Masking(0.02, unit="span").choose_units(WORDS.units(ids, by_word=True), np.random.default_rng(seed))
        lengths += np.bincount(units[units >= 0]).tolist()[:-1]  # the last one is what was left
    assert len(lengths) > 1000 and max(lengths) == 10
    chances = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    np.testing.assert_allclose(np.bincount(lengths)[1:] / len(lengths), chances, atol=0.03)
    assert np.mean(lengths) == pytest.approx(3.8, abs=0.2)


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_static_masks_are_of_the_text_alone_and_dynamic_ones_of_every_epoch(tokenizer, unit):
    """Over ten epochs, with other texts beside it and other padding."""
    rng = np.random.default_rng(0)
    text, others = ({"input_ids": [2, *rng.integers(5, 60, count).tolist(), 3]} for count in (30, 40))
    seen = {True: set(), False: set()}
    for is_static, found in seen.items():
        collator = DataCollatorForLanguageModeling(tokenizer)
        collator.masking = Masking(unit=unit, is_static=is_static)
        numbered = NumberedCollator(collator, 7)
        for epoch in range(10):
            batch = numbered([others, text] if epoch % 2 else [text], epoch)
            row = [batch[name][-1][:32].tobytes() for name in ("input_ids", "labels")]
            found.add(tuple(row))
    assert len(seen[True]) == 1 and len(seen[False]) > 7


def test_dynamic_masks_choose_every_token_alike():
    ids, counts = np.array([2, *range(5, 45), 3]), np.zeros(42)
    for epoch in range(2000):
        counts += masked(Masking(), ids, epoch)[1] != IGNORED
    assert counts[[0, -1]].sum() == 0
    np.testing.assert_allclose(counts[1:-1] / 2000, 0.15, atol=0.035)


def test_texts_without_words():
    for ids in (np.zeros(0, np.int64), np.array([2]), np.array([2, 3, 0, 0])):
        for unit in ("token", "word", "span"):
            assert (masked(Masking(unit=unit), ids)[1] == IGNORED).all()


def test_words_of_a_vocabulary(tokenizer):
    words = Words.of(tokenizer)
    assert words.mask == 4 and words.is_special[:5].all() and not words.is_special[5:].any()
    assert [VOCABULARY[index] for index in np.flatnonzero(~words.begins)][:2] == ["##a", "##b"]
    ids = np.array(tokenizer.encode("the cats sat"))
    assert words.units(ids, by_word=True).tolist() == [-1, 0, 1, 1, 2, -1]
    assert words.units(ids, by_word=False).tolist() == [-1, 0, 1, 2, 3, -1]


def test_batches_for_masked_models(tokenizer):
    examples = [tokenizer(text) for text in ("the cat sat on an mat", "paris is the capital of france", "cat")]
    options = {"mlm_probability": 0.3, "pad_to_multiple_of": 8}
    batch = DataCollatorForLanguageModeling(tokenizer, **options, seed=1)(examples)
    assert {name: array.shape for name, array in batch.items()} == dict.fromkeys(
        ["input_ids", "token_type_ids", "attention_mask", "labels"], (3, 8)
    )
    assert (batch["labels"][batch["attention_mask"] == 0] == IGNORED).all()
    again = DataCollatorForLanguageModeling(tokenizer, **options, seed=1)
    np.testing.assert_array_equal(again(examples)["labels"], batch["labels"])
    assert (again(examples)["labels"] != batch["labels"]).any()


def test_batches_for_causal_models(tokenizer):
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)([tokenizer("the cat"), tokenizer("paris")])
    np.testing.assert_array_equal(batch["labels"], np.where(batch["attention_mask"] == 1, batch["input_ids"], IGNORED))


def test_labels(tokenizer):
    examples = [{**tokenizer(text), "label": label} for text, label in (("the cat", 1), ("paris", 0))]
    assert DataCollatorWithPadding(tokenizer)(examples)["labels"].tolist() == [1, 0]
    examples = [{**tokenizer(text), "labels": [0.5, 1.0]} for text in ("the cat", "paris")]
    assert DataCollatorWithPadding(tokenizer)(examples)["labels"].dtype == np.float32
    tags = [{"input_ids": [2, 7, 3], "labels": [0, 5, 0]}, {"input_ids": [2, 3], "labels": [0, 0]}]
    assert DataCollatorWithPadding(tokenizer)(tags)["labels"].tolist() == [[0, 5, 0], [0, 0, IGNORED]]


def test_examples_without_tokens(tokenizer):
    batch = DataCollatorWithPadding(tokenizer)([{"input_ids": []}, {"input_ids": [2, 3]}])
    assert batch["input_ids"].dtype == np.int64 and batch["input_ids"].tolist() == [[0, 0], [2, 3]]


@pytest.mark.parametrize("examples, error", [
    ([], r"examples is \[\], expected a list of at least one mapping"),
    ({"input_ids": [[1]]}, "examples is {"),
    ([{"input_ids": [1]}, [1]], r"examples\[1\] is \[1\], expected a mapping"),
    ([None], r"examples\[0\] is None, expected a mapping"),
    ([{"input_ids": [[1], [2]]}], r"examples\[0\]\['input_ids'\] is \[\[1\], \[2\]\]"),
    ([{"input_ids": [[1], []]}], r"examples\[0\]\['input_ids'\]"),
    ([{"input_ids": [1.5]}], r"examples\[0\]\['input_ids'\] is \[1.5\]"),
    ([{"input_ids": [True]}], r"examples\[0\]\['input_ids'\]"),
    ([{"input_ids": [2**70]}], r"examples\[0\]\['input_ids'\]"),
    ([{"input_ids": None}], r"examples\[0\]\['input_ids'\] is None"),
    ([{"input_ids": [1]}, {"labels": [1]}], r"examples\[1\] has no input_ids"),
    ([{"input_ids": [1]}, {"input_ids": [1], "label": 3}], r"examples\[1\] has label"),
    ([{"input_ids": [1], "label": "cat"}], r"examples\[0\]\['label'\] is 'cat'"),
    ([{"input_ids": [1, 2], "label": [1]}, {"input_ids": [1], "label": [1, 2, 3]}], r"examples\[1\]\['label'\]"),
])  # fmt: skip
def test_examples_that_do_not_fit(tokenizer, examples, error):
    refuses(ValueError, error, DataCollatorWithPadding(tokenizer), examples)


@pytest.mark.parametrize("kind, options, error", [
    (Masking, {"share": 1.1}, "share is 1.1"),
    (Masking, {"share": True}, "share is True"),
    (Masking, {"mask_share": 0.9, "random_share": 0.2}, "at most 1 together"),
    (Masking, {"unit": "letter"}, "unit is 'letter'"),
    (DataCollatorWithPadding, {"pad_to_multiple_of": 0}, "pad_to_multiple_of is 0"),
    (DataCollatorWithPadding, {"pad_to_multiple_of": "8"}, "pad_to_multiple_of is '8'"),
    (DataCollatorWithPadding, {"padding": "max_length", "max_length": -1}, "max_length is -1"),
    (DataCollatorWithPadding, {"padding": 1}, "padding is 1"),
    (DataCollatorForLanguageModeling, {"mlm": "yes"}, "mlm is 'yes'"),
    (DataCollatorForLanguageModeling, {"mlm": False, "whole_word_mask": True}, "mlm=False"),
    (DataCollatorForLanguageModeling, {"whole_word_mask": 1}, "whole_word_mask is 1"),
    (DataCollatorForLanguageModeling, {"static": None}, "static is None"),
    (DataCollatorForLanguageModeling, {"seed": None}, "seed is None"),
    (DataCollatorForLanguageModeling, {"mlm_probability": float("nan")}, "mlm_probability is nan"),
    (DataCollatorForLanguageModeling, {"mask_replace_prob": 0.95}, "^mask_replace_prob and random_replace_prob are"),
    (DataCollatorForLanguageModeling, {"random_replace_prob": 2}, "random_replace_prob is 2"),
])  # fmt: skip
def test_invalid_options(tokenizer, kind, options, error):
    refuses((TypeError, ValueError), error, kind, *(() if kind is Masking else (tokenizer,)), **options)


@pytest.mark.parametrize("number", [-1, len(VOCABULARY), 10**9])
def test_ids_beyond_the_vocabulary_and_texts_beyond_max_length(tokenizer, number):
    with pytest.raises(ValueError, match=rf"examples\[1\]\['input_ids'\] has {number}, expected ids from 0 to"):
        DataCollatorForLanguageModeling(tokenizer)([{"input_ids": [5]}, {"input_ids": [5, number]}])
    with pytest.raises(ValueError, match=r"examples\[1\] has 3 tokens, max_length is 2"):
        DataCollatorWithPadding(tokenizer, "max_length", 2)([{"input_ids": [1]}, {"input_ids": [1, 2, 3]}])


@pytest.mark.parity
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_transformers(bert_folder, side):
    transformers = pytest.importorskip("transformers")
    ours = AutoTokenizer.from_pretrained(bert_folder, padding_side=side)
    theirs = transformers.AutoTokenizer.from_pretrained(bert_folder, padding_side=side)
    texts, options = ("the cat sat", "paris", "capital of france"), {"pad_to_multiple_of": 4}
    found = DataCollatorWithPadding(ours, **options)([{**ours(text), "label": 1} for text in texts])
    peer = transformers.DataCollatorWithPadding(theirs, return_tensors="np", **options)
    expected = peer([{**theirs(text), "label": 1} for text in texts])
    assert_same_arrays(found, expected)
    rows = [{**theirs(text), "labels": [IGNORED, *range(text.count(" ") + 1), IGNORED]} for text in texts]
    peer = transformers.DataCollatorForTokenClassification(theirs, return_tensors="np", **options)
    assert_same_arrays(DataCollatorForTokenClassification(ours, **options)(rows), dict(peer(rows)))


@pytest.mark.parity
@pytest.mark.parametrize("options", [{}, {"padding": "max_length", "max_length": 12}, {"pad_to_multiple_of": 8}])
def test_choices_of_transformers(bert_folder, options):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_folder)
    firsts, seconds = (["paris", "the cat"], ["the", "the"]), (["a", "the capital of france"], ["cat sat", "the dog"])
    rows = [{**tokenizer(*pair), "label": at} for at, pair in enumerate(zip(firsts, seconds, strict=True))]
    expected = transformers.DataCollatorForMultipleChoice(tokenizer, **options)(rows)
    found = DataCollatorForMultipleChoice(AutoTokenizer.from_pretrained(bert_folder), **options)(rows)
    assert_same_arrays(found, {name: tensor.numpy() for name, tensor in expected.items()})


def test_wrong_choices_are_refused(tokenizer):
    collate, good = DataCollatorForMultipleChoice(tokenizer), {"input_ids": [[2, 5, 3], [2, 3]], "label": 1}
    for ids in ([[2, 3]], [2, 5, 3], 7):
        refuses(ValueError, r"examples\[1\]\['input_ids'\] is", collate, [good, good | {"input_ids": ids}])
    refuses(ValueError, r"examples\[0\].* is 2, expected a list of integers", collate, [good | {"input_ids": [2, 5]}])


def test_settings_of_numpy_are_pythons():
    """A checkpoint keeps them as JSON."""
    assert json.loads(json.dumps(asdict(Masking(np.float32(0.25))))) == asdict(Masking(0.25))
    integers = {name: np.int64(3) for name in ("seed", "data_seed", "per_device_train_batch_size", "eval_steps")}
    args = TrainingArguments("unused", learning_rate=np.float32(0.5), max_seconds=np.float64(3), **integers)
    assert json.loads(json.dumps(args.to_dict())).items() >= (integers | {"learning_rate": 0.5}).items()
