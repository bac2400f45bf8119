"""Next sentences and the order of sentences: what pairs are, their shares, losses alone and beside masked words."""

import itertools

import numpy as np
import pytest

from bertcore import AutoModelForNextSentencePrediction, AutoModelForPreTraining
from bertcore.training.collators import IGNORED
from bertcore.training.objectives import (
    CausalLM,
    CustomLoss,
    MaskedLM,
    NextSentence,
    ReplacedToken,
    SentenceOrder,
    SpanBoundary,
    TranslationLM,
)
from tests.tiny_bert import CONFIG
from tests.tiny_families import tiny_config
from tests.training.objectives.students import assert_gradients, mean_cross_entropy

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# A sentence is its document's letter, and its number in letters: so that every pair tells where it is from.
DOCUMENTS = [[" ".join([letter, *("z" * (1 + number % 3))]) for number in range(9)] for letter in LETTERS[:12]]


pytestmark = pytest.mark.usefixtures("on_numpy")


def segments(example):
    ids, types = np.array(example["input_ids"]), np.array(example["token_type_ids"])
    ends = np.flatnonzero(ids == 3)
    assert ids[0] == 2 and len(ends) == 2 and ends[1] == len(ids) - 1
    assert (types == (np.arange(len(ids)) > ends[0])).all()
    return ids[1 : ends[0]].tolist(), ids[ends[0] + 1 : -1].tolist()


def whole(tokenizer, document):
    return [token for sentence in document for token in tokenizer(sentence, add_special_tokens=False)["input_ids"]]


def contains(ids, part):
    return any(ids[at : at + len(part)] == part for at in range(len(ids) - len(part) + 1))


@pytest.mark.parametrize("max_length, sentences", [(5, 9), (11, 9), (60, 9), (60, 3), (60, 2)])
def test_next_sentences(tokenizer, max_length, sentences):
    """Half of the pairs are of each kind, in short documents, too."""
    short = [document[:sentences] for document in DOCUMENTS]
    documents, labels = [whole(tokenizer, document) for document in short], []
    for example in NextSentence().examples(short * 40, tokenizer, max_length=max_length, seed=1):
        first, second = segments(example)
        assert first and second and len(example["input_ids"]) <= max_length
        labels.append(example["next_sentence_label"])
        (home,) = (ids for ids in documents if ids[0] == first[0])
        if example["next_sentence_label"]:
            assert contains(home, first)
        elif len(first) + len(second) < max_length - 3:  # else the first may have been cut
            assert contains(home, first + second)
        else:
            assert contains(home, second)
    assert abs(np.mean(labels) - 0.5) < 2.5 / np.sqrt(len(labels))  # five standard deviations


@pytest.mark.parametrize("max_length", [5, 11, 60])
def test_order_of_sentences(tokenizer, max_length):
    documents, labels = [whole(tokenizer, document) for document in DOCUMENTS], []
    for example in SentenceOrder().examples(DOCUMENTS * 4, tokenizer, max_length=max_length, seed=1):
        first, second = segments(example)
        labels.append(example["sentence_order_label"])
        (home,) = (ids for ids in documents if ids[0] == first[0])
        assert first and second and len(example["input_ids"]) <= max_length
        if len(first) + len(second) < max_length - 3:  # else one of them may have been cut
            assert contains(home, second + first if example["sentence_order_label"] else first + second)
    assert 0.35 < np.mean(labels) < 0.65


