"""Every member at its base shape, beside transformers on PyTorch and our own BERT-base: python -m bench.models

cases.py    the members, by their presets; batches and the work they are
__main__.py the command: load, check, time in turns (bench.peers does that), print, write the CSV
plot.py     the plot of the last runs in the CSV
"""
