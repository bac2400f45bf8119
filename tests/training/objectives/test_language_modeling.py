"""Masked, causal, permutation and translation language modelling: examples, batches, losses and weights."""

import numpy as np
import pytest

from bertcore import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, value_and_grad
from bertcore.training import Masking
from bertcore.training.collators import IGNORED, Words
from bertcore.training.objectives import CausalLM, MaskedLM, Objective, PermutationLM, TranslationLM
from bertcore.training.objectives.text_examples import document_ids
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import drawn_anew, tiny_config
from tests.tokenization.family_folders import write_family
from tests.tolerances import assert_same_arrays
from tests.training.objectives.students import mean_cross_entropy

pytestmark = pytest.mark.usefixtures("on_numpy")

DOCUMENTS = [["the cat sat on an mat", "", "paris is an capital"], [], ["of france"]]


class WithEnd:
    """The tokenizer with an end-of-text token and no padding, as GPT-2's."""

    pad_token_id, eos_token_id = None, 3

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, *args, **options):
        return self._tokenizer(*args, **options)


def plain_ids(tokenizer, texts):
    return [token for text in texts for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


@pytest.mark.parametrize("max_length", [3, 7, 40])
def test_masked_examples_are_pieces_of_documents(tokenizer, max_length):
    made = list(MaskedLM().examples(DOCUMENTS, tokenizer, max_length=max_length, seed=0))
    rows = [example["input_ids"] for example in made]
    assert all(row[0] == 2 and row[-1] == 3 and 2 < len(row) <= max_length for row in rows)
    inner = [row[1:-1] for row in rows]
    assert [token for row in inner for token in row] == plain_ids(
        tokenizer, [text for document in DOCUMENTS for text in document]
    )
    first = len(plain_ids(tokenizer, DOCUMENTS[0]))
    assert first in np.cumsum([len(row) for row in inner])  # a document ends a piece
    assert sum(len(row) < max_length for row in rows) <= 2


def test_causal_examples_are_one_stream(tokenizer):
    tokenizer = WithEnd(tokenizer)
    made = [row["input_ids"] for row in CausalLM().examples(DOCUMENTS, tokenizer, max_length=5, seed=0)]
    with_tokens = (text for text in DOCUMENTS if text)  # the others have no end, either
    stream = [token for text in with_tokens for token in [*plain_ids(tokenizer, text), tokenizer.eos_token_id]]
    assert [token for row in made for token in row] == stream[: len(stream) - (len(stream) % 5 == 1)]
    assert {len(row) for row in made[:-1]} == {5}


@pytest.mark.parametrize("objective, least", [(MaskedLM(), 3), (CausalLM(), 1)])
@pytest.mark.parametrize("max_length", [0, -1, True, 7.0])
def test_too_short_a_max_length_is_an_error(tokenizer, objective, least, max_length):
    with pytest.raises(ValueError, match=f"max_length is {max_length!r}, expected at least {least}"):
        list(objective.examples(DOCUMENTS, WithEnd(tokenizer), max_length=max_length, seed=0))


def test_causal_examples_need_an_end(tokenizer):
    refuses(ValueError, "no eos_token", list, CausalLM().examples(DOCUMENTS, tokenizer, max_length=5))


@pytest.mark.parametrize("unit", ["token", "word", "span"])
@pytest.mark.parametrize("is_static", [False, True])
def test_masked_lm_learns_what_its_masking_chose(tokenizer, unit, is_static):
    objective = MaskedLM(Masking(0.4, unit=unit, is_static=is_static))
    examples = list(objective.examples(DOCUMENTS, tokenizer, max_length=9, seed=0))
    batch = objective.collator(tokenizer, seed=1)(examples)
    again = objective.collator(tokenizer, seed=2)(examples)
    assert (again["labels"] == batch["labels"]).all() == is_static
    assert objective.weight(batch) == (batch["labels"] != IGNORED).sum() > 0
    model = AutoModelForMaskedLM.from_config(CONFIG)
    out, grads = objective.value_and_grad(model, batch)
    expected, expected_grads = value_and_grad(model)(**batch)
    assert out.loss == expected.loss == pytest.approx(objective.forward(model, batch).loss, rel=1e-6)
    assert_same_arrays(grads, expected_grads)


@pytest.mark.parametrize("side", ["left", "right"])
def test_causal_lm_counts_what_is_predicted(tokenizer, side):
    """Losses of batches, weighed, are the loss of all."""
    config, objective = tiny_config("gpt2"), CausalLM()
    model = AutoModelForCausalLM.from_config(config, dtype="float64")
    rng = np.random.default_rng(0)
    examples = [{"input_ids": rng.integers(6, 90, length).tolist()} for length in (1, 7, 2, 3)]
    collator = objective.collator(WithEnd(tokenizer))
    collator.tokenizer.padding_side = side
    batches = [collator(part) for part in (examples[:2], examples[2:], examples)]
    weights = [objective.weight(batch) for batch in batches]
    losses = [objective.forward(model, batch).loss for batch in batches]
    assert weights == [6, 3, 9]
    np.testing.assert_allclose(np.dot(weights[:2], losses[:2]) / 9, losses[2], rtol=1e-12)


def test_an_abstract_objective_names_its_missing_methods(tokenizer):
    assert Objective().collator(tokenizer) is None
    for call in (
        lambda: Objective().examples([], tokenizer, max_length=3),
        lambda: Objective().forward(None, {}),
        lambda: Objective().weight({}),
    ):
        refuses(NotImplementedError, "Objective ", call)


def test_documents_are_tokenised_together_and_stay_apart(tokenizer, monkeypatch):
    documents = [["the cat", "", "sat"], [], ["on"], [""], ["an mat"] * 9]
    expected = [[ids for text in document if (ids := plain_ids(tokenizer, [text]))] for document in documents]
    for at_once in (1, 3, 256):
        monkeypatch.setattr("bertcore.training.objectives.text_examples.AT_ONCE", at_once)
        assert list(document_ids(tokenizer, iter(documents))) == expected
    refuses(TypeError, "documents has 'the cat', expected lists of strings", list, document_ids(tokenizer, ["the cat"]))


CLS, SEP = 2, 3


def text_of(count, rng):
    return np.concatenate([[CLS], rng.integers(5, 69, count), [SEP]])


def model(**changes):
    return drawn_anew(AutoModelForCausalLM.from_config(tiny_config("xlnet-base-cased") | changes, dtype="float64"))


@pytest.mark.parametrize("share", [0.1, 1 / 6, 0.5, 1])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 127])
def test_a_share_of_the_ordinary_tokens_is_predicted_once_each(tokenizer, share, count):
    rng, words = np.random.default_rng(count), Words.of(tokenizer)
    ids = text_of(count, rng)
    order = PermutationLM(share).order(ids, words, rng)
    assert len(order) == (max(1, round(share * count)) if count else 0)
    assert len(set(order.tolist())) == len(order)
    assert not words.is_special[ids[order]].any()


