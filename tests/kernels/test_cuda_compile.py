"""Every kernel compiles for every supported GPU, keeps its variables in registers, and uses tensor cores if it should.

NVRTC and nvdisasm come from PyPI (extra `test`) and need neither a GPU nor a driver.
"""

import pytest

from tests.cuda_emulator.modules import KERNELS, OPERATIONS, modules
from tests.kernels.machine_code import ARCHITECTURES, compiled, disassembler, instructions

pytest.importorskip("cuda.core", reason='NVRTC is not installed: pip install -e ".[test]"')

GENERIC = {  # kernels whose pointers come from memory, so that the compiler does not know what they point to
    *("attention_forward", "relative_attention_forward"),  # AddedScores, in shared memory
    *("adamw", "move_and_sum", "move_parameter", "cast", "sum_squares"),  # a table of parameters
    *("move_momentum", "move_matrix"),  # and of matrices
}
TENSOR_CORES = {  # kernels of 16-bit types that multiply by tensor cores, fed by ldmatrix
    *("attention_forward", "relative_attention_forward", "attention_backward", "linear_mma")
}


def slow_instructions(kernel, names):
    """The loads and stores that go to local memory, or find out the address space when they run."""
    generic = () if kernel.partition("<")[0] in GENERIC else ("LD", "ST", "ATOM")
    return {name for name in names if name.split(".")[0] in ("LDL", "STL", *generic)}


def check(operation, architecture, chosen):
    """Check the instantiations that `chosen` takes of each module of an operation."""
    found = modules(operation)
    assert found, f"{operation} has no _cuda.Source"
    for module in found:
        made = compiled(module.text, chosen(module.instantiations), architecture)
        assert not any(made.local_bytes.values()), made.local_bytes
        for kernel, names in instructions(made).items() if disassembler() is not None else ():
            assert not slow_instructions(kernel, names), kernel
            is_half = "<__half" in kernel or "<__nv_bfloat16" in kernel
            if is_half and kernel.partition("<")[0] in TENSOR_CORES and architecture != "sm_75":
                assert {"HMMA", "LDSM"} <= {name.split(".")[0] for name in names}, kernel


def first_of_each(instantiations):
    """One instantiation of each template, of 16 bits where there is one."""
    first = {}
    for name in sorted(instantiations, key=lambda name: "<__half" not in name):
        first.setdefault(name.partition("<")[0], name)
    return tuple(first.values())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_kernels_compile(operation):
    check(operation, "sm_80", first_of_each)


@pytest.mark.slow  # a minute of compiling for each architecture
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_instantiation_compiles(operation, architecture):
    check(operation, architecture, lambda instantiations: tuple(dict.fromkeys(instantiations)))


def test_spills_are_noticed():
    source = """
        __global__ void __launch_bounds__(1024, 2) greedy(float *data) {
          float held[64];  // of 32 registers
          #pragma unroll
          for (int i = 0; i < 64; ++i) held[i] = data[i * 1024 + threadIdx.x];
          __syncthreads();
          #pragma unroll
          for (int i = 0; i < 64; ++i) data[threadIdx.x * 64 + i] = held[i];
        }
        __global__ void empty() {}"""
    made = compiled(source, ("greedy", "empty"), "sm_80")
    assert made.local_bytes["greedy"] and not made.local_bytes["empty"]
    if disassembler() is not None:
        found = slow_instructions("greedy", instructions(made)["greedy"])
        assert {name.split(".")[0] for name in found} == {"LDL", "STL"}


def test_each_source_has_a_launcher():
    for operation in OPERATIONS:
        sources = {path.name for path in (KERNELS / operation).rglob("*.cu")}
        assert sources == {module.path.name for module in modules(operation)}
