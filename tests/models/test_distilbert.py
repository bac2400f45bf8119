"""DistilBERT: its own keys, and losses over padding."""

import numpy as np

from bertcore import (
    AutoModel,
    AutoModelForQuestionAnswering,
    use_backend,
)
from tests.models.family_checks import drawn_anew
from tests.models.family_table import FAMILIES

TINY = FAMILIES["distilbert"].config


def test_targets_do_not_change_the_scores_of_left_padded_texts():
    model = drawn_anew(AutoModelForQuestionAnswering.from_config(TINY))
    words = np.random.default_rng(0).integers(1, 40, (2, 6))
    padded = np.concatenate([np.zeros((2, 3), int), words], axis=1)
    targets = {"start_positions": [4, 3], "end_positions": [5, 8]}
    with use_backend("numpy"):
        expected, found = model(words), model(padded, padded > 0)
        compared = model(padded, padded > 0, **targets)  # padding stays: the loss is over all columns
    for name in ("start_logits", "end_logits"):
        np.testing.assert_allclose(found[name][:, 3:], expected[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(compared[name], found[name], rtol=1e-5, atol=1e-6)


def test_keys_of_bert_stand_for_its_own():
    keys = {"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
    renamed = {keys.get(key, key): value for key, value in TINY.items()}
    assert AutoModel(renamed).spec == AutoModel(TINY).spec
    assert AutoModel(TINY | dict.fromkeys(keys.values(), 7)).spec == AutoModel(TINY).spec
    # Two keys that other families have and this one has not
    assert AutoModel(TINY | {"layer_norm_eps": 0.5, "type_vocab_size": 2}).spec == AutoModel(TINY).spec