def test_spans_are_whole_words_in_the_published_proportions(tokenizer):
    """Single-token words, so that a run of predicted tokens is a span (or two that touch, which the context between
    them makes rare)."""
    rng, words = np.random.default_rng(0), Words.of(tokenizer)
    ids = np.concatenate([[CLS], np.full(4000, 5), [SEP]])
    chosen = PermutationLM().choose_spans(words.units(ids, by_word=True), 4000, rng)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(int), [0]])))
    lengths = np.diff(edges)[::2]
    assert set(lengths.tolist()) >= {1, 2, 3, 4, 5}
    shares = np.bincount(lengths, minlength=6)[1:6] / len(lengths)
    np.testing.assert_allclose(shares, (1 / np.arange(1, 6)) / (1 / np.arange(1, 6)).sum(), atol=0.08)
    assert chosen.mean() == pytest.approx(1 / 7, abs=0.02)  # n words beside 6 n others
    pieces = np.concatenate([[CLS], np.tile([30, 60, 60], 50), [SEP]])  # words of three tokens
    whole = PermutationLM(0.5).choose_spans(words.units(pieces, by_word=True), 75, rng)
    assert whole.sum() > 9 and not whole[[0, -1]].any()
    assert np.isin(whole[1:-1].reshape(-1, 3).sum(axis=1), (0, 3)).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_masks_pairs_of_tokens(tokenizer, side, monkeypatch):
    monkeypatch.setattr(tokenizer, "padding_side", side)
    rng, objective = np.random.default_rng(2), PermutationLM(0.4)
    examples = [{"input_ids": text_of(count, rng).tolist()} for count in (11, 0, 3)]
    batch = objective.collator(tokenizer, seed=5)(examples)
    words, rng = Words.of(tokenizer), np.random.default_rng(5)
    for row, example in enumerate(examples):
        ids = np.array(example["input_ids"])
        order, first = objective.order(ids, words, rng).tolist(), 13 - len(ids) if side == "left" else 0
        assert batch["labels"][row].tolist() == [*ids[order], *[IGNORED] * (4 - len(order))]
        for query in range(13):
            before = order.index(query - first) if query - first in order else 0
            hidden = {first + token for token in order[before:]}
            assert set(np.flatnonzero(batch["perm_mask"][row, query]).tolist()) == hidden
        places = np.argwhere(batch["target_mapping"][row])
        assert places.tolist() == [[place, first + token] for place, token in enumerate(order)]
    assert objective.weight(batch) == 5


def test_a_prediction_depends_on_what_comes_before_it_in_the_order_and_on_nothing_else(tokenizer):
    two_streams, rng = model(), np.random.default_rng(3)
    batch = PermutationLM(0.4).collator(tokenizer, seed=1)([{"input_ids": text_of(9, rng).tolist()}])
    logits = two_streams(**batch).logits[0]
    order = batch["target_mapping"][0].argmax(axis=1).tolist()
    assert len(order) == 4
    for column in range(11):
        changed = batch["input_ids"].copy()
        changed[0, column] = 70 + column
        moved = np.abs(two_streams(**batch | {"input_ids": changed}).logits[0] - logits).max(axis=1) > 1e-9
        sees = [column not in order[place:] for place in range(4)]
        assert moved.tolist() == sees


