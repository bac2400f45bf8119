"""The conformance cases through the public functions over CuPy's arrays, with the CUDA kernels running in the emulator.

The GPU's turn is in conformance/test_conformance.py. Here each case runs in one of the memory layouts in turns.
"""

from itertools import cycle, product

import pytest

from tests.cuda_emulator.driverless import driverless
from tests.kernels.arrays import DTYPES, LAYOUTS
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, assert_conforms, on_disk, results
from tests.kernels.cuda_support import batch_invariance


def marks_of(operation, dtype):
    """Both half precisions share their code; attention has them in test_cuda_attention.py."""
    is_slow = dtype == "float16" or (operation, dtype) == ("attention", "bfloat16")
    return [pytest.mark.slow] if is_slow else []


@pytest.mark.parametrize(
    "operation, dtype",
    [pytest.param(*pair, marks=marks_of(*pair)) for pair in product(on_disk("cupy"), DTYPES_OF["cupy"])],
)
def test_without_a_driver(operation, dtype):
    with driverless():
        for case, layout in zip(CASES[operation].values(), cycle(LAYOUTS), strict=False):
            assert_conforms(case, operation, "cupy", DTYPES[dtype], [layout])


@pytest.mark.parametrize("dtype", [pytest.param(it, marks=marks_of("linear", it)) for it in DTYPES_OF["cupy"]])
def test_batch_invariant_products(dtype):
    with driverless() as gpu, batch_invariance(True):
        for case, layout in zip(CASES["linear"].values(), cycle(LAYOUTS), strict=False):
            assert_conforms(case, "linear", "cupy", DTYPES[dtype], [layout])
    assert any(launch.kernel.startswith("linear") for launch in gpu.launches)


@pytest.mark.parametrize("operation", [name for name in on_disk("cupy") if name != "attention"])
def test_the_order_of_warps_changes_no_bit(operation):
    """A change would be a race: our kernels use no floating-point atomics. Attention: test_cuda_attention.py."""
    found = {}
    for schedule in ("forward", "backward"):
        with driverless(schedule), batch_invariance(True):  # products by our kernel
            found[schedule] = [
                results(case, operation, "cupy", DTYPES["float32"], DTYPES["float32"], "contiguous")
                for case in CASES[operation].values()
            ]
    for case, one, other in zip(CASES[operation], *found.values(), strict=True):
        for name, array in one.items():
            assert array is other[name] or array.tobytes() == other[name].tobytes(), f"{case}: {name}"


def races_of(operation, dtype):
    """All cases; of attention's, which take minutes, each half precision has every other one."""
    cases, halves = list(CASES[operation].values()), ("float16", "bfloat16")
    return cases[halves.index(dtype) :: 2] if operation == "attention" and dtype in halves else cases


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES_OF["cupy"])
@pytest.mark.parametrize("operation", on_disk("cupy"))
def test_no_races(operation, dtype):
    with driverless(races=True), batch_invariance(True):  # products by our kernel
        for case in races_of(operation, dtype):
            results(case, operation, "cupy", DTYPES[dtype], DTYPES[dtype], "contiguous")
