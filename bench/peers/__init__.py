"""Whole models in this library, PyTorch, ONNX Runtime, OpenVINO and CTranslate2, in turns: python -m bench.peers

cases.py        the models, the batches, the work they are
checkpoint.py   one random checkpoint per model, from which every library gets its weights; the truth
libraries/      one file per library: what it computes in, how it loads the checkpoint, the call to time
clock.py        a clock that waits until the threads of the previous library sleep
compare.py      load, check, time; one row per library and case
summary.py      the tables that are printed
plot.py         the plot of the last runs in the CSV
"""
