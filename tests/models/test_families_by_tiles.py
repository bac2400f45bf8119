"""Every family in low precision by AMX's tiles, or by their twin, beside the definition."""

import numpy as np
import pytest

from bertcore import use_backend
from bertcore.kernels._numba import LEVEL
from bertcore.kernels.handed_heads import HandedHeads
from tests.kernels.forced_isa import not_when_forced, run_tests_under
from tests.models.family_checks import TOLERANCE
from tests.models.family_table import FAMILIES
from tests.models.test_families import words_model
from tests.tiny_families import drawn_anew

LENGTHS = (70, 0, 33, 1, 16)  # within a tile, a whole one, beyond it; longer than a window


on_tiles = pytest.mark.skipif(LEVEL.tiles is None, reason="this level has no tiles")
dtypes = pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
# Joined and separate projections, relative terms, windows, rotary positions, fewer heads of keys.
WITH_WHOLE_TILES = ["bert", "mpnet", "deberta-v2", "modernbert", "gte", "eurobert"]


@on_tiles
@pytest.mark.parametrize("name", FAMILIES)
@dtypes
def test_low_precision_is_what_the_definition_says(name, dtype):
    check(*words_model(FAMILIES[name], max_position_embeddings=90), dtype)


@on_tiles
@pytest.mark.parametrize("name", WITH_WHOLE_TILES)
@dtypes
def test_heads_that_fill_tiles_are_handed_to_attention(name, dtype, monkeypatch):
    case, found = FAMILIES[name], []
    find = HandedHeads.find
    monkeypatch.setattr(HandedHeads, "find", lambda *args: found.append(find(*args)) or found[-1])
    sizes = {"hidden_size": 128 if name == "eurobert" else 64, "num_attention_heads": 4 if name == "eurobert" else 2}
    sizes = {case.keys.get(key, key): size for key, size in sizes.items()}
    check(*words_model(case, max_position_embeddings=90, **sizes), dtype)
    assert found and None not in found


def check(kind, config, dtype):
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
    assert np.abs(found[0] - truth).max() <= TOLERANCE[dtype] * scale
    # The same but for rounding: half of them are within 5e-5, where no value of a row went to the other side.
    assert np.abs(found[0] - expected).max() <= TOLERANCE[dtype] / 3 * scale


@not_when_forced
@pytest.mark.slow
@pytest.mark.parametrize("isa", ["amx_emulated", "amx"])
def test_families_by_tiles(isa):
    run_tests_under(isa, __file__)
