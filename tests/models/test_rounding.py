"""int8 weights rounded with regard to their inputs."""

import numpy as np
import pytest

from bertcore import AutoModel, kernels, use_backend
from bertcore.models.rounding import InputStatistics, observed_inputs, rounded_weight
from tests.tiny_bert import CONFIG

RNG = np.random.default_rng()


@pytest.fixture(autouse=True)
def same_numbers(monkeypatch):
    """A test has the same numbers whichever ran before."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(5))


def inputs(rows, columns, spread=1.0):
    """Rows whose columns go together."""
    return (RNG.normal(size=(rows, 3)) @ RNG.normal(size=(3, columns)) * spread + 0.1 * RNG.normal(size=(rows, columns))
            ).astype(np.float32)  # fmt: skip


def statistics(*batches):
    found = InputStatistics(batches[0].shape[1])
    for batch in batches:
        found.add(batch)
    return found


def error(form, weight, x):
    prepared = kernels.prepare_weight(*form, backend="numpy")
    return np.square(kernels.linear(x, prepared, backend="numpy") - x.astype(np.float64) @ weight.T).sum()


@pytest.mark.parametrize("shape", [(1, 1), (5, 39), (70, 130)], ids=str)
def test_columns_that_go_together_make_up_for_each_other(shape):
    """With inputs of few values, which int8 has, the weight alone is rounded."""
    weight, x = RNG.normal(size=shape).astype(np.float32), np.round(inputs(600, shape[1], 12))
    form = rounded_weight(weight, statistics(x[:250], x[250:500]))
    assert form.values.dtype == np.int8 and form.scale.dtype == np.float32
    plain = error(kernels.quantize_weight(weight), weight, x[500:])
    assert error(form, weight, x[500:]) <= (0.5 if shape[1] > 1 else 1) * plain


def test_columns_of_large_inputs_do_not_cost_the_others_their_digits():
    weight, x = RNG.normal(size=(40, 60)).astype(np.float32), RNG.normal(size=(500, 60)).astype(np.float32)
    assert rounded_weight(weight, statistics(x)).input_scale is None
    x[:, [3, 50]] *= 200
    form = rounded_weight(weight, statistics(x))
    assert form.input_scale.dtype == np.float32
    assert form.input_scale[[3, 50]].max() < 0.3 * np.delete(form.input_scale, [3, 50]).min()
    assert error(form, weight, x) < 0.1 * error(kernels.quantize_weight(weight), weight, x)


def test_columns_and_rows_of_zeros():
    weight, x = RNG.normal(size=(7, 9)).astype(np.float32), inputs(50, 9)
    weight[2], weight[:, 4], x[:, 6], x[:, 1] = 0, 0, 0, 500 * x[:, 1]
    form = rounded_weight(weight, statistics(x))
    assert not form.values[2].any() and not form.values[:, 4].any()
    assert np.isfinite(form.scale).all() and (form.input_scale > 0).all()
    assert error(form, weight, x) < error(kernels.quantize_weight(weight), weight, x)


@pytest.mark.parametrize("wrong", [0, np.nan, np.inf])
def test_inputs_that_say_nothing(wrong):
    with pytest.raises(ValueError, match="all 0, or hold inf or NaN"):
        rounded_weight(np.ones((2, 3), np.float32), statistics(np.full((4, 3), wrong, np.float32)))


def test_a_model_is_observed_within_the_block_alone():
    model, batch = AutoModel.from_config(CONFIG), {"input_ids": [[5, 6, 7], [8, 9, 0]]}
    batch["attention_mask"] = [[1, 1, 1], [1, 1, 0]]
    with use_backend("numpy"):
        expected = model(**batch).last_hidden_state
        with observed_inputs(model) as found:
            np.testing.assert_array_equal(model(**batch).last_hidden_state, expected)
        model([[5]])
        first = model(**batch, output_hidden_states=True).hidden_states[0]
    assert all(parameter.adapter is None for parameter in model.parameters())
    of_query = next(known for parameter, known in found.items() if "layer.0.attention.self.query" in parameter.names[0])
    rows = first.reshape(-1, first.shape[-1])[[0, 1, 2, 3, 4]]
    np.testing.assert_allclose(of_query.moments, rows.T @ rows, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_query.peaks, np.abs(rows).max(axis=0), rtol=1e-6)
    assert of_query.sample.shape == rows.shape
    assert of_query.rows == 5
    assert len(found) == 2 * 4 + 1  # query, key and value are one; the pooler
