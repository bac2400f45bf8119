"""Compare gradients of a model's parameters with finite differences of a loss."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest


def assert_slope(
    model: Any,
    grads: Mapping[str, np.ndarray],
    loss: Callable[[], Any],
    names: Iterable[str] | None = None,
    *,
    step: float = 1e-6,
    rel: float = 1e-5,
    least: float = 1e-8,
) -> None:
    """Check that `grads` are the gradients of `loss()`, along a random direction of the named parameters (all).

    `least` is the absolute tolerance, for slopes that cancel to nothing.
    """
    rng, start = np.random.default_rng(1), {name: array.copy() for name, array in model.state_dict().items()}
    way = {name: rng.normal(size=start[name].shape) for name in names or start}
    ends = []
    for size in (step, -step):
        model.load_state_dict(start | {name: start[name] + size * part for name, part in way.items()})
        ends.append(float(loss()))
    model.load_state_dict(start)
    slope = sum((grads[name] * part).sum() for name, part in way.items())
    assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=rel, abs=least), list(way)


def assert_slope_of_parameters(
    parameters: Iterable[Any], grads: Mapping[str, np.ndarray], loss: Callable[[], Any], *, rel: float = 1e-5
) -> None:
    """Check the gradients of each of these parameters, whether or not a model has them."""
    rng, step = np.random.default_rng(3), 1e-6
    for parameter in parameters:
        start, ends = parameter.array().copy(), []
        way = rng.normal(size=start.shape)
        for size in (step, -step):
            parameter.update(start + size * way)
            ends.append(float(loss()))
        parameter.update(start)
        slope = sum((grads[name] * part).sum() for name, part in parameter.parts(way))
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=rel, abs=1e-7), parameter.names
