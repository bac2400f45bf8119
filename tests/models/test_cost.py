"""The measured cost of passes, each model in a process of its own."""

import numpy as np
import pytest

from bertcore.models import cost
from tests.tiny_bert import CONFIG
from tests.tiny_families import runnable, tiny_config


class FakeWorker:
    """A worker with given answers."""

    def __init__(self, compiled, turns=()):
        self.compiled, self.turns, self.closed = compiled, iter(turns), False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True

    def ask(self, what):
        return {"compiled": self.compiled}

    def turn(self):
        return next(self.turns)


def test_a_process_that_compiled_is_replaced(monkeypatch):
    """Its resident memory would include the compiler's."""
    workers = [FakeWorker(True), FakeWorker(False)]
    started = iter(workers)
    monkeypatch.setattr(cost, "started_worker", lambda name: next(started))
    with cost.warm_worker(cost.Member("bert", CONFIG), {}) as worker:
        assert worker is workers[1] and workers[0].closed and not worker.closed
    assert worker.closed


def test_models_pass_in_turns(monkeypatch):
    order = []

    def turns(name, seconds):
        for number, each in enumerate(seconds):
            order.append(name)
            yield {"seconds": each, "resident": 10.0 + number}

    workers = {"a": FakeWorker(False, turns("a", [3.0, 1.0, 2.0])), "b": FakeWorker(False, turns("b", [5.0, 5.0, 8.0]))}
    monkeypatch.setattr(cost, "ROUNDS", 3)
    monkeypatch.setattr(cost, "started_worker", workers.__getitem__)
    first, second = cost.pass_costs([cost.Member(name, CONFIG) for name in workers], 1, 4)
    assert order == ["a", "b"] * 3
    assert (first.latency, second.latency) == (2.0, 5.0) and first.seconds == (3.0, 1.0, 2.0)
    assert first.resident == 12.0  # after the last turn


def test_a_larger_model_takes_more(monkeypatch):
    monkeypatch.setattr(cost, "ROUNDS", 3)
    wide = CONFIG | {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 1, "vocab_size": 30_000}
    members = [cost.Member("narrow", CONFIG), cost.Member("wide", wide)]
    narrow, wide_cost = cost.pass_costs(members, 1, 39, backend="numpy")
    assert wide_cost.on_disk == pytest.approx(123, rel=0.02)  # 4 bytes of 30.8 million parameters
    assert wide_cost.resident - narrow.resident > 0.9 * (wide_cost.on_disk - narrow.on_disk)


def test_a_process_that_fails_is_told():
    config = CONFIG | {"num_attention_heads": 3, "vocab_size": 0}
    with pytest.raises(RuntimeError, match=r"odd cannot be measured: \w+"), cost.started_worker("odd") as worker:
        worker.ask({"config": config, "folder": None, "batch": 1, "length": 2, "backend": "numpy"})


@pytest.mark.parametrize("name", runnable())
def test_every_family_passes(name, monkeypatch):
    monkeypatch.setattr(cost, "TURN", 0)
    passes = cost.timed_passes(tiny_config(name), None, 2, 7, "numpy")
    assert next(passes) is False and np.isfinite(next(passes))
