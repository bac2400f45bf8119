"""The machine code of kernels on tiles, compiled for a CPU with AMX and read, not run: any x86 machine can do that."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertcore.kernels._numba.compile import isa

pytestmark = pytest.mark.skipif(not isa.IS_X86, reason="LLVM makes code for x86 on x86")


TILES = r"(?:tdp|tile|ldtile|sttile|vdpbf16)\w+"


def assembly(kernel, folder):
    """Return LLVM's assembly of a kernel for a CPU with AMX."""
    environment = {**os.environ, "BERTCORE_CACHE_DIR": str(folder)}
    command = [sys.executable, "-m", "tests.kernels.amx_code", kernel]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]  # LLVM ends the process where it cannot select an instruction
    return done.stdout


def instructions(code, pattern=TILES):
    """(name, operands) of the instructions of a pattern, by the function that they stand in."""
    functions, name = {}, None
    for line in code.splitlines():
        if label := re.match(r"([\w$.]+):", line):
            name = label[1] if not label[1].startswith(".L") else name
        elif found := re.match(rf"\s+({pattern})\s*(.*)", line):
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
    found = check(instructions(assembly("operations", tmp_path)), "tdpbf16ps")
    assert found and set(found) == {"%tmm7, %tmm4, %tmm0"}
