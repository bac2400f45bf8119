"""The machine code of kernels on tiles, compiled for a CPU with AMX and read, not run: any x86 machine can do that."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertcore.kernels._numba import isa

pytestmark = pytest.mark.skipif(not isa.IS_X86, reason="LLVM makes code for x86 on x86")


def instructions(kernel, folder):
    """(name, operands) of the instructions on tiles, by the function that they stand in."""
    environment = {**os.environ, "BERTCORE_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "tests.kernels.amx_code", kernel]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]  # LLVM ends the process where it cannot select an instruction
    functions, name = {}, None
    for line in done.stdout.splitlines():
        if label := re.match(r"([\w$.]+):", line):
            name = label[1] if not label[1].startswith(".L") else name
        elif found := re.match(r"\s+((?:tdp|tile|ldtile|sttile|vdpbf16)\w+)\s*(.*)", line):
            functions.setdefault(name, []).append((found[1], found[2]))
    return functions


def check(functions, product):
    """There is one configuration and one release, and no tile lies on the stack."""
    found = [each for instructions in functions.values() for each in instructions]
    names = [name for name, _ in found]
    assert names.count("ldtilecfg") == names.count("tilerelease") == 1
    assert "sttilecfg" not in names
    for name, operands in found:
        if name in ("tileloadd", "tilestored"):
            assert "rsp" not in operands, (name, operands)
    return [operands for name, operands in found if name == product]


def test_operations_are_instructions(tmp_path):
    found = check(instructions("operations", tmp_path), "tdpbf16ps")
    assert found and set(found) == {"%tmm7, %tmm4, %tmm0"}


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "product"), [("bfloat16", "tdpbf16ps"), ("int8", "tdpbusd")])
def test_linear_keeps_its_sums_in_tiles(kernel, product, tmp_path):
    found = check(instructions(kernel, tmp_path), product)
    two_by_two = ["%tmm6, %tmm4, %tmm0", "%tmm7, %tmm4, %tmm1", "%tmm6, %tmm5, %tmm2", "%tmm7, %tmm5, %tmm3"]
    assert set(found) == set(two_by_two)
    assert len(found) % 6 == 0  # of blocks of two tiles of rows, and of one


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["attention", "relative"])
def test_attention_keeps_its_sums_in_tiles(kernel, tmp_path):
    found = instructions(kernel, tmp_path)
    assert not [name for own in found.values() for name, _ in own if name == "vdpbf16ps"]  # all products are on tiles
    found = check(found, "tdpbf16ps")
    assert set(found) == {"%tmm6, %tmm4, %tmm0", "%tmm7, %tmm4, %tmm1", "%tmm6, %tmm5, %tmm2", "%tmm7, %tmm5, %tmm3"}
