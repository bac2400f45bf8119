"""The machine code of kernels on tiles, compiled for a CPU with AMX and read, not run: any x86 machine can do that."""

import re

import pytest

from bertcore.kernels._numba.compile import isa
from tests.processes import run_python

TILES = r"(?:tdp|tile|ldtile|sttile|vdpbf16)\w+"


@pytest.mark.skipif(not isa.IS_X86, reason="LLVM makes code for x86 on x86")
def test_operations_are_instructions(tmp_path):
    """There is one configuration and one release, and no tile lies on the stack."""
    code = "import runpy, sys; sys.argv[0] = ''; runpy.run_module('tests.kernels.amx_code', run_name='__main__')"
    assembly, _ = run_python(code, "operations", BERTCORE_CACHE_DIR=str(tmp_path))
    found = re.findall(rf"^\s+({TILES})\s*(.*)", assembly, flags=re.MULTILINE)
    names = [name for name, _ in found]
    assert names.count("ldtilecfg") == names.count("tilerelease") == 1 and "sttilecfg" not in names
    assert not any("rsp" in operands for name, operands in found if name in ("tileloadd", "tilestored"))
    assert {operands for name, operands in found if name == "tdpbf16ps"} == {"%tmm7, %tmm4, %tmm0"}
