"""Figures about models: each is a function that returns a matplotlib figure.

`bertcore.drawing.save_figure(figure, "picture.svg")` writes one. A run's curves are in `bertcore.training.curves`.
"""
