"""The CPU's features, and the level of them that kernels are compiled for.

The environment variable BERTCORE_ISA (see settings.py), the name of one of LEVELS ("generic", "avx2", "neon", ...), is
read when this module is imported. It selects fewer features than the machine has, so that one machine can test the code
of others. It changes the CPU that Numba compiles for, so it must be set before the process compiles anything.

The level "amx" multiplies bfloat16 and int8 on tiles and needs Linux's permission in addition to the CPU's features.
"amx_emulated" runs the same kernels in tests, with the same vectors and emulated tiles, on any CPU with FMA.
"""

import platform
import sys
from dataclasses import dataclass

import llvmlite.binding as llvm
from numba import types
from numba.core import config

from ...settings import setting, variable
from ...threads import auxiliary_value, sysctl
from ..amx.permission import request_tiles

FEATURES = (
    "avx2", "fma", "avxvnni", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16",
    "amx-tile", "amx-int8", "amx-bf16", "neon", "dotprod", "i8mm", "bf16",
)  # fmt: skip
# Of 64-bit ARM, by LLVM's name: the entry of Linux's auxiliary vector (AT_HWCAP, AT_HWCAP2) and its bit; macOS's name.
_ARM_FEATURES = {"dotprod": (16, 20, "DotProd"), "i8mm": (26, 13, "I8MM"), "bf16": (26, 14, "BF16")}
NATIVE, EMULATED = "native", "emulated"


@dataclass(frozen=True)
class Level:
    """A class of CPUs.

    Attributes:
        name, requires: its name in the variable, and LLVM's names of the features it requires.
        vector_bytes, registers: size and number of the vector registers.
        fma: whether one instruction multiplies and adds.
        llvm_cpu: LLVM's name of the CPU to compile for when this level is forced, together with the required features.
        int8_dot: LLVM's name of the instruction that adds four products of bytes to an int32, "" if there is none.
        bfloat16_dot: likewise of two products of bfloat16 and a float32; EMULATED with emulated tiles. Levels without
            it widen weights from bfloat16 to float32 as they load them (dot.py).
        int8_matrix, bfloat16_matrix: likewise of instructions that multiply two rows by two columns, for prepared
            weights; a level has both or neither.
        int8_origin: subtracted from quantized values, where instructions take signed bytes on both sides.
        tiles: NATIVE or EMULATED if tiles multiply low precision, else None.
    """

    name: str
    requires: frozenset
    vector_bytes: int
    registers: int
    fma: bool
    llvm_cpu: str
    int8_dot: str = ""
    bfloat16_dot: str = ""
    int8_matrix: str = ""
    bfloat16_matrix: str = ""
    int8_origin: int = 0
    tiles: str | None = None

    @property
    def llvm_features(self) -> str:
        """Return the required features as LLVM and Numba spell them."""
        return ",".join(f"+{feature}" for feature in sorted(self.requires))


IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
IS_ARM = platform.machine().lower() in ("aarch64", "arm64")

