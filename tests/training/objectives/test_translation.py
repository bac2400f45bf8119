"""Translation language modelling: examples of pairs, positions that start again."""

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, AutoTokenizer, value_and_grad
from bertcore.training.objectives import TranslationLM
from tests.tiny_families import drawn_anew, tiny_config
from tests.tokenization.family_folders import write_family
from tests.tolerances import assert_same_arrays

pytestmark = pytest.mark.usefixtures("on_numpy")

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
