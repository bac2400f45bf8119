"""bench.steps: every step of a pass is counted, with the FLOP that it is."""

from bench import steps
from bench.peers.cases import MODELS, random_batch
from bertcore import AutoModel, use_backend
from bertcore.kernels.program.cpu import StepTable

LENGTHS = (3, 7, 5)


def test_every_step_of_a_pass_is_counted_with_its_flop(monkeypatch):
    monkeypatch.setattr(steps, "fma_limit", lambda threads, seconds: 1e9)
    size, run = MODELS["tiny"], StepTable.run
    with use_backend("numba"):
        model = AutoModel.from_config(steps.config_of(size))
        rows, limits = steps.measure(model, LENGTHS, random_batch(LENGTHS, size.vocabulary, 0)._asdict(), rounds=2)
    by_name = {row["step"]: row for row in rows}
    assert limits == [1e9, 1e9] and StepTable.run is run
    assert by_name["layer_norm"]["count"] == 2 * size.layers and by_name["attention"]["count"] == size.layers
    assert by_name[f"linear {size.hidden} to {size.intermediate}"]["count"] == size.layers
    whole = by_name[steps.PASS]
    assert round(whole["flop_per_s"] * whole["seconds"]) == size.flops(LENGTHS)
    assert abs(sum(row["share"] for row in rows[:-1]) - 1) < 1e-9