def test_the_loss_is_the_mean_over_predictions(tokenizer):
    two_streams, rng, objective = model(), np.random.default_rng(4), PermutationLM(0.3)
    batch = objective.collator(tokenizer, seed=1)([{"input_ids": text_of(count, rng).tolist()} for count in (9, 17, 1)])
    out, grads = objective.value_and_grad(two_streams, batch)
    assert (batch["labels"] != IGNORED).sum() == objective.weight(batch) == 3 + 5 + 1
    np.testing.assert_allclose(out.loss, mean_cross_entropy(out.logits, batch["labels"]), rtol=1e-12)
    assert grads["transformer.mask_emb"].any()


def test_examples_are_one_stream_of_documents(tokenizer):
    documents = [["the cat sat", "on an mat"], [], ["paris"], [""]]
    rows = [row["input_ids"] for row in PermutationLM().examples(documents, tokenizer, max_length=6)]
    words = [tokenizer.convert_tokens_to_ids(word) for word in ["the", "cat", "sat", "on", "an", "mat"]]
    stream = [*words, SEP, tokenizer.convert_tokens_to_ids("paris"), SEP]
    assert rows == [[CLS, *stream[:4], SEP], [CLS, *stream[4:8], SEP]]  # a separator alone is no words to learn from


@pytest.mark.parametrize("share", [0, 1.1, -1, True, "a"])
def test_invalid_share(share):
    refuses(ValueError, r"share is .+, expected a number above 0", PermutationLM, share)


PAIRS = [["the cat sat", "paris is"], ["the", ""], ("on", "of france an mat sat on the")]


def test_examples_are_pairs(tokenizer):
    made = list(TranslationLM().examples(PAIRS, tokenizer, max_length=40))
    expected = [tokenizer(*pair) for pair in (PAIRS[0], PAIRS[2])]
    assert [row["input_ids"] for row in made] == [row["input_ids"] for row in expected]
    assert [row["token_type_ids"] for row in made] == [row["token_type_ids"] for row in expected]
    assert [row["restart"] for row in made] == [[5, 1], [3, 1]]  # [CLS] ... [SEP], and after [CLS]
    made = list(TranslationLM().examples(PAIRS, tokenizer, max_length=8))
    assert [len(row["input_ids"]) for row in made] == [8, 8]
    assert made[1]["input_ids"] == [*expected[1]["input_ids"][:7], 3] and made[1]["restart"] == [3, 1]
    with pytest.raises(ValueError, match=r"documents\[1\] has 3 texts, expected 2"):
        list(TranslationLM().examples([PAIRS[0], ["a", "b", "c"]], tokenizer, max_length=40))
    with pytest.raises(TypeError, match=r"documents\[0\] is 'ab', expected a pair"):
        list(TranslationLM().examples(["ab"], tokenizer, max_length=40))


def test_two_separators_stand_before_the_translation(tmp_path):
    write_family(tmp_path, "RobertaTokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    (made,) = TranslationLM().examples([["the", "value"]], tokenizer, max_length=40)
    ids = tokenizer("the", "value")["input_ids"]
    assert made["input_ids"] == ids and ids[2] == ids[3] == ids[-1] == tokenizer.sep_token_id
    assert made["restart"] == [4, 1]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name, offset", [("bert-base-uncased", 0), ("roberta-base", 2)])
def test_positions_start_again(tokenizer, monkeypatch, side, name, offset):
    monkeypatch.setattr(tokenizer, "padding_side", side)
    config = tiny_config(name)
    model = drawn_anew(AutoModelForMaskedLM.from_config(config, dtype="float64"))
    objective = TranslationLM()
    examples = list(objective.examples(PAIRS, tokenizer, max_length=40))
    examples = [{key: value for key, value in row.items() if key != "token_type_ids"} for row in examples]
    batch = objective.collator(tokenizer, seed=1)(examples)
    positions, lengths = np.zeros(batch["input_ids"].shape, int), batch["attention_mask"].sum(axis=1)
    for row, (length, (first, position)) in enumerate(zip(lengths, batch["restart"], strict=True)):
        counted = [*range(first), *range(position, position + length - first)]
        start = len(positions[row]) - length if side == "left" else 0
        positions[row, start : start + length] = np.array(counted) + offset
    plain = {key: value for key, value in batch.items() if key != "restart"}
    expected, grads = value_and_grad(model)(**plain, position_ids=positions)
    out, found = objective.value_and_grad(model, batch)
    assert out.loss == expected.loss != model(**plain).loss
    assert_same_arrays(found, grads)


def test_a_model_without_a_table_of_positions_keeps_its_distances(tokenizer):
    model, objective = AutoModelForMaskedLM.from_config(tiny_config("modernbert-base")), TranslationLM()
    batch = objective.collator(tokenizer)(list(objective.examples(PAIRS, tokenizer, max_length=40)))
    plain = {name: value for name, value in batch.items() if name in model.arguments}
    assert objective.loss(model, {**plain, "restart": batch["restart"]}).loss == model(**plain).loss
