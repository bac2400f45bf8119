"""Whether what the GPU computes is right: every kernel against its definition, every family against NumPy."""

from collections.abc import Iterator
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np

from bench.gpu.products import batch_invariant
from bench.gpu.timings import Step
from bertcore import kernels, use_backend
from bertcore.models.auto import AutoModel
from tests.kernels.arrays import DTYPES
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, assert_conforms, on_disk
from tests.tiny_families import drawn_anew, runnable, tiny_config

LAYOUTS = ("contiguous", "slice")  # in turns
TOLERANCE = 1e-4  # of a float32 model's output, relative to its largest: MobileBERT makes 3e-5 of the kernels' 2e-6
LENGTHS = (7, 1, 4)
BATCH_INVARIANT = "linear, batch-invariant"


def steps(every: int = 1, families: list[str] | None = None) -> Iterator[Step]:
    """Each operation in each dtype over the tests' table of cases, or over one case in `every`; a model of each family.

    `families` are presets, by default one of each.
    """
    for operation, dtype in product(on_disk("cupy"), DTYPES_OF["cupy"]):
        yield Step("kernel", operation, dtype, partial(_check_kernel, operation, dtype, every))
    for dtype in DTYPES_OF["cupy"]:
        yield Step("kernel", BATCH_INVARIANT, dtype, partial(_check_batch_invariant, dtype, every))
    for name in families or runnable():
        yield Step("family", name, "float32", partial(_check_family, name))


def _check_kernel(operation: str, dtype: str, every: int) -> Iterator[dict[str, Any]]:
    cases = list(CASES[operation].values())[::every]
    laid_out = zip(cases, cycle(LAYOUTS), strict=False)
    wrong = [note for case, layout in laid_out if (note := _wrong(case, operation, dtype, layout))]
    yield {"cases": len(cases)} | ({"status": "wrong", "note": f"{len(wrong)} wrong; {wrong[0]}"} if wrong else {})


def _check_batch_invariant(dtype: str, every: int) -> Iterator[dict[str, Any]]:
    with batch_invariant():
        yield from _check_kernel("linear", dtype, every)


def _wrong(case: Any, operation: str, dtype: str, layout: str) -> str:
    try:
        assert_conforms(case, operation, "cupy", DTYPES[dtype], [layout])
    except Exception as error:  # one broken kernel must not hide what is true of the others
        return f"{case.name}, {layout}: {line(error)}"
    return ""


def _check_family(name: str) -> Iterator[dict[str, Any]]:
    """A small model on cupy and on numpy."""
    error = _model_error(name)
    is_right = error < TOLERANCE
    note = "" if is_right else f"off by {error:.2g} of the scale (allowed {TOLERANCE:.0e})"
    yield {"cases": 1, "status": "ok" if is_right else "wrong", "note": note}


def _model_error(name: str) -> float:
    model = drawn_anew(AutoModel.from_config(tiny_config(name)))
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(int)
    ids = np.random.default_rng(1).integers(2, model.spec.vocab_size, mask.shape)
    with use_backend("numpy"):
        expected = model(input_ids=ids, attention_mask=mask)[0]
    with use_backend("cupy"):
        found = model(input_ids=ids, attention_mask=mask)[0]
    assert kernels.array_module(found) is not np, "the result is not on the GPU"
    return float(np.abs(found.get() - expected).max() / np.abs(expected).max())


def line(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
