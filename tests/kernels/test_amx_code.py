"""The machine code of kernels on tiles, compiled for a CPU with AMX and read, not run: any x86 machine can do that."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bertcore.kernels._numba.compile import isa

pytestmark = pytest.mark.skipif(not isa.IS_X86, reason="LLVM makes code for x86 on x86")


TILES = r"(?:tdp|tile|ldtile|sttile|vdpbf16)\w+"
LOADED_FOR = {
    "%tmm4": "%tmm6, %tmm4, %tmm0",
    "%tmm6": "%tmm6, %tmm4, %tmm0",
    "%tmm7": "%tmm7, %tmm4, %tmm1",
    "%tmm5": "%tmm6, %tmm5, %tmm2",
}
# Of attention's softmax, for 16 weights: one FMA scales and shifts, four are the power's polynomial.
FOR_WEIGHTS = {"vfmadd": 5, "vsubps": 1, "vrndscaleps": 1, "vcmp": 1, "vmulps": 0}


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


def check_loads(functions, products):
    """Check that a step of the depth loads each operand once: 4 loads for a block of 2 x 2 tiles."""
    found = [each for instructions in functions.values() for each in instructions]
    loaded = Counter(operands[-5:] for name, operands in found if name == "tileloadd")
    for tile, its in LOADED_FOR.items():
        assert loaded[tile] == products.count(its), tile


def test_operations_are_instructions(tmp_path):
    found = check(instructions(assembly("operations", tmp_path)), "tdpbf16ps")
    assert found and set(found) == {"%tmm7, %tmm4, %tmm0"}


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "product"), [("bfloat16", "tdpbf16ps"), ("int8", "tdpbusd")])
def test_linear_keeps_its_sums_in_tiles(kernel, product, tmp_path):
    functions = instructions(assembly(kernel, tmp_path))
    found = check(functions, product)
    check_loads(functions, found)
    two_by_two = ["%tmm6, %tmm4, %tmm0", "%tmm7, %tmm4, %tmm1", "%tmm6, %tmm5, %tmm2", "%tmm7, %tmm5, %tmm3"]
    assert set(found) == set(two_by_two)
    assert len(found) % 6 == 0  # of blocks of two tiles of rows, and of one


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["attention", "relative"])
def test_attention_keeps_its_sums_in_tiles(kernel, tmp_path):
    code = assembly(kernel, tmp_path)
    functions = instructions(code)
    names = {name for own in functions.values() for name, _ in own}
    assert "vdpbf16ps" not in names  # all products are on tiles
    found = check(functions, "tdpbf16ps")
    check_loads(functions, found)
    assert set(found) == {"%tmm6, %tmm4, %tmm0", "%tmm7, %tmm4, %tmm1", "%tmm6, %tmm5, %tmm2", "%tmm7, %tmm5, %tmm3"}
    check_softmax(code)


def check_softmax(code):
    """Check that the weights, from the first power of two to the last, take few instructions and no stack."""
    (own,) = (own for own in instructions(code, r"v\w+").values() if any(name == "vscalefps" for name, _ in own))
    places = [i for i, (name, _) in enumerate(own) if name == "vscalefps"]
    part = own[places[0] : places[-1]]
    assert not [operands for _, operands in part if "(%rsp)" in operands]
    taken = Counter(name for name, _ in part)
    for prefix, most in FOR_WEIGHTS.items():
        count = sum(times for name, times in taken.items() if name.startswith(prefix))
        assert count <= most * len(places), (prefix, count)
