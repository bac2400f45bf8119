"""Benchmarks, run from the root of the repository: `python -m bench.ops` compares the operations on every backend,
`python -m bench.peers` whole models with other libraries.

    measure.py   interleaved timing of variants: medians and ratios
    machine.py   what a measurement was made on, and with how many threads
    fma.py       what its vector units do at best
    report.py    aligned tables and the CSV of results
    memory.py    what a process has resident
    texts.py     texts as they come in practice

Each measurement checks its results before it is timed. bench/README.md says how to run and read them.
"""
