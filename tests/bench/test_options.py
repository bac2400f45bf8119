"""Numbers on the command lines of the benchmarks: all are checked where they are read."""

import argparse
import re
from pathlib import Path

import pytest

import bench
from bench.options import above_zero, at_least, positive

BENCH = Path(bench.__path__[0])


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (positive, {"1": 1, "007": 7}, ["0", "-1", "1.5", "", "x"]),
        (at_least(2), {"2": 2}, ["1", "two"]),
        (above_zero, {"0.5": 0.5, "60": 60}, ["0", "-1", "nan", "inf", "x"]),
    ],
)
def test_numbers(kind, right, wrong):
    assert {text: kind(text) for text in right} == right
    for text in wrong:
        with pytest.raises(argparse.ArgumentTypeError, match=f"^is {re.escape(repr(text))}, expected "):
            kind(text)


def test_no_command_takes_any_number():
    files = [file for file in BENCH.rglob("*.py") if re.search(r"type=(int|float)\b", file.read_text(encoding="utf-8"))]
    assert files == []
