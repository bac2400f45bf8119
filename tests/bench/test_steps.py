"""bench.steps: the steps of a layer in order, with their limits; passes that are wrong are not timed."""

import numpy as np
import pytest

from bench import steps
from tests.refusals import refuses

SMALL = ["--preset", "minilm-l6-h384", "--layers", "2", "--shape", "1x16", "--rounds", "1"]
STEPS = [
    "rounding 384", "product 384 to 1152", "attention", "rounding 384", "product 384 to 384 + residual", "rows",
    "rounding 384", "product 384 to 1536 + gelu", "rounding 1536", "product 1536 to 384 + residual", "rows",
]  # fmt: skip


@pytest.mark.slow  # a quarter of a minute: kernels of int8 that nothing else compiles
def test_steps_stand_in_order_with_their_shares(capsys):
    assert steps.main([*SMALL, "--precision", "int8-calibrated"]) == 0
    lines = capsys.readouterr().out.partition("int8-calibrated: ")[2].splitlines()[2:]
    assert [line.split("  ")[0] for line in lines[:-2]] == STEPS
    shares = [float(line.split("  ", 1)[1].split()[1]) for line in lines]
    assert shares[-1] == 100 and sum(shares[:-1]) == pytest.approx(100, abs=1)
    assert all(float(line.split()[-1]) > 0 for line in lines[:-2])


def test_a_wrong_pass_is_not_timed(monkeypatch, capsys):
    truth = iter([1.01])  # the first pass is NumPy's
    own = steps.hidden_states
    monkeypatch.setattr(steps, "hidden_states", lambda model, batch: own(model, batch) * next(truth, 1))
    assert steps.main([*SMALL, "--precision", "float32"]) == 1
    assert "step" not in capsys.readouterr().out


def test_a_clock_that_changes_bits_is_reported():
    passes = iter(np.arange(9.0))
    refuses(RuntimeError, "differ with the clock", steps.measured, lambda: np.array([next(passes)]), 1, 1)
