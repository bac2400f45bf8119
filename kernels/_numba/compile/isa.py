"""The CPU's features, and the level of them that kernels are compiled for.

The environment variable BERTCORE_ISA (see own_name.py), the name of one of LEVELS ("generic", "avx2", "avx512", ...),
is read when this module is imported. It compiles for less than the machine has, so that one machine can test the code
of others. It changes the CPU that Numba compiles for, so it must be set before the process compiles anything.

The level "amx" multiplies bfloat16 and int8 on tiles and needs Linux's permission beside the CPU's features.
"amx_emulated" runs the same kernels in tests, with the same vectors and emulated tiles, on any CPU with FMA.
"""

import platform
from dataclasses import dataclass

import llvmlite.binding as llvm
from numba import types
from numba.core import config

from ...own_name import setting, variable
from ..amx.permission import request_tiles

FEATURES = (
    "avx2", "fma", "avxvnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "neon",
    "amx-tile", "amx-int8", "amx-bf16",
)  # fmt: skip
NATIVE, EMULATED = "native", "emulated"


@dataclass(frozen=True)
class Level:
    """A class of CPUs.

    Attributes:
        name, requires: its name in the variable, and LLVM's names of the features it requires.
        vector_bytes, registers: size and number of the vector registers.
        fma: whether one instruction multiplies and adds.
        llvm_cpu: LLVM's name of the CPU to compile for when this level is forced, beside the required features.
        int8_dot: whether one instruction adds four products of bytes to an int32.
        bfloat16_dot: whether one instruction adds two products of bfloat16 to a float32. Other levels widen weights
            from bfloat16 to float32 as they load them (dot.py).
        tiles: NATIVE or EMULATED if tiles multiply low precision, else None.
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
    """Return which of FEATURES this machine has, according to LLVM."""
    found = llvm.get_host_cpu_features()
    return {name: bool(found.get(name, False)) for name in FEATURES}


def why_not(level: Level) -> str | None:
    """Return why this process cannot run code of a level, or None. Requests the tiles if the level has them."""
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
    if level.tiles != NATIVE:  # the best level: compiled as where it is chosen by default, so that both share a cache
        config.CPU_NAME = level.llvm_cpu
        config.CPU_FEATURES = ",".join(f"+{feature}" for feature in sorted(level.requires))
    return level


def _choose_level() -> Level:
    name = setting("ISA")
    if name:
        return _forced_level(name)
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return LEVELS[-1]  # the user chose Numba's target (NUMBA_CPU_NAME): assume the baseline
    return best_level(llvm.get_host_cpu_name())


def best_level(cpu_name: str) -> Level:
    """Return the first of LEVELS that this process can run, other than those for tests or slower than the next.

    vdpbf16ps multiplies faster than the float32 FMA on some CPUs and slower on others. CPUs where it is not known to
    be faster widen bfloat16 to float32, which is as fast as float32.
    """
    has_fast_bfloat16 = cpu_name in ("znver4", "znver5")
    levels = (level for level in LEVELS if level.tiles != EMULATED)
    return next(level for level in levels if (level.name != "avx512_bf16" or has_fast_bfloat16) and not why_not(level))


LEVEL = _choose_level()


def has_pair_dot() -> bool:
    """Return whether bytes are multiplied as pairs of 16 bits (vpmaddwd of x86)."""
    return IS_X86 and LEVEL.tiles != EMULATED and not LEVEL.int8_dot


def has_native_bfloat16_dot() -> bool:
    """Return whether the CPU itself multiplies bfloat16; an emulated level does not count."""
    return LEVEL.bfloat16_dot and "avx512bf16" in LEVEL.requires


def lanes(dtype) -> int:
    """Return how many elements of `dtype` (a Numba scalar type) one vector holds."""
    return LEVEL.vector_bytes * 8 // (8 if dtype == types.boolean else dtype.bitwidth)
