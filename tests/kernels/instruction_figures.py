"""How many instructions the kernels are, read from their machine code (NVRTC 13.0); no speed.

`python -m tests.kernels.instruction_figures` prints what is read now: write it down here where it fell.
"""

import functools
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
        code = read_kernel(self.operation, self.kernel, architecture)
        return (code.loop(self.loop) if self.loop else code).count()


FIGURES = (
    # a row of up to 768 elements, with all that may be absent
    Figure("layer_norm", "norm_rows<__half, 32, 24>", "LDG", (416, 392, 387, 378, 373)),
    Figure("layer_norm", "norm_rows<__nv_bfloat16, 32, 24>", "LDG", (698, 427, 422, 388, 380)),
    Figure("layer_norm", "norm_backward_rows<__half, 32, 24>", "LDG", (609, 585, 580, 573, 563)),
    # with dropout; what draws three vectors' bits is a loop in it
    Figure("dropout_layer_norm", "dropout_norm_rows<__half, 32, 24>", "LDG", (671, 535, 586, 544, 527)),
    Figure("dropout_layer_norm", "dropout_norm_backward_rows<__half, 32, 24>", "LDG", (924, 831, 961, 874, 872)),
    Figure("softmax", "softmax_rows<__half, 32, 24>", "LDG", (254, 228, 223, 205, 213)),
    Figure("softmax", "softmax_backward_rows<__half, 32, 24>", "LDG", (208, 183, 179, 178, 169)),
    # 16 elements of a thread; half of them for the ends of a row
    Figure("cross_entropy", "cross_entropy_rows<__half, 512, int>", "LDG", (237, 219, 220, 229, 238)),
    Figure("cross_entropy", "cross_entropy_backward_rows<__half, 512, int>", "LDG", (417, 394, 393, 481, 478)),
    # a vector or two of a thread, with every activation that there is
    Figure("activation", "pointwise<__half, true>", "", (1265, 1224, 1233, 2019, 1993)),
    Figure("activation", "activation_backward<__half, true>", "", (858, 835, 847, 844, 831)),
    Figure("gated_activation", "gated_activation<__half, true>", "", (452, 445, 450, 448, 444)),
    Figure("gated_activation", "gated_activation_backward<__half, true>", "", (1053, 1042, 1050, 1031, 1030)),
    # a tile of 16 queries and 64 keys of a warp, 64 products of fragments: nothing, keys, distances, all on the scores
    *(
        Figure("attention", f"attention_forward<__half, 64, 1, {added}>", "M88", counts)
        for added, counts in (
            ("NOTHING", (70, 638, 640, 628, 638)),
            ("BY_KEY", (70, 745, 751, 739, 749)),
            ("BY_DISTANCE", (70, 701, 702, 733, 755)),
            ("EVERYTHING", (70, 1658, 1657, 1667, 1683)),
        )
    ),
    # of 16 keys and 32 queries, 64 products of fragments, and of 16 queries and 32 keys, 48; with dropout
    Figure("attention", "attention_backward<__half, 64, KEYS_AND_VALUES, false>", "M88", (45, 902, 933, 736, 733)),
    Figure("attention", "attention_backward<__half, 64, QUERIES, false>", "M88", (33, 788, 811, 642, 638)),
    # a step of 32 columns: 64 and 32 products of fragments from sm_80 on
    Figure("linear", "linear_mma<__half, 128, 128>", "HMMA", (238, 157, 206, 230, 223)),
    Figure("linear", "linear_mma<__half, 64, 64>", "HMMA", (178, 135, 135, 142, 136)),
)

# The instructions that a kernel must have, by the parts of their names.
TENSOR_CORES = (("HMMA",), ("LDSM",), ("LDGSTS", "128"), ("STG", "128"))  # with cp.async, hence from sm_80 on
MUST_HAVE = {
    ("attention", "attention_forward<__half, 64, 1, EVERYTHING>"): TENSOR_CORES,
    ("attention", "relative_attention_forward<__half, 64, NOTHING>"): TENSOR_CORES,
    ("attention", "attention_backward<__half, 64, KEYS_AND_VALUES, false>"): TENSOR_CORES,
    ("linear", "linear_mma<__half, 128, 128>"): TENSOR_CORES,
    ("linear", "linear_mma<__nv_bfloat16, 64, 64>"): TENSOR_CORES,
}


def read_kernel(operation, kernel, architecture):
    """The machine code of a kernel that is named above."""
    module = next(module for module in modules(operation) if kernel in module.instantiations)
    return _read_module(module, architecture)[kernel]


@functools.cache
def _read_module(module, architecture):
    """All of a module's kernels that are named above, of one compilation: each would parse CUDA's headers anew."""
    named = [figure.kernel for figure in FIGURES] + [kernel for _, kernel in MUST_HAVE]
    return machine_code(module, dict.fromkeys(name for name in named if name in module.instantiations), architecture)


def main():
    for figure in FIGURES:
        counts = tuple(map(figure.read, ARCHITECTURES))
        print(figure.operation, figure.kernel, counts, "" if counts == figure.counts else f"was {figure.counts}")


if __name__ == "__main__":
    main()
