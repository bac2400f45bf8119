"""Whether what the GPU computes is right: every kernel against its definition, every family against NumPy."""

from collections.abc import Iterator
from itertools import cycle, product
from typing import Any, NamedTuple

import numpy as np

from bertcore import kernels, use_backend
from bertcore.models.auto import AutoModel
from tests.kernels.arrays import DTYPES
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, assert_conforms, on_disk
from tests.tiny_families import drawn_anew, runnable, tiny_config

LAYOUTS = ("contiguous", "slice")  # in turns
TOLERANCE = 1e-4  # of a float32 model's output, relative to its largest: MobileBERT makes 3e-5 of the kernels' 2e-6
LENGTHS = (7, 1, 4)


class Check(NamedTuple):
    """What was checked in how many cases, and what is wrong; "" if nothing is."""

    kind: str
    name: str
    dtype: str
    cases: int
    note: str

    @property
    def status(self) -> str:
        return "wrong" if self.note else "ok"


def kernel_checks(every: int = 1) -> Iterator[Check]:
    """Each operation in each dtype over the tests' table of cases, or over one case in `every`."""
    for operation, dtype in product(on_disk("cupy"), DTYPES_OF["cupy"]):
        cases = list(CASES[operation].values())[::every]
        laid_out = zip(cases, cycle(LAYOUTS), strict=False)
        wrong = [note for case, layout in laid_out if (note := _wrong(case, operation, dtype, layout))]
        note = f"{len(wrong)} wrong; {wrong[0]}" if wrong else ""
        yield Check("kernel", operation, dtype, len(cases), note)


def _wrong(case: Any, operation: str, dtype: str, layout: str) -> str:
    try:
        assert_conforms(case, operation, "cupy", DTYPES[dtype], [layout])
    except Exception as error:  # one broken kernel must not hide what is true of the others
        return f"{case.name}, {layout}: {_line(error)}"
    return ""


def model_checks(families: list[str] | None = None) -> Iterator[Check]:
    """A small model of each family on cupy and on numpy; `families` are presets, by default one of each."""
    for name in families or runnable():
        try:
            error = _model_error(name)
            note = "" if error < TOLERANCE else f"off by {error:.2g} of the scale (allowed {TOLERANCE:.0e})"
        except Exception as error:  # as above
            note = _line(error)
        yield Check("model", name, "float32", 1, note)


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


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
