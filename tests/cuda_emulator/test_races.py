"""The race check finds what no barrier orders, names both lines, and says nothing about what is right."""

import re

import numpy as np
import pytest

from bertcore.kernels import _cuda
from bertcore.kernels.layer_norm import cuda as layer_norm_cuda
from bertcore.kernels.linear import cuda as linear_cuda
from tests.cuda_emulator import Emulator, EmulatorError
from tests.kernels.cuda_support import batch_invariance
from tests.refusals import refuses

BARRIER = "which thread .* (wrote|read), with no barrier between"
COPY = "to which a cp.async of thread .* is under way"
CASES = {  # what the message says after "this thread reads", or "writes": the schedule decides who comes second
    "READ_TOO_EARLY": f"byte .* of shared array 'held', {BARRIER}",
    "WRITE_TOO_EARLY": f"byte .* of shared array 'held', {BARRIER}",
    "TWO_WRITES": f"byte .* of shared array 'held', {BARRIER}",
    "PARTIAL": f"byte 4 of shared array 'held', {BARRIER}",
    "WITHIN_A_WARP": f"byte .* of shared array 'held', {BARRIER}",
    "BESIDE_A_COPY": f"byte .* of shared array 'copied', {COPY}",
    "COPY_OF_ANOTHER": f"byte .* of shared array 'copied', ({BARRIER}|{COPY})",
    "ATOMIC_AND_PLAIN": f"byte 0 of shared array 'held', {BARRIER}",
    "IN_GLOBAL_MEMORY": "byte 252 of argument 1, which block [01] of the grid wrote",
}
KERNELS = _cuda.Source(
    __file__, "planted.cu", tuple(f"race<{case}, {wrong}>" for case in CASES for wrong in ("true", "false"))
)


def run(case, is_wrong, schedule):
    arguments = np.ones((64, 4), np.float32), np.zeros(128, np.float32)
    blocks = 2 if case == "IN_GLOBAL_MEMORY" else 1
    with _cuda.use_runtime(Emulator(schedule, races=True)):
        KERNELS.launch(f"race<{case}, {str(is_wrong).lower()}>", (blocks,), (64,), arguments)


@pytest.mark.parametrize("schedule", ["round_robin", "backward", "random"])
@pytest.mark.parametrize("case", CASES)
def test_races_are_found(case, schedule):
    with pytest.raises(EmulatorError, match=f"race: this thread (reads|writes) {CASES[case]}") as caught:
        run(case, True, schedule)
    source = KERNELS.path.read_text().splitlines()
    lines = [source[int(line) - 1] for line in re.findall(r"planted.cu:(\d+)\)", str(caught.value))]
    assert len(lines) == 2 and all(re.search("held|copied|output", line) for line in lines), lines
    run(case, False, schedule)


def layer_norm():
    layer_norm_cuda.layer_norm(np.ones((3, 3000), np.float32), None, None, 1e-5, None)


def linear():
    with batch_invariance(True):
        linear_cuda.linear(np.ones((70, 160), np.float16), np.ones((72, 160), np.float16), None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize("run, module, begin, barriers", [
    (layer_norm, layer_norm_cuda, "block_reduce(", ["__syncthreads();"] * 2),
    (
        *(linear, linear_cuda, "linear.cu"),
        ["__syncwarp();", "__syncwarp();", "cp_async_wait<S::STAGES - 2>();", "__syncthreads();"],
    ),
], ids=["layer_norm", "linear"])  # fmt: skip
def test_each_barrier_of_a_real_kernel_is_missed(run, module, begin, barriers, monkeypatch, tmp_path):
    text = module.KERNELS.text
    with _cuda.use_runtime(Emulator()) as emulator:
        run()
    kernels = {launch.kernel for launch in emulator.launches}
    assert len(kernels) == 1
    place = text.index(begin)
    for number, barrier in enumerate([None, *barriers]):
        if barrier is not None:
            place = text.index(barrier, place) + len(barrier)
        without = text if barrier is None else text[: place - len(barrier)] + text[place:]
        (tmp_path / f"{number}.cu").write_text(without)
        monkeypatch.setattr(module, "KERNELS", _cuda.Source(tmp_path / "cuda.py", f"{number}.cu", kernels))
        with _cuda.use_runtime(Emulator(races=True)):
            if barrier is None:
                run()
            else:
                refuses(EmulatorError, "race: ", run)
