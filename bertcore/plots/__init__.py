"""Figures about models: one module per figure, whose function returns a matplotlib figure.

`bertcore.drawing.save_figure(figure, "picture.svg")` writes one. A run's curves are in `bertcore.training.curves`.
"""
