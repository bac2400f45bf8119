"""Tests of Numba's kernels once more as other CPUs run them: narrower vectors, fewer instructions, the tiles of AMX."""

from pathlib import Path

import pytest

from tests.kernels.forced_isa import run_tests_under

NARROW, TILES = ("avx2", "generic"), ("amx_emulated", "amx")
RUNS = [  # the file, the levels, and which of its tests
    ("test_numba_tiles", TILES, ""),
    ("test_numba_simd", NARROW, ""),
    ("test_numba_rows", NARROW, "special or batch or thread"),
    ("conformance/test_conformance", NARROW, "numba-float32 and not attention and not linear"),
    ("test_numba_linear", NARROW, ""),
    ("test_numba_linear", ("avx512", "avx2_vnni", *TILES, "avx512_bf16"), "int8 or bfloat16"),
    ("test_numba_attention", NARROW, ""),
    ("test_numba_attention", ("avx512", *TILES, "avx512_bf16"), "bfloat16"),
    ("test_program", ("avx512", *TILES, *NARROW), "same_bits or other_values"),
]


def parameters():
    for file, levels, chosen in RUNS:
        for isa in levels:
            yield pytest.param(file, isa, chosen, id=f"{file}-{isa}", marks=[] if "tiles" in file else pytest.mark.slow)


@pytest.mark.parametrize("file, isa, chosen", list(parameters()))
def test_again(file, isa, chosen):
    run_tests_under(isa, str(Path(__file__).parent / f"{file}.py"), *(["-k", chosen] if chosen else []))
