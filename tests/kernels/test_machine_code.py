"""The instructions that kernels are made of: tensor cores, 16-byte loads, and how many there are."""

import pytest

from tests.cuda_emulator.modules import modules
from tests.kernels.instruction_figures import FIGURES, MUST_HAVE, read_kernel
from tests.kernels.machine_code import ARCHITECTURES, compiled, disassembler, machine_code, read

if disassembler() is None:
    pytest.skip('nvdisasm is not installed: pip install -e ".[test]"', allow_module_level=True)
pytest.importorskip("cuda.core", reason='NVRTC is not installed: pip install -e ".[test]"')

ROOM = 1.03  # a few more instructions are the compiler's


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.kernel)
def test_no_more_instructions_than_written_down(figure, architecture):
    written = figure.counts[ARCHITECTURES.index(architecture)]
    assert figure.read(architecture) <= ROOM * written, "more instructions: is it worth them?"


@pytest.mark.parametrize(
    "architecture", [pytest.param(a, marks=() if a == "sm_90" else pytest.mark.slow) for a in ARCHITECTURES[1:]]
)
@pytest.mark.parametrize("operation, kernel", MUST_HAVE)
def test_what_must_be_there(operation, kernel, architecture):
    code = read_kernel(operation, kernel, architecture)
    for parts in MUST_HAVE[operation, kernel]:
        assert code.count(*parts), f"no {'.'.join(parts)}"
    assert not code.count("LD"), "loads from addresses of an unknown kind"


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("operation, kernel", [("layer_norm", "norm_rows"), ("softmax", "softmax_backward_rows")])
def test_aligned_rows_are_read_and_written_in_16_bytes(operation, kernel, architecture):
    (module,) = modules(operation)
    kernels = [name for name in module.instantiations if name.startswith(f"{kernel}<")]
    for name, code in machine_code(module, kernels, architecture).items():
        for what in ("LDG", "STG"):
            assert 0 < code.count(what) == code.count(what, "128"), f"{name}: {what} of less than 16 bytes"


# ---- the reader itself ----------------------------------------------------------------------------------------------

SOURCE = """
    struct Held { const float *there; };
    __global__ void copies(const float4 *__restrict__ from, float4 *to) { to[threadIdx.x] = from[threadIdx.x]; }
    __global__ void chases(float *to, int n) {
      __shared__ Held held[64];
      held[threadIdx.x].there = to + n;
      __syncthreads();
      to[threadIdx.x] = *(threadIdx.x & 1 ? (volatile float *)held : (volatile float *)to);
    }
    __global__ void repeats(float *to, int n) {
      float sum = 0.f;
      #pragma unroll 1
      for (int i = 0; i < n; ++i) sum = sqrtf(sum + to[i]);
      to[0] = sum;
    }"""


def test_reading_machine_code():
    codes = read(compiled(SOURCE, ("copies", "chases", "repeats"), "sm_80"))
    copies, chases, repeats = codes.values()
    assert copies.count("LDG", "128") == copies.count("LDG") == copies.count("STG", "128") == 1
    assert not copies.loops() and not copies.shared_bytes and 0 < copies.count() < 32
    assert chases.count("LD") == 1 and chases.shared_bytes == 512
    inner = repeats.loop("LDG")
    assert inner.count("LDG") == 1 and not inner.count("STG") and repeats.count("STG") == 1
    assert inner.count() < repeats.count()
    assert all(0 < code.registers < 64 for code in codes.values())
