"""Permutation language modelling: orders, batches, what a prediction may see."""

import numpy as np
import pytest

from bertcore import AutoModelForCausalLM
from bertcore.training.masking import IGNORED, Words
from bertcore.training.objectives import PermutationLM
from tests.refusals import refuses
from tests.tiny_families import drawn_anew, tiny_config
from tests.training.objectives.students import mean_cross_entropy

pytestmark = pytest.mark.usefixtures("on_numpy")

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
    chosen = PermutationLM()._spans(words.units(ids, by_word=True), 4000, rng)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(int), [0]])))
    lengths = np.diff(edges)[::2]
    assert set(lengths.tolist()) >= {1, 2, 3, 4, 5}
    shares = np.bincount(lengths, minlength=6)[1:6] / len(lengths)
    np.testing.assert_allclose(shares, (1 / np.arange(1, 6)) / (1 / np.arange(1, 6)).sum(), atol=0.08)
    assert chosen.mean() == pytest.approx(1 / 7, abs=0.02)  # n words beside 6 n others
    pieces = np.concatenate([[CLS], np.tile([30, 60, 60], 50), [SEP]])  # words of three tokens
    whole = PermutationLM(0.5)._spans(words.units(pieces, by_word=True), 75, rng)
    assert whole.sum() > 9 and not whole[[0, -1]].any()
    assert np.isin(whole[1:-1].reshape(-1, 3).sum(axis=1), (0, 3)).all()


def test_orders_are_random(tokenizer):
    words, rng, counts = Words.of(tokenizer), np.random.default_rng(1), np.zeros((2, 6))
    ids = text_of(6, rng)
    for _ in range(600):
        order = PermutationLM(0.3).order(ids, words, rng)
        for place, token in enumerate(order):
            counts[place, token - 1] += 1
    assert (counts / 600 > 0.08).all() and (counts / 600 < 0.28).all()


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
