"""Sizes that no model has: refused with the name of the config's own key, before anything of that size is made."""

import pytest

from bertcore import AutoModelForSequenceClassification
from tests.refusals import refuses
from tests.tiny_families import tiny_config

WORDS, POSITIONS = 2**24, 2**20


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert-base-uncased", {"vocab_size": 10**9}, f"vocab_size is 1000000000, expected at most {WORDS}"),
        ("bert-base-uncased", {"hidden_size": 2**31}, f"hidden_size is 2147483648, expected at most {WORDS}"),
        ("bert-base-uncased", {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, expected at most 10000"),
        ("bert-base-uncased", {"num_labels": 5 * 10**7}, f"num_labels is 50000000, expected at most {POSITIONS}"),
        ("gpt2", {"n_positions": 10**8}, f"n_positions is 100000000, expected at most {POSITIONS}"),
        ("deberta-base", {"max_relative_positions": 10**8}, "max_relative_positions is 1.*, expected at most 1048"),
        ("deberta-v3-base", {"max_relative_positions": 10**8}, "max_relative_positions is 1.*, expected at most 1048"),
        ("mobilebert-uncased", {"num_feedforward_networks": 10**5}, "num_feedforward_networks is 1.*, expected at m"),
        ("mobilebert-uncased", {"type_vocab_size": 0}, "type_vocab_size is 0, expected a positive integer"),
        ("luke-base", {"entity_vocab_size": 10**9}, f"entity_vocab_size is 1000000000, expected at most {WORDS}"),
        ("distilbert-base-uncased", {"dim": 25, "n_heads": 2}, "dim is 25, expected a multiple of n_heads 2"),
        ("xlnet-base-cased", {"d_model": 25, "n_head": 2}, "d_model is 25, expected a multiple of n_head 2"),
        ("gpt2", {"n_inner": 0}, "n_inner is 0, expected a positive integer"),
    ],
)  # fmt: skip
def test_a_size_beyond_all_measure(name, changes, message):
    refuses(ValueError, f"config: {message}", AutoModelForSequenceClassification, tiny_config(name) | changes)


def test_labels_by_name_are_counted():
    config = tiny_config("bert-base-uncased") | {"id2label": dict.fromkeys(range(POSITIONS + 1), "x")}
    with pytest.raises(ValueError, match=f"config: id2label has {POSITIONS + 1} entries, expected at most {POSITIONS}"):
        AutoModelForSequenceClassification(config)
