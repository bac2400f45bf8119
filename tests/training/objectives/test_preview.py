"""The preview of objectives shows their own batches."""

import re

import numpy as np
import pytest

from bertcore.cli import main
from bertcore.training import Masking
from bertcore.training.collators import IGNORED, NumberedCollator
from bertcore.training.objectives import MaskedLM, PermutationLM, preview
from tests.refusals import refuses

TEXT = "the cat sat on an mat . paris is capital of france . embed the cat"


def sections(shown):
    """{the first word of a title: the tokens of each epoch}."""
    found = {}
    for part in shown.split("\n\n")[1:]:
        title, *epochs = re.split(r"^  \d+  ", part, flags=re.MULTILINE)
        found[" ".join(title.split()[:3])] = [epoch.split() for epoch in epochs]
    return found


def batch_of(objective, tokenizer, epoch, seed):
    return NumberedCollator(objective.collator(tokenizer), seed)([tokenizer(TEXT)], epoch)


@pytest.mark.parametrize("seed", [0, 7])
def test_every_epoch_is_a_batch_of_the_objective(tokenizer, seed):
    shown, tokens = sections(preview(TEXT, tokenizer, epochs=4, seed=seed)), tokenizer.convert_ids_to_tokens
    masks = {"masked words, static:": Masking(is_static=True), "masked words, dynamic:": Masking()}
    masks |= {"whole words": Masking(unit="word"), "spans of words:": Masking(unit="span")}
    for title, masking in masks.items():
        assert len(shown[title]) == 4
        for epoch, found in enumerate(shown[title]):
            batch = batch_of(MaskedLM(masking), tokenizer, epoch, seed)
            given, labels = batch["input_ids"][0], batch["labels"][0]
            pairs = [token.split("/") for token in found]
            assert [pair[0] for pair in pairs] == tokens(given.tolist())
            wanted = [pair[1] if len(pair) == 2 else None for pair in pairs]
            assert wanted == [None if label == IGNORED else tokens(int(label)) for label in labels]
    static, dynamic = shown["masked words, static:"], shown["masked words, dynamic:"]
    assert all(epoch == static[0] for epoch in static) and any(epoch != dynamic[0] for epoch in dynamic)


def test_orders_and_replaced_tokens(tokenizer):
    shown = sections(preview(TEXT, tokenizer, epochs=3))
    plain = tokenizer.convert_ids_to_tokens(tokenizer(TEXT)["input_ids"])
    for epoch, found in enumerate(shown["permutation: TOKEN/N is"]):
        mapping = batch_of(PermutationLM(), tokenizer, epoch, 0)["target_mapping"][0]
        assert [token.split("/")[0] for token in found] == plain
        places = {column: int(token.split("/")[1]) for column, token in enumerate(found) if "/" in token}
        assert places == {int(column): place for place, column in enumerate(mapping.argmax(axis=1), 1)}
    for found in shown["replaced tokens: TOKEN/!"]:
        changed = [column for column, token in enumerate(found) if token.endswith("/!")]
        assert 0 < len(changed) <= 4 and all(found[column] != f"{plain[column]}/!" for column in changed)
        assert [token for column, token in enumerate(found) if column not in changed] == list(np.delete(plain, changed))


def test_the_same_seed_shows_the_same_and_empty_texts_have_nothing_to_show(tokenizer):
    assert preview(TEXT, tokenizer) == preview(TEXT, tokenizer) != preview(TEXT, tokenizer, seed=1)
    assert sections(preview("", tokenizer))["whole words"] == [["[CLS]", "[SEP]"]] * 3
    refuses(TypeError, "text is list, expected a string", preview, [TEXT], tokenizer)
    refuses(ValueError, "epochs is 0, expected a positive integer", preview, TEXT, tokenizer, epochs=0)


def test_on_the_command_line(bert_folder, tokenizer, capsys):
    assert main(["preview", str(bert_folder), "--text", TEXT, "--epochs", "2", "--seed", "5"]) == 0
    assert capsys.readouterr().out == preview(TEXT, tokenizer, epochs=2, seed=5) + "\n"
    assert main(["preview", str(bert_folder / "nothing"), TEXT]) == 1
    assert "does not exist" in capsys.readouterr().err
