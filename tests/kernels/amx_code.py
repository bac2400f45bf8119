"""Prints the assembly of a kernel on tiles for a CPU with AMX, whatever this machine is; nothing of it is run.

python -m tests.kernels.amx_code operations | bfloat16 | int8 | attention | relative
"""

import os
import sys
from types import SimpleNamespace

import llvmlite.binding as llvm
from numba import types
from numba.core import config

PERMISSION = "bertcore.kernels._numba.amx.permission"
FEATURES = (
    "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16",
    "amx-tile", "amx-int8", "amx-bf16",
)  # fmt: skip


def pretend(level="amx"):
    """Before the kernels are imported: the target and the features of a CPU with AMX, and Linux's permission."""
    os.environ["BERTCORE_ISA"] = level
    config.CPU_NAME, config.CPU_FEATURES = "sapphirerapids", ",".join(f"+{feature}" for feature in FEATURES)
    llvm.get_host_cpu_features = lambda: dict.fromkeys(FEATURES, True)
    sys.modules[PERMISSION] = SimpleNamespace(request_tiles=lambda: None)


def array(dtype, dimensions):
    return types.Array(dtype, dimensions, "C")


def operations():
    from tests.kernels.test_numba_tiles import bfloat16_products

    floats, words = array(types.float32, 1), array(types.uint16, 3)
    return bfloat16_products, (floats, words, words, array(types.float32, 3), types.intp)


def product(run, storage, rounded, sums, levels):
    """A product with a weight of `storage`."""
    from bertcore.kernels._numba import kernel

    @kernel
    def multiply(rounded, weight, output, epilogue, counter, sums):
        run(rounded, weight, output, epilogue, counter, sums)

    panels = array(storage, 3)
    epilogue = types.Tuple((array(types.float32, 1), array(types.float32, 2), types.intp))
    weight = types.Tuple((panels, array(types.float32, 1), array(types.int32, 1))) if levels else panels
    counter = array(types.int64, 1)
    return multiply, (rounded, weight, array(types.float32, 2), epilogue, counter, array(sums, 1))


def bfloat16():
    from bertcore.kernels.linear.cpu.low_precision import run_bfloat16

    return product(run_bfloat16, types.uint16, array(types.uint16, 2), types.float32, levels=False)


def int8():
    from bertcore.kernels.linear.cpu.low_precision import run_int8

    rounded = types.Tuple((array(types.uint8, 2), array(types.int32, 1), array(types.float32, 1)))
    return product(run_int8, types.int8, rounded, types.int32, levels=True)


def attention(relative=False):
    from numba import from_dtype

    from bertcore.kernels._numba import kernel
    from bertcore.kernels._numba.steps import BFLOAT16, FLOAT
    from bertcore.kernels.attention.cpu import FORWARD, RELATIVE
    from bertcore.kernels.attention.cpu.forward import run

    marker = RELATIVE if relative else None

    @kernel
    def attend(steps, counter):
        run(steps[0], counter, FLOAT, BFLOAT16, marker, 0)

    return attend, (array(from_dtype(FORWARD), 1), array(types.int64, 1))


def relative():
    return attention(relative=True)


KERNELS = {
    "operations": operations, "bfloat16": bfloat16, "int8": int8, "attention": attention, "relative": relative,
}  # fmt: skip

if __name__ == "__main__":
    pretend()
    compiled, signature = KERNELS[sys.argv[1]]()
    compiled.compile(signature)
    print(compiled.inspect_asm(compiled.signatures[0]))
