"""The GPU at hand in one command: correctness of every kernel and of a model of every family, then speed.

    python -m bench.gpu [--quick] [--kinds kernel family] [--csv results.csv] [--minutes 6.5]

Correctness comes first, then the timings that have goals: operations and BERT-base, beside a copy on the device and
beside PyTorch if it is installed. Each part ends in time for the next; steps left out are "not run" in the results.

It needs NumPy, ml_dtypes and CuPy, and no installation: a folder with bertcore/ (and in it kernels/), bench/ and tests/
on PYTHONPATH is enough. It compares with PyTorch and transformers if they are installed.
"""
