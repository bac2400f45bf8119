"""Figures of models and their training: one module per figure; its function returns a matplotlib figure."""
