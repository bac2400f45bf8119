"""Masked and causal language modelling: examples of raw texts, batches, losses and weights."""

import numpy as np
import pytest

from bertcore import AutoModelForCausalLM, AutoModelForMaskedLM, value_and_grad
from bertcore.training import Masking
from bertcore.training.masking import IGNORED
from bertcore.training.objectives import CausalLM, MaskedLM, Objective
from bertcore.training.objectives.objective import SpecialTokens, document_ids
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import tiny_config
from tests.tolerances import assert_same_arrays

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


def test_special_tokens_stand_where_the_tokenizer_puts_them(tokenizer):
    first, second = ([tokenizer.convert_tokens_to_ids(word) for word in text.split()] for text in ("the cat", "sat"))
    one = SpecialTokens(tokenizer)
    assert len(one) == 2
    assert one.around(first)["input_ids"] == tokenizer("the cat")["input_ids"]
    two, expected = SpecialTokens(tokenizer, 2), tokenizer("the cat", "sat")
    assert len(two) == 3
    assert two.around(first, second) == {name: expected[name] for name in ("input_ids", "token_type_ids")}


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
        monkeypatch.setattr("bertcore.training.objectives.objective.AT_ONCE", at_once)
        assert list(document_ids(tokenizer, iter(documents))) == expected
    refuses(TypeError, "documents has 'the cat', expected lists of strings", list, document_ids(tokenizer, ["the cat"]))
