"""Jina BERT v2 and its code model: programs; test_family_definitions.py has their oracle."""

import numpy as np
import pytest

from bertcore import AutoModel, use_backend
from tests.models.family_table import FAMILIES
from tests.tiny_families import drawn_anew


@pytest.mark.parametrize("name", ["jina_bert", "jina_bert_code"])
def test_programs_serve_other_lengths_of_as_many_tokens(name):
    """And passes with holes, which count as places."""
    model = drawn_anew(AutoModel.from_config(FAMILIES[name].config))
    ids = np.random.default_rng(1).integers(1, 40, (2, 15))
    for lengths in ([8, 8], [8, 8], [8, 8], [15, 1], [3, 13], None):
        mask = ids % 3 > 0 if lengths is None else np.arange(15) < np.array(lengths)[:, None]
        with use_backend("numpy"):
            truth = model(ids, mask).last_hidden_state
        with use_backend("numba"):
            np.testing.assert_allclose(model(ids, mask).last_hidden_state, truth, atol=1e-5 * np.abs(truth).max())
