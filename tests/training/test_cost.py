"""Training cost: extrapolated from a few layers, and measured with all of them."""

import json
from types import SimpleNamespace

import pytest

from bertcore.presets import preset_config
from bertcore.training import cost
from tests.refusals import refuses
from tests.tiny_bert import CONFIG

SIX_LAYERS = {**CONFIG, "num_hidden_layers": 6, "hidden_size": 96, "num_attention_heads": 2, "intermediate_size": 384}


@pytest.mark.slow
def test_weights_gradients_and_moments():
    found = cost.training_cost({**CONFIG, "num_hidden_layers": 1}, 2, 7)
    model = cost.model_of({**CONFIG, "num_hidden_layers": 1})
    assert found.weights == found.gradients == found.moments / 2 == 4 * model.num_parameters() / 1e6
    assert found.tokens_per_second == 14 / found.kept.seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    "config, batch, length",
    [(SIX_LAYERS, 48, 40), (preset_config("mini-bert"), 16, 64), (preset_config("electra-small-generator"), 2, 39)],
)
def test_the_peak_of_all_layers_is_extrapolated_from_a_few(config, batch, length):
    found, layers = cost.training_cost(config, batch, length), config["num_hidden_layers"]
    for extrapolated, again in ((found.kept, False), (found.checkpointed, True)):
        measured = cost.measured(config, batch, length, layers, again)
        assert extrapolated.peak == pytest.approx(measured.peak, rel=0.1)
        assert extrapolated.activations == pytest.approx(measured.activations, rel=0.1, abs=2)
    assert found.checkpointed.activations < found.kept.activations


def test_a_process_that_compiled_is_asked_again(monkeypatch):
    """Its peak is the compiler's."""
    found = [{"activations": 1.0, "peak": peak, "seconds": 2.0, "compiled": peak == 900.0} for peak in (900.0, 300.0)]
    answers = iter([SimpleNamespace(returncode=0, stdout=json.dumps(each)) for each in found])
    monkeypatch.setattr(cost.subprocess, "run", lambda *command, **options: next(answers))
    assert cost.measured(CONFIG, 1, 4, 1, False) == cost.StepCost(activations=1.0, peak=300.0, seconds=2.0)


def test_texts_beyond_the_model():
    refuses(ValueError, "length is 4000, and the model takes", cost.training_cost, CONFIG, 1, 4000)


def test_a_step_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match=r"a step with 1 layers failed: \w"):
        cost.measured({**CONFIG, "num_attention_heads": 1000}, 1, 4, 1, False)
