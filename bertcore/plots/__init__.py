"""Pictures of models: one module per picture; its function returns a matplotlib figure.

`bertcore.drawing.save_figure(figure, "picture.svg")` writes one. The curves of a run are in `bertcore.training.curves`.
"""
