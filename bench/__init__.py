"""Benchmarks, run from the root of the repository; bench/README.md has all commands.

`python -m bench.ops` compares the operations on every backend, `python -m bench.peers` models with other libraries.

    measure.py   interleaved timing of variants: medians and ratios
    machine.py   machine, threads, versions; fma.py: the FMA limit of its vector units
    report.py    aligned tables and the CSV of results; plot.py: plots of the CSV
    memory.py    resident memory of processes
    texts.py     realistic texts

Each measurement checks its results before it is timed.
"""
