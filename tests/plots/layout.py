"""Checks of a figure as a reader sees it: no text covers another, and none leaves the canvas."""

from itertools import combinations

from matplotlib.text import Text

SMALLEST = 7  # points
SLACK = 1  # pixels


def tick_texts(figure):
    """(text, whether its tick is in view) of each tick label."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            room = (high - low) * 1e-6
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                for label in (tick.label1, tick.label2):
                    yield label, low - room <= tick.get_loc() <= high + room


def drawn_texts(figure):
    """The texts that are drawn, with their boxes in pixels."""
    figure.draw_without_rendering()
    hidden = {label for label, is_in_view in tick_texts(figure) if not is_in_view}
    for text in figure.findobj(Text):
        if text not in hidden and text.get_visible() and text.get_text().strip():
            yield text, text.get_window_extent()


def check_layout(figure):
    """Check each text against all others and the canvas; return the texts."""
    found = list(drawn_texts(figure))
    assert found
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in found:
        assert text.get_fontsize() >= SMALLEST, text
        assert box.x0 >= -SLACK and box.y0 >= -SLACK and box.x1 <= width + SLACK and box.y1 <= height + SLACK, text
    for (first, one), (second, other) in combinations(found, 2):
        across = min(one.x1, other.x1) - max(one.x0, other.x0)
        up = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert across <= SLACK or up <= SLACK, f"{first} covers {second}"
    return [text.get_text() for text, _ in found]
