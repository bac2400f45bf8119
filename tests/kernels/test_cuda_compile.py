"""Every kernel that can be launched compiles for every GPU generation we support, and keeps its variables in registers.

NVRTC comes from PyPI (extra `test`) and needs neither a GPU nor a driver. What was compiled once is remembered, by
content.
"""

import hashlib
import importlib.metadata
import io
import re
from pathlib import Path

import pytest

from bertcore.kernels import _cuda
from tests.cuda_emulator.build import cuda_include_folders
from tests.cuda_emulator.modules import KERNELS, OPERATIONS, modules

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
CACHE = Path(__file__).parents[2] / "build" / "cuda_compile"
COMPILER = pytest.importorskip("cuda.core", reason='NVRTC is not installed: pip install -e ".[test]"')


def compile_log(text, instantiations, architecture):
    """What ptxas says about each kernel; raises with NVRTC's message when something does not compile."""
    version = importlib.metadata.version("nvidia-cuda-nvrtc")
    content = "\0".join((text, *instantiations, architecture, *_cuda.OPTIONS, version))
    cached = CACHE / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.log"
    if cached.exists():
        return cached.read_text()
    options = COMPILER.ProgramOptions(
        std="c++17",
        arch=architecture,
        ftz=True,  # as CuPy has it
        include_path=[str(folder) for folder in cuda_include_folders()],
        ptxas_options=["-v"],
    )
    log = io.StringIO()
    COMPILER.Program(text, "c++", options).compile("cubin", name_expressions=tuple(instantiations), logs=log)
    CACHE.mkdir(parents=True, exist_ok=True)
    said = log.getvalue().rstrip("\0")
    cached.write_text(said)
    return said


ENTRY = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?"
    r"(?P<frame>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads",
    re.DOTALL,
)


def slow_bytes(log):
    """{mangled kernel name: bytes it keeps in memory instead of registers}: spills, and arrays indexed at run time."""
    return {entry["kernel"]: sum(map(int, entry.group("frame", "stores", "loads"))) for entry in ENTRY.finditer(log)}


def check(operation, architecture, chosen):
    """The instantiations that `chosen` takes of each module compile, and keep their variables in registers."""
    found = modules(operation)
    assert found, f"{operation}/cuda.py has no _cuda.Module"
    for module in found:
        instantiations = chosen(module.instantiations)
        slow = slow_bytes(compile_log(module.text, instantiations, architecture))
        assert len(slow) == len(instantiations), "not every instantiation is in the log"
        slow = {kernel: size for kernel, size in slow.items() if size}
        assert not slow, f"bytes in memory instead of registers: {slow}"


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
    assert not any(slow_bytes(compile_log("__global__ void empty() {}", ("empty",), "sm_80")).values())
    source = """
        __global__ void __launch_bounds__(1024, 2) greedy(float *data) {
          float held[64];  // of 32 registers
          #pragma unroll
          for (int i = 0; i < 64; ++i) held[i] = data[i * 1024 + threadIdx.x];
          __syncthreads();
          #pragma unroll
          for (int i = 0; i < 64; ++i) data[threadIdx.x * 64 + i] = held[i];
        }"""
    assert any(slow_bytes(compile_log(source, ("greedy",), "sm_80")).values())


def test_each_source_has_a_launcher():
    """No .cu file is left out of the tests above."""
    for operation in OPERATIONS:
        sources = {path.name for path in (KERNELS / operation).glob("*.cu")}
        assert sources == {module.path.name for module in modules(operation)}
