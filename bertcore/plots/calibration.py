"""Reliability diagrams: the accuracy of a classifier by its probability."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertcore.tasks.calibration import reliability


def reliability_diagram(probabilities: Any, labels: Any, *, bins: int = 15) -> Figure:
    """Draw accuracy by probability with the diagonal of perfect calibration, and below it the count of each bin.

    Arguments and errors as for `reliability`.
    """
    found = reliability(probabilities, labels, bins=bins)
    figure = Figure(figsize=(4.5, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width, left = np.diff(found.edges), found.edges[:-1]
    look = {"align": "edge", "edgecolor": "white"}
    above.bar(left, np.nan_to_num(found.accuracy), width, color="#3b6ea5", label="accuracy", **look)
    above.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="probability")
    above.plot(found.confidence, found.accuracy, "o", color="#c0504d", markersize=4, label="mean of the bin")
    above.set(ylim=(0, 1), ylabel="accuracy", title=f"expected calibration error {found.error:.3f}")
    above.legend(loc="upper left", frameon=False)
    below.bar(left, found.counts, width, color="#888888", **look)
    below.set(xlim=(0, 1), xlabel="probability of the predicted class", ylabel="texts")
    return figure
