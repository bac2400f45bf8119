"""Whole models in this library, PyTorch, ONNX Runtime, OpenVINO and CTranslate2, in turns: python -m bench.peers

cases.py        the models, the batches, their FLOPs
checkpoint.py   one random checkpoint per model, from which every library gets its weights; the truth
libraries.py    each library: its precisions, how it loads the checkpoint, the call to time
compare.py      load, check, time; one row per library and case
command.py      options, run and report, shared with bench.models and bench.training
"""
