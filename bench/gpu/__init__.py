"""The GPU at hand in one command: is every kernel right, is a model of every family right, how fast are they.

    python -m bench.gpu [--quick] [--kinds kernel family] [--csv results.csv] [--minutes 6.5]

Correctness comes first, then what the goals are about: operations and BERT-base, beside a copy on the device and beside
PyTorch where it is there. Each part ends in time, so that the next has its own; what was left out is in the results as
"not run".

Needs NumPy, ml_dtypes and CuPy, and no installation: a folder with bertcore/, bench/ and tests/, and with kernels/
copied to bertcore/kernels, is enough on PYTHONPATH. PyTorch and transformers are compared with where they are.
"""
