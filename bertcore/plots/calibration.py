"""Reliability diagrams: a classifier's accuracy by its predicted probability."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bertcore.arguments import check_count
from bertcore.drawing import BLUE, GREY, ORANGE, new_figure, style
from bertcore.tasks.calibration import reliability


@style()
def reliability_diagram(probabilities: Any, labels: Any, *, bins: int = 15) -> Figure:
    """Draw accuracy by predicted probability with the diagonal of perfect calibration, and the texts of each bin below.

    The title gives the expected calibration error. Arguments and errors as for `reliability`; at most 100 bins.
    """
    found = reliability(probabilities, labels, bins=check_count("bins", bins, most=100))
    figure = new_figure(4.6, 5.2)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    width, left = np.diff(found.edges), found.edges[:-1]
    look = {"align": "edge", "edgecolor": "white", "linewidth": 0.6}
    above.bar(left, np.nan_to_num(found.accuracy), width, color=BLUE, label="accuracy", **look)
    above.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect calibration")
    above.plot(found.confidence, found.accuracy, "o", color=ORANGE, markeredgecolor="white", label="mean of the bin")
    count = int(found.counts.sum())
    title = f"expected calibration error {found.error:.3f}, {count:,} text{'s' * (count != 1)}"
    above.set(ylim=(0, 1.02), ylabel="accuracy", title=title)
    above.legend(loc="upper left")
    below.bar(left, found.counts, width, color=GREY, **look)
    below.yaxis.get_major_locator().set_params(integer=True, nbins=4)
    below.set(xlim=(0, 1), xlabel="probability of the predicted class", ylabel="texts")
    for place in (above, below):
        place.grid(axis="y")
    return figure
