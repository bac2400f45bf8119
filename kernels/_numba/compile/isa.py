"""What this CPU can do, and the vector shape the kernels are compiled for.

The environment variable BERTCORE_ISA (see own_name.py), the name of one of LEVELS ("generic", "avx2", "avx512", ...),
is read when this module is imported and compiles for less than the machine has, so that one machine can test the paths
of the others. It changes the CPU that Numba compiles for and must therefore be set before anything in the process was
compiled.

The level "amx" multiplies bfloat16 and int8 by tiles (amx.py) and needs a permission (tile_permission.py) beside the
CPU's features. Unless the variable asks for it, it is taken only where the tiles were tried and proved right
(tile_verdict.py). "amx_emulated" is its twin for tests: the same kernels, of the same vectors and tiles, on any CPU
with FMA.
"""

import platform
from dataclasses import dataclass

import llvmlite.binding as llvm
from numba import types
from numba.core import config

from ...own_name import setting, variable
from ..amx import request_tiles
from .tile_verdict import why_not_trusted

FEATURES = (
    "avx2", "fma", "avxvnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "neon",
    "amx-tile", "amx-int8", "amx-bf16",
)  # fmt: skip
NATIVE, EMULATED = "native", "emulated"


@dataclass(frozen=True)
class Level:
    """A class of CPUs: what it needs, how many bytes a vector has, how many vector registers there are.

    Attributes:
        name, requires: as the variable and LLVM's features name them.
        vector_bytes, registers: the vector registers.
        fma: whether it multiplies and adds in one instruction.
        llvm_cpu: what LLVM compiles for when this level is forced, beside the required features.
        int8_dot: whether it adds four products of bytes to an int32 in one instruction.
        bfloat16_dot: whether it multiplies bfloat16 by an instruction that adds two products to a float32; on other
            levels weights are kept in bfloat16 and widened to float32 as they are loaded (see dot.py).
        tiles: NATIVE or EMULATED if low precision is multiplied by tiles, else None.
    """

    name: str
    requires: frozenset
    vector_bytes: int
    registers: int
    fma: bool
    llvm_cpu: str
    int8_dot: bool = False
    bfloat16_dot: bool = False
    tiles: str | None = None


IS_X86 = platform.machine().lower() in ("x86_64", "amd64")

_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
_AVX512_VNNI = _AVX512 | {"avx512vnni"}
_AVX512_BF16 = _AVX512_VNNI | {"avx512bf16"}
_AMX = _AVX512_BF16 | {"amx-tile", "amx-int8", "amx-bf16"}

_X86_LEVELS = (  # the best first
    Level("amx", _AMX, 64, 32, True, "sapphirerapids", int8_dot=True, bfloat16_dot=True, tiles=NATIVE),
    Level("avx512_bf16", _AVX512_BF16, 64, 32, True, "x86-64-v4", int8_dot=True, bfloat16_dot=True),
    Level("avx512_vnni", _AVX512_VNNI, 64, 32, True, "x86-64-v4", int8_dot=True),
    Level("avx512", _AVX512, 64, 32, True, "x86-64-v4"),
    Level("avx2_vnni", _AVX2 | {"avxvnni"}, 32, 16, True, "x86-64-v3", int8_dot=True),
    Level("avx2", _AVX2, 32, 16, True, "x86-64-v3"),
    Level("amx_emulated", _AVX2, 64, 32, True, "x86-64-v3", bfloat16_dot=True, tiles=EMULATED),
    Level("generic", frozenset(), 16, 16, False, "x86-64"),
)
_OTHER_LEVELS = (
    Level("neon", frozenset(), 16, 32, True, "generic"),  # every 64-bit ARM has it
    Level("amx_emulated", frozenset(), 64, 32, True, "generic", bfloat16_dot=True, tiles=EMULATED),
    Level("generic", frozenset(), 16, 16, False, "generic"),
)
LEVELS = _X86_LEVELS if IS_X86 else _OTHER_LEVELS


def host_features() -> dict[str, bool]:
    """Which of FEATURES this machine has, by LLVM's account."""
    found = llvm.get_host_cpu_features()
    return {name: bool(found.get(name, False)) for name in FEATURES}


def why_not(level: Level) -> str | None:
    """What keeps this process from running code of a level; None if it can. Asks for the tiles where it has them."""
    features = host_features()
    missing = sorted(feature for feature in level.requires if not features[feature])
    if missing:
        return f"this CPU lacks {', '.join(missing)}"
    return request_tiles() if level.tiles == NATIVE else None


def _forced_level(name):
    by_name = {level.name: level for level in LEVELS}
    if name not in by_name:
        raise ValueError(f"{variable('ISA')}={name!r}: expected one of {', '.join(sorted(by_name))}")
    level = by_name[name]
    reason = why_not(level)
    if reason is not None:
        raise ValueError(f"{variable('ISA')}={name!r}, but {reason}")
    if level.tiles != NATIVE:  # the best of all: compiled as where it is taken unasked, so that both share a cache
        config.CPU_NAME = level.llvm_cpu
        config.CPU_FEATURES = ",".join(f"+{feature}" for feature in sorted(level.requires))
    return level


def _choose_level() -> Level:
    name = setting("ISA")
    if name:
        return _forced_level(name)
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return LEVELS[-1]  # the user chose Numba's target (NUMBA_CPU_NAME): assume no more than the baseline
    return best_level(llvm.get_host_cpu_name())


def best_level(cpu_name: str) -> Level:
    """The first of LEVELS that this process can run and that is right, and no slower than the next, on this CPU."""
    return next(level for level in LEVELS if why_not_unasked(level, cpu_name) is None)


def why_not_unasked(level: Level, cpu_name: str) -> str | None:
    """What keeps a level from being taken on a CPU of this name (LLVM's) without being asked for; None if nothing."""
    if level.tiles == EMULATED:
        return "it is for tests"
    reason = why_not(level)
    if reason is None and level.tiles == NATIVE:
        return why_not_trusted(level.name)
    if reason is None and level.name == "avx512_bf16" and not has_fast_bfloat16(cpu_name):
        return "its instruction for bfloat16 is not known to be fast on this CPU"
    return reason


def has_fast_bfloat16(cpu_name: str) -> bool:
    """Whether vdpbf16ps multiplies faster than the float32 FMA on a CPU of this name (LLVM's).

    Measured on one core, operands in registers: Zen 5 450 GOP/s, FMA 250; Intel's Sapphire Rapids 101, FMA 200. What is
    not known to be fast is not taken: bfloat16 is then widened to float32, and as fast as that.
    """
    return cpu_name in ("znver4", "znver5")


LEVEL = _choose_level()


def has_pair_dot() -> bool:
    """Whether bytes are multiplied as pairs of 16 bits (vpmaddwd of x86), in vectors that the CPU has."""
    return IS_X86 and LEVEL.tiles != EMULATED and not LEVEL.int8_dot


def has_native_bfloat16_dot() -> bool:
    """Whether products of bfloat16 are one instruction; of an emulated level they are not."""
    return LEVEL.bfloat16_dot and "avx512bf16" in LEVEL.requires


def lanes(dtype) -> int:
    """How many elements of `dtype` (a Numba scalar type) one vector holds."""
    return LEVEL.vector_bytes * 8 // (8 if dtype == types.boolean else dtype.bitwidth)
