"""bench.overhead: what is counted where, on a forward whose parts are known."""

import numpy as np
import pytest

from bench import overhead
from bertcore import AutoModel, kernels, use_backend

TINY = {
    "model_type": "bert",
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}


class Clock:
    """Time that passes only when told to."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(overhead.time, "perf_counter", lambda: self.now)

    def spend(self, seconds):
        self.now += seconds


def test_time_is_that_of_the_operation_that_runs(monkeypatch):
    clock, profile = Clock(monkeypatch), overhead.Profile()
    compiled = profile.compiled(lambda: clock.spend(5))
    inner = profile.operation("inner", lambda: (clock.spend(1), compiled()))
    outer = profile.operation("outer", lambda: (clock.spend(10), inner(), compiled()))
    outer()
    inner()
    compiled()
    assert profile.spent == {"outer": [1, 21, 10], "inner": [1, 6, 5], overhead.REST: [0, 0, 5]}
    completed = overhead._completed(40.0, profile.spent)
    assert completed[overhead.REST] == [0, 13, 5]
    assert list(completed[overhead.FORWARD]) == [2, 40, 20]
    row = overhead._row("outer", *completed["outer"])
    assert (row["python_s"], row["python_per_call_s"]) == (11, 11)


def test_every_operation_of_a_forward_is_counted_and_put_back():
    ids = np.arange(1, 8)[None]
    before = {name: getattr(kernels, name) for name in overhead.operation_names()}
    with use_backend("numba"):
        model = AutoModel.from_config(TINY)
        rows, plain = overhead.measure(lambda: model(input_ids=ids, output_hidden_states=True), rounds=3)
    by_name = {row["operation"]: row for row in rows}
    assert by_name["linear"]["calls"] == 4 * TINY["num_hidden_layers"] + 1
    assert by_name["attention"]["calls"] == TINY["num_hidden_layers"]
    assert by_name["layer_norm"]["calls"] == 2 * TINY["num_hidden_layers"] + 1
    assert [row["operation"] for row in rows][-2:] == [overhead.REST, overhead.FORWARD]
    for name in ("linear", "attention", "layer_norm", "embedding"):
        assert 0 < by_name[name]["compiled_s"] < by_name[name]["total_s"]
    assert plain > 0
    assert {name: getattr(kernels, name) for name in before} == before


@pytest.mark.slow
def test_the_command_prints_each_model(monkeypatch, capsys):
    monkeypatch.setattr(overhead, "MODELS", {"small": TINY})
    overhead.main(["--rounds", "1", "--length", "5"])
    printed = capsys.readouterr().out
    assert "small, float32, 1x5" in printed
    assert "Python per call" in printed


def test_length_beyond_the_positions_is_told():
    with pytest.raises(ValueError, match="512"):
        overhead.main(["--rounds", "1", "--length", "513", "--model", "12 layers of width 24"])
