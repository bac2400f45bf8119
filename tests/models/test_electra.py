"""ELECTRA, discriminator and generator: the summary leaves padding out, one's encoder serves the other."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForMultipleChoice, AutoModelForPreTraining, use_backend
from tests.models.family_checks import check_loads, drawn_anew
from tests.models.family_table import FAMILIES

TINY = FAMILIES["electra"].config


@pytest.mark.parametrize("source", ["first", "last", "mean"])
def test_a_summary_leaves_padding_out(source):
    model = drawn_anew(AutoModelForMultipleChoice.from_config(TINY | {"summary_type": source}))
    words = np.random.default_rng(0).integers(1, 40, (1, 2, 6))
    padded = np.concatenate([words, np.zeros((1, 2, 3), int)], axis=2)
    with use_backend("numpy"):
        found, expected = model(padded, np.where(padded, 1, 0)).logits, model(words).logits
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.ptp(expected) > 1e-3


def test_the_encoder_of_either_loads(tmp_path):
    for kind in (AutoModelForMaskedLM, AutoModelForPreTraining):
        whole = drawn_anew(kind.from_config(TINY)).state_dict()
        encoder = AutoModel.from_config(TINY)
        names = encoder.state_dict()
        encoder.load_state_dict({name: whole[f"electra.{name}"] for name in names})
        check_loads(encoder, tmp_path, whole)
