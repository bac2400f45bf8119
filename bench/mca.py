"""ARM micro-kernels in LLVM's CPU models: cycles of the inner loops and of only their multiplications.

    python -m bench.mca [--mca llvm-mca-19]

Compiles each tile for a CPU, on any machine, and prints a table of cycles that llvm-mca (LLVM 17 or later) computes. It
assumes that loads hit the first cache level.
"""

import argparse
import json
import re
import subprocess
import sys

# LLVM's name of the CPU, a level that it supports, the elements of both sides, and the multiply instruction.
LOOPS = [
    ("neoverse-n1", "neon_dotprod", "float32", "fmla"),
    ("neoverse-n1", "neon_dotprod", "int8", "sdot"),
    ("neoverse-v2", "neon_i8mm", "float32", "fmla"),
    ("neoverse-v2", "neon_dotprod", "int8", "sdot"),
    ("neoverse-v2", "neon_i8mm", "int8", "smmla"),
    ("neoverse-v2", "neon_i8mm", "bfloat16", "bfmmla"),
    ("apple-m1", "neon_dotprod", "float32", "fmla"),
    ("apple-m1", "neon_dotprod", "int8", "sdot"),
]
# Multiply-adds per instruction.
MULTIPLY_ADDS = {"fmla": 4, "sdot": 16, "smmla": 32, "bfmmla": 16}
ITERATIONS = 200


def assembly(cpu: str, level: str, elements: str) -> str:
    """Return the assembly of the largest tile for prepared weights; to be called once in a process."""
    from tests.kernels import arm_code

    arm_code.pretend(level, cpu)
    from numba import types

    from bertcore.kernels._numba import LEVEL, kernel
    from bertcore.kernels._numba.products.tile import WEIGHT_PANEL_VECTORS, WEIGHT_TILE_ROWS, make_fetching_tile
    from bertcore.kernels._numba.simd import pointer

    are_packed = elements != "float32" and LEVEL.int8_matrix != ""
    tile, last = make_fetching_tile(WEIGHT_TILE_ROWS, WEIGHT_PANEL_VECTORS, are_packed), WEIGHT_TILE_ROWS - 1
    width = WEIGHT_PANEL_VECTORS * 4

    @kernel
    def multiply(a, a_row, b, sums, depth, ahead, step):
        x, panel, target = pointer(a, 0), pointer(b, 0), pointer(sums, 0)
        tile(x, a_row, 1, last, panel, width, depth, target, width, True, ahead, step)

    floats = types.float32, types.float32, types.float32
    bfloat16 = types.uint16, types.uint16, types.float32
    dtypes = {"float32": floats, "bfloat16": bfloat16, "int8": (types.uint8, types.int8, types.int32)}[elements]
    a, b, sums = (types.Array(dtype, 1, "C") for dtype in dtypes)
    multiply.compile((a, types.intp, b, sums, types.intp, types.intp, types.intp))
    return multiply.inspect_asm(multiply.signatures[0])


def inner_loop(code: str, instruction: str) -> list[str]:
    """Return the instructions of the single-block loop in which one instruction is most frequent."""
    best: list[str] = []
    for found in re.finditer(r"^(\.LBB\w+):[^\n]*\n((?:\t[^\n]*\n)*?)\tb\.\w+\t\1\n", code, re.MULTILINE):
        lines = [line for line in found[2].splitlines() if not line.startswith("\t.")]
        best = max(best, lines, key=lambda block: count_of(block, instruction))
    return best


def count_of(block: list[str], instruction: str) -> int:
    return sum(line.split()[0] == instruction for line in block)


def cycles(mca: str, cpu: str, block: list[str]) -> float:
    """Return the cycles of an iteration of a loop according to llvm-mca."""
    command = [mca, "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+dotprod,+i8mm,+bf16", f"-iterations={ITERATIONS}"]
    result = subprocess.run(command, input="\n".join(block) + "\n", capture_output=True, text=True, check=True)
    return int(re.search(r"Total Cycles:\s+(\d+)", result.stdout)[1]) / ITERATIONS


def alone(block: list[str], instruction: str) -> list[str]:
    """Return only the multiplications of a loop, with operands that do not depend on loads."""
    own = [line for line in block if line.split()[0] == instruction]
    free = sorted({*range(32)} - {int(re.search(r"v(\d+)", line)[1]) for line in own})
    return [re.sub(r",\s*v\d+", f", v{free[0]}", line) for line in own]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mca", default="llvm-mca-19")
    parser.add_argument("--assembly", nargs=3, metavar=("CPU", "LEVEL", "ELEMENTS"), help="print a tile's and end")
    parser.add_argument("--loops", action="store_true", help="also print the loops")
    arguments = parser.parse_args()
    if arguments.assembly:
        print(json.dumps(assembly(*arguments.assembly)))
        return
    print(
        "| CPU | product | multiply-adds a cycle | multiplications alone | of that |\n| --- | --- | --- | --- | --- |"
    )
    for cpu, level, elements, instruction in LOOPS:
        command = [sys.executable, "-m", "bench.mca", "--assembly", cpu, level, elements]
        block = inner_loop(json.loads(subprocess.run(command, capture_output=True, check=True).stdout), instruction)
        count = count_of(block, instruction) * MULTIPLY_ADDS[instruction]
        rate, limit = (count / cycles(arguments.mca, cpu, it) for it in (block, alone(block, instruction)))
        print(f"| {cpu} | {elements}, {instruction} | {rate:.1f} | {limit:.1f} | {rate / limit:.0%} |", flush=True)
        if arguments.loops:
            print("\n".join(block))


if __name__ == "__main__":
    main()
