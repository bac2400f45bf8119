"""Every kernel that can be launched compiles for every GPU generation we support, and keeps its variables in registers.

NVRTC and nvdisasm come from PyPI (extra `test`) and need neither a GPU nor a driver.
"""

import pytest

from tests.cuda_emulator.modules import KERNELS, OPERATIONS, modules
from tests.kernels.machine_code import ARCHITECTURES, compiled, disassembler, read

GENERIC = {  # kernels whose pointers come from memory, so that the compiler does not know what they point to
    *("attention_forward", "relative_attention_forward"),  # AddedScores, in shared memory
    *("adamw", "move_and_sum", "move_parameter", "cast", "sum_squares"),  # a table of parameters
    *("move_momentum", "move_matrix"),  # and of matrices
}
pytest.importorskip("cuda.core", reason='NVRTC is not installed: pip install -e ".[test]"')


def slow_bytes(made):
    """{kernel: bytes it keeps in memory instead of registers}: spills, and arrays indexed at run time."""
    return {kernel: uses["stack_bytes"] for kernel, uses in made.resources.items() if uses["stack_bytes"]}


def slow_instructions(made):
    """{kernel: its loads and stores that go to local memory, or find out the address space when they run}."""
    found = {}
    for kernel, code in read(made).items():
        generic = () if kernel.partition("<")[0] in GENERIC else ("LD", "ST", "ATOM")
        slow = {each.name for each in code if each.name.split(".")[0] in ("LDL", "STL", *generic)}
        found |= {kernel: slow} if slow else {}
    return found


def check(operation, architecture, chosen):
    """The instantiations that `chosen` takes of each module compile, and keep their variables in registers."""
    found = modules(operation)
    assert found, f"{operation}/cuda.py has no _cuda.Module"
    for module in found:
        made = compiled(module.text, chosen(module.instantiations), architecture)
        assert not slow_bytes(made), "memory instead of registers"
        if disassembler() is not None:
            assert not slow_instructions(made), "local memory or generic addresses"


def first_of_each(instantiations):
    """One instantiation of each template."""
    first = {}
    for name in instantiations:
        first.setdefault(name.partition("<")[0], name)
    return tuple(first.values())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_kernels_compile(operation):
    check(operation, "sm_80", first_of_each)


@pytest.mark.slow  # a minute of compiling for each architecture
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_instantiation_compiles_without_spills(operation, architecture):
    check(operation, architecture, lambda instantiations: tuple(dict.fromkeys(instantiations)))


def test_spills_are_noticed():
    assert not slow_bytes(compiled("__global__ void empty() {}", ("empty",), "sm_80"))
    source = """
        __global__ void __launch_bounds__(1024, 2) greedy(float *data) {
          float held[64];  // of 32 registers
          #pragma unroll
          for (int i = 0; i < 64; ++i) held[i] = data[i * 1024 + threadIdx.x];
          __syncthreads();
          #pragma unroll
          for (int i = 0; i < 64; ++i) data[threadIdx.x * 64 + i] = held[i];
        }"""
    made = compiled(source, ("greedy",), "sm_80")
    assert slow_bytes(made)["greedy"]
    if disassembler() is not None:
        assert {name.split(".")[0] for name in slow_instructions(made)["greedy"]} == {"LDL", "STL"}


def test_each_source_has_a_launcher():
    """No .cu file is left out of the tests above."""
    for operation in OPERATIONS:
        sources = {path.name for path in (KERNELS / operation).rglob("*.cu")}
        assert sources == {module.path.name for module in modules(operation)}
