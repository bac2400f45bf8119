"""Every family in low precision by AMX's tiles, or by their twin, beside the definition."""

import numpy as np
import pytest

from bertcore import use_backend
from bertcore.kernels._numba import LEVEL
from tests.kernels.forced_isa import not_when_forced, run_tests_under
from tests.models.family_checks import TOLERANCE
from tests.models.family_table import FAMILIES
from tests.models.test_families import words_model
from tests.tiny_families import drawn_anew

LENGTHS = (70, 0, 33, 1, 16)  # within a tile, a whole one, beyond it; longer than a window


@pytest.mark.skipif(LEVEL.tiles is None, reason="this level has no tiles")
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_low_precision_matches_the_reference(name, dtype):
    kind, config = words_model(FAMILIES[name], max_position_embeddings=90)
    exact, low = drawn_anew(kind.from_config(config)), kind.from_config(config, dtype=dtype)
    low.load_state_dict(exact.state_dict())
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(int)
    ids = np.random.default_rng(0).integers(7, 60, mask.shape)
    with use_backend("numpy"):
        truth, expected = exact(ids, mask).logits, low(ids, mask).logits
    with use_backend("numba"):
        found = [low(ids, mask).logits for _ in range(3)]  # the second time on by a program
    for one in found:
        np.testing.assert_array_equal(one, found[0])
    scale = np.abs(truth).max()
    # Rounding to 16 bits moves texts of 70 tokens by up to 0.06 of the scale in the definition as well.
    most = max(TOLERANCE[dtype] * scale, 1.1 * np.abs(expected - truth).max())
    assert np.abs(found[0] - truth).max() <= most
    # The same but for rounding: half of them are within 5e-5, where no value of a row went to the other side.
    assert np.abs(found[0] - expected).max() <= TOLERANCE[dtype] / 3 * scale


@not_when_forced
@pytest.mark.slow
@pytest.mark.parametrize("isa", ["amx_emulated", "amx"])
def test_families_by_tiles(isa):
    run_tests_under(isa, __file__)
