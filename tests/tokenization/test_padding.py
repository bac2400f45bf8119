"""Padding rows of token ids that were made before."""

import numpy as np
import pytest

from bertcore.tokenization import AutoTokenizer
from tests.refusals import refuses
from tests.tokenization.corpus import HARD_TEXTS, train_byte_bpe, train_vocabulary, write_json
from tests.tokenization.family_folders import ANGLES

OPTIONS = {
    "longest": {},
    "multiple": {"pad_to_multiple_of": 8},
    "max_length": {"padding": "max_length", "max_length": 300},
    "left": {"padding_side": "left"},
    "none": {"padding": False},
    "arrays": {"return_tensors": "np"},
}


def test_batch_is_padded_as_in_a_call(tokenizer):
    batch = tokenizer(HARD_TEXTS)
    rows = [tokenizer(text) for text in HARD_TEXTS]
    for options in ({}, {"pad_to_multiple_of": 16}, {"padding_side": "left"}):
        wanted = tokenizer(HARD_TEXTS, **({"padding": True} | options))
        assert tokenizer.pad(batch, **options) == tokenizer.pad(rows, **options) == wanted
    arrays = tokenizer.pad(rows, return_tensors="np")
    assert arrays.input_ids.tolist() == tokenizer.pad(rows).input_ids and arrays.input_ids.dtype == np.int64
    assert tokenizer.pad([{"input_ids": np.array(row)} for row in batch.input_ids]) == {
        name: rows for name, rows in tokenizer.pad(batch).items() if name != "token_type_ids"
    }


def test_other_columns_stay(tokenizer):
    rows = [tokenizer("the") | {"label": 1}, tokenizer("the value") | {"label": 0}]
    found = tokenizer.pad(rows, return_tensors="np")
    assert found["label"].tolist() == [1, 0] and found.input_ids.shape == (2, 4)
    with pytest.raises(ValueError, match="words makes no array"):
        tokenizer.pad([rows[0] | {"words": [1]}, rows[1] | {"words": [1, 2]}], return_tensors="np")


def test_one_row(tokenizer):
    found = tokenizer.pad(tokenizer("the"), padding="max_length", max_length=5)
    assert found.attention_mask == [1, 1, 1, 0, 0]
    assert tokenizer.pad([]) == {"input_ids": [], "attention_mask": []}


@pytest.mark.parametrize(("rows", "error", "message"), [
    (3, TypeError, "encoded_inputs has no input_ids"),
    ({"ids": [1]}, TypeError, "encoded_inputs has no input_ids"),
    ([[1, 2]], TypeError, "encoded_inputs is a list of other things than rows"),
    ([{"input_ids": [1]}, {"ids": [1]}], ValueError, r"encoded_inputs\[1\] has ids, expected input_ids"),
    ({"input_ids": [[1]], "labels": [1, 2]}, ValueError, "labels has 2 rows, expected 1"),
    ({"input_ids": [["a"]]}, TypeError, r"input_ids\[0\]\[0\] is str, expected an integer"),
])  # fmt: skip
def test_wrong_rows(tokenizer, rows, error, message):
    refuses(error, message, tokenizer.pad, rows)


@pytest.fixture(scope="module", params=["BertTokenizer", "RobertaTokenizer"])
def both(request, tmp_path_factory):
    import transformers

    folder = tmp_path_factory.mktemp("padding")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": request.param})
    train_vocabulary(folder / "vocab.txt", lower_case=True, size=200)
    train_byte_bpe(folder, ANGLES, size=300)
    return AutoTokenizer.from_pretrained(folder), getattr(transformers, request.param).from_pretrained(folder)


@pytest.mark.parity
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_parity(both, options):
    ours, theirs = both
    texts = [text[:30] for text in HARD_TEXTS if options.get("padding", True) or len(text) == 30]
    rows = [dict(ours(text, return_special_tokens_mask=True)) for text in texts]
    found, wanted = ours.pad(rows, **options), theirs.pad(rows, **options)
    assert {name: np.array(column, object).tolist() for name, column in found.items()} == {
        name: np.array(column, object).tolist() for name, column in wanted.items()
    }