def test_the_same_seed_makes_the_same_examples(tokenizer):
    made = [list(NextSentence().examples(DOCUMENTS, tokenizer, max_length=11, seed=seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_next_sentences_need_other_documents(tokenizer):
    with pytest.raises(ValueError, match="documents has only one document"):
        list(NextSentence().examples(DOCUMENTS[:1], tokenizer, max_length=11))
    assert list(SentenceOrder().examples([["a"], [], [""]], tokenizer, max_length=11)) == []
    assert len(list(SentenceOrder().examples(DOCUMENTS[:1], tokenizer, max_length=30))) > 0
    with pytest.raises(ValueError, match="max_length is 4, expected at least 5"):
        list(SentenceOrder().examples(DOCUMENTS, tokenizer, max_length=4))


@pytest.mark.parametrize("pairs, config, logits", [
    (NextSentence(), CONFIG, "seq_relationship_logits"),
    (SentenceOrder(), tiny_config("albert-base-v2"), "sop_logits"),
])  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_beside_masked_words(tokenizer, pairs, config, logits, turned):
    """The sum of both losses, of one pass."""
    objective = pairs + MaskedLM() if turned else MaskedLM() + pairs
    assert objective.model_class == "AutoModelForPreTraining"
    examples = list(objective.examples(DOCUMENTS, tokenizer, max_length=11, seed=1))[:7]
    batch = objective.collator(tokenizer, seed=3)(examples)
    model = AutoModelForPreTraining.from_config(config | {"vocab_size": CONFIG["vocab_size"]}, dtype="float64")
    plain = model(**{name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")})
    expected = mean_cross_entropy(plain.prediction_logits, batch["labels"])
    expected += mean_cross_entropy(plain[logits], batch[pairs.label])
    assert assert_gradients(objective, model, batch) == pytest.approx(expected, rel=1e-9)
    assert objective.weight(batch) == (batch["labels"] != IGNORED).sum()
    assert pairs.weight(batch) == 7


@pytest.mark.parametrize("pairs, kind, config", [
    (NextSentence(), AutoModelForNextSentencePrediction, CONFIG),
    (SentenceOrder(), AutoModelForPreTraining, tiny_config("albert-base-v2") | {"vocab_size": 75}),
])  # fmt: skip
def test_pairs_alone(tokenizer, pairs, kind, config):
    examples = list(pairs.examples(DOCUMENTS, tokenizer, max_length=11, seed=1))[:5]
    batch = MaskedLM().collator(tokenizer)(examples)
    del batch["labels"]
    model = kind.from_config(config, dtype="float64")
    rest = {name: value for name, value in batch.items() if name != pairs.label}
    scores = model(**rest)
    scores = scores.logits if "logits" in scores else scores.sop_logits
    expected = mean_cross_entropy(scores, batch[pairs.label])
    assert assert_gradients(pairs, model, batch) == pytest.approx(expected, rel=1e-9)


def test_sums_of_objectives_of_different_models_are_refused():
    with pytest.raises(ValueError, match="MaskedLM needs AutoModelForMaskedLM and CausalLM needs AutoModelForCausalLM"):
        MaskedLM() + CausalLM()
    for first, second in itertools.permutations([ReplacedToken(), SpanBoundary()]):  # masked words are in it already
        with pytest.raises(ValueError, match="needs ReplacedTokenModel"):
            first + second
    with pytest.raises(TypeError):
        MaskedLM() + 1


def test_pairs_of_two_kinds_are_refused():
    both, custom = "NextSentence and SentenceOrder make pairs of segments", CustomLoss(lambda out: (0.0, {}))
    for first in (NextSentence(), MaskedLM() + NextSentence(), NextSentence() + custom):
        for second in (SentenceOrder(), SentenceOrder() + MaskedLM()):
            with pytest.raises(ValueError, match=f"{both} in different ways, and no model has the heads of both"):
                first + second
    assert (MaskedLM() + NextSentence() + custom).model_class == "AutoModelForPreTraining"


@pytest.mark.parametrize("words", [SpanBoundary(), TranslationLM()])
def test_words_with_a_loss_or_batches_of_their_own_are_not_taken_for_masked_words(words):
    for first, second in itertools.permutations([words, NextSentence()]):
        with pytest.raises(ValueError, match=f"{type(words).__name__} needs .* there is no model for their sum"):
            first + second