_AVX2 = frozenset({"avx2", "fma"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
_AVX512_VNNI = _AVX512 | {"avx512vnni"}
_AVX512_BF16 = _AVX512_VNNI | {"avx512bf16"}
_AMX = _AVX512_BF16 | {"amx-tile", "amx-int8", "amx-bf16"}

_VNNI = {"int8_dot": "llvm.x86.avx512.vpdpbusd.512"}
_BF16 = _VNNI | {"bfloat16_dot": "llvm.x86.avx512bf16.dpbf16ps.512"}

# The best first. BERTCORE_ISA accepts these names, and cached kernels are stored under them.
X86_LEVELS = (
    Level("amx", _AMX, 64, 32, True, "sapphirerapids", **_BF16, tiles=NATIVE),
    Level("avx512_bf16", _AVX512_BF16, 64, 32, True, "x86-64-v4", **_BF16),
    Level("avx512_vnni", _AVX512_VNNI, 64, 32, True, "x86-64-v4", **_VNNI),
    Level("avx512", _AVX512, 64, 32, True, "x86-64-v4"),
    Level("avx2_vnni", _AVX2 | {"avxvnni"}, 32, 16, True, "x86-64-v3", int8_dot="llvm.x86.avx512.vpdpbusd.256"),
    Level("avx2", _AVX2, 32, 16, True, "x86-64-v3"),
    Level("amx_emulated", _AVX2, 64, 32, True, "x86-64-v3", bfloat16_dot=EMULATED, tiles=EMULATED),
    Level("generic", frozenset(), 16, 16, False, "x86-64"),
)

_NEON = frozenset({"neon"})
_DOTPROD = {"int8_dot": "llvm.aarch64.neon.sdot.v4i32.v16i8", "int8_origin": 128}
_I8MM = _DOTPROD | {
    "bfloat16_dot": "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
    "int8_matrix": "llvm.aarch64.neon.smmla.v4i32.v16i8",
    "bfloat16_matrix": "llvm.aarch64.neon.bfmmla",
}

# Vectors of 16 bytes everywhere: CPUs with longer vectors (SVE) have half as many units for them.
ARM_LEVELS = (
    Level("neon_i8mm", _NEON | {"dotprod", "i8mm", "bf16"}, 16, 32, True, "neoverse-n1", **_I8MM),
    Level("neon_dotprod", _NEON | {"dotprod"}, 16, 32, True, "neoverse-n1", **_DOTPROD),
    Level("neon", _NEON, 16, 32, True, "cortex-a72"),  # every 64-bit ARM has it
    Level("amx_emulated", _NEON, 64, 32, True, "cortex-a72", bfloat16_dot=EMULATED, tiles=EMULATED),
    Level("generic", frozenset(), 16, 16, False, "generic"),
)
_OTHER_LEVELS = (Level("generic", frozenset(), 16, 16, False, "generic"),)
LEVELS = X86_LEVELS if IS_X86 else ARM_LEVELS if IS_ARM else _OTHER_LEVELS


def arm_features() -> dict[str, bool]:
    """Return which features a 64-bit ARM CPU has: LLVM finds its name, but not all features that the system reports."""
    found = {"neon": True}
    for name, (entry, bit, at_apple) in _ARM_FEATURES.items():
        if sys.platform == "linux":
            found[name] = bool(auxiliary_value(entry) >> bit & 1)
        else:
            found[name] = sysctl(f"hw.optional.arm.FEAT_{at_apple}") == 1
    return found


def host_features() -> dict[str, bool]:
    """Return which of FEATURES this machine has, according to LLVM or, on ARM, the system."""
    found = arm_features() if IS_ARM else llvm.get_host_cpu_features()
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
    if level.tiles != NATIVE:  # the best level: compiled as if it were the default, so that both share a cache
        compile_for(level, level.llvm_cpu)
    return level


def compile_for(level, cpu_name):
    config.CPU_NAME = cpu_name
    config.CPU_FEATURES = level.llvm_features


def choose_level() -> Level:
    name = setting("ISA")
    if name:
        return _forced_level(name)
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return LEVELS[-1]  # the user chose Numba's target (NUMBA_CPU_NAME): assume the baseline
    cpu_name = llvm.get_host_cpu_name()
    level = best_level(cpu_name)
    if IS_ARM:  # Numba would compile for the features that LLVM finds
        compile_for(level, level.llvm_cpu if cpu_name == "generic" else cpu_name)
    return level


def best_level(cpu_name: str) -> Level:
    """Return the first of LEVELS that this process can run, other than those for tests or slower than the next.

    vdpbf16ps multiplies faster than the float32 FMA on some CPUs and slower on others. CPUs where it is not known to
    be faster widen bfloat16 to float32, which is as fast as float32.
    """
    has_fast_bfloat16 = cpu_name in ("znver4", "znver5")
    levels = (level for level in LEVELS if level.tiles != EMULATED)
    return next(level for level in levels if (level.name != "avx512_bf16" or has_fast_bfloat16) and not why_not(level))


LEVEL = choose_level()
# Bytes along the depth in a word of prepared weights in low precision (products/dot.py).
WORD_BYTES = 8 if LEVEL.int8_matrix else 4


def has_pair_dot() -> bool:
    """Return whether bytes are multiplied as pairs of 16 bits (vpmaddwd of x86)."""
    return IS_X86 and LEVEL.tiles != EMULATED and not LEVEL.int8_dot


def has_native_bfloat16_dot() -> bool:
    """Return whether the CPU itself multiplies bfloat16; an emulated level does not count."""
    return LEVEL.bfloat16_dot not in ("", EMULATED)


def lanes(dtype) -> int:
    """Return how many elements of `dtype` (a Numba scalar type) one vector holds."""
    return LEVEL.vector_bytes * 8 // (8 if dtype == types.boolean else dtype.bitwidth)
