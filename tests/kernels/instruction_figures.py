"""How many instructions the kernels are, read from their machine code (NVRTC 13.0); no speed.

`python -m tests.kernels.instruction_figures` prints what is read now: write it down here where it fell.
"""

from typing import NamedTuple

from tests.cuda_emulator.modules import modules
from tests.kernels.machine_code import ARCHITECTURES, machine_code


class Figure(NamedTuple):
    """How many instructions are in the innermost loop that has one called `loop`; without `loop`, in the kernel."""

    operation: str
    kernel: str
    loop: str
    counts: tuple  # one for each of ARCHITECTURES

    def read(self, architecture):
        """The number as the compiler has it now."""
        module = next(module for module in modules(self.operation) if self.kernel in module.instantiations)
        code = machine_code(module, (self.kernel,), architecture)[self.kernel]
        return (code.loop(self.loop) if self.loop else code).count()


FIGURES = (
    # a step of 32 columns: 64 and 32 products of fragments from sm_80 on
    Figure("linear", "linear_mma<__half, 128, 128>", "HMMA", (304, 192, 288, 236, 229)),
    Figure("linear", "linear_mma<__half, 64, 64>", "HMMA", (199, 167, 166, 145, 139)),
)


def main():
    for figure in FIGURES:
        counts = tuple(map(figure.read, ARCHITECTURES))
        print(figure.operation, figure.kernel, counts, "" if counts == figure.counts else f"was {figure.counts}")


if __name__ == "__main__":
    main()
