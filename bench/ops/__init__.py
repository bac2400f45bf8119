"""Each operation of bertcore.kernels on each backend, against the NumPy reference and against a copy.

python -m bench.ops --help                   interleaved comparison: a table and bench/results/ops.csv
pytest -n0 bench/ops --benchmark-only            the same cases under pytest-benchmark

operations.py how each operation is called, forward and backward; the tests use it, too
cases.py      the one table of cases: sizes, arguments, bytes and FLOPs
calls.py      a case brought to a backend; its result checked
baselines.py  copies that move as many bytes
peers.py      the same case in PyTorch
compare.py    checks, then times, all variants of a case
"""
