"""The whole model line on the CUDA kernels, launched by the same code as on a GPU, in the CPU emulator."""

from pathlib import Path

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, use_backend
from bertcore.kernels import _cuda
from tests import cuda_emulator

GOLDEN = Path(__file__).parents[1] / "goldens" / "three_heads_of_13"
# Relative to the scale of the outputs; half precision rounds every activation on the way through two layers.
TOLERANCE = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}


@pytest.fixture
def emulated_gpu():
    reason = cuda_emulator.unavailable_reason()
    if reason is not None:
        pytest.skip(f"the CUDA emulator cannot be built: {reason}")
    with _cuda.use_runtime(cuda_emulator.Emulator(cuda_emulator.SCHEDULES[0])) as emulator, use_backend("cupy"):
        yield emulator


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_masked_lm(emulated_gpu, dtype):
    with np.load(GOLDEN / "io.npz") as truth:
        batch = {key: truth[key] for key in ("input_ids", "attention_mask", "token_type_ids")}
        out = AutoModelForMaskedLM.from_pretrained(GOLDEN, dtype=dtype)(**batch)
        error = np.abs(out.logits.astype(np.float64) - truth["logits"]).max() / np.abs(truth["logits"]).max()
    assert out.logits.dtype.name == dtype
    assert error < TOLERANCE[dtype]
    launched = " ".join(launch[0] for launch in emulated_gpu.launches)
    for operation in ("linear", "attention", "layer_norm", "embedding"):
        assert operation in launched
