"""The options compared with transformers, for every kind of tokenizer."""

RETURN_ALL = {"return_offsets_mapping": True, "return_special_tokens_mask": True, "return_length": True}
OPTIONS = {
    "plain": {},
    "no special tokens": {"add_special_tokens": False},
    "longest": {"padding": True},
    "max_length": {"padding": "max_length", "max_length": 23, "truncation": True},
    "max_length alone": {"max_length": 9},
    "padding beyond": {"padding": "max_length", "max_length": 1200},
    "multiple": {"padding": "longest", "pad_to_multiple_of": 16, "truncation": True, "max_length": 160},
    "left": {"padding": True, "padding_side": "left"},
    "truncation": {"truncation": True, "max_length": 17},
    "only special tokens left": {"truncation": True, "max_length": 3},
    "model_max_length": {"truncation": "longest_first", "padding": "max_length"},
    "truncation without special tokens": {"truncation": True, "max_length": 5, "add_special_tokens": False},
    "nothing left": {"truncation": True, "max_length": 0, "add_special_tokens": False},
    "overflow": {"truncation": True, "max_length": 12, "return_overflowing_tokens": True},
    "overflow with stride": {"truncation": True, "max_length": 19, "stride": 3, "return_overflowing_tokens": True},
    "padded overflow": {"max_length": 12, "truncation": True, "return_overflowing_tokens": True, "padding": True},
    "fewer outputs": {"return_token_type_ids": False, "return_attention_mask": False},
}


def check_same(ours, theirs):
    assert dict(ours) == dict(theirs)
    assert list(ours) == list(theirs)
