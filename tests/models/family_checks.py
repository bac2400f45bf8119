"""Fast checks of every family without torch: backends and dtypes agree, files of other spellings load."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from bertcore import kernels, use_backend, value_and_grad
from bertcore.checkpoint import save_checkpoint
from bertcore.kernels import _cuda
from bertcore.kernels.program import Recordings
from bertcore.models.model import Model
from tests import cuda_emulator
from tests.refusals import refuses
from tests.slopes import assert_slope
from tests.tiny_families import drawn_anew
from tests.tolerances import assert_same_arrays

# Of the outputs' scale. Low precision rounds every weight and input, to 8 bits or 1 in 254 of a row's largest.
TOLERANCE = {"numba": 5e-6, "cupy": 1e-5, "bfloat16": 4e-2, "int8": 0.12}

LOW_PRECISION = ("bfloat16", "int8")
# Of families whose attention has tables of relative positions, for which low precision compiles for half a minute.
dtypes_with_tables = pytest.mark.parametrize("dtypes", [(), pytest.param(LOW_PRECISION, marks=pytest.mark.slow)])


def check_backends(
    make: Callable[..., Model],
    lengths: tuple[int, ...] = (7, 1, 4),
    dtypes: Iterable[str] = LOW_PRECISION,
    **inputs: Any,
) -> None:
    """The logits of a small model on Numba and on the emulated GPU, and in `dtypes`, are those of the reference.

    `make` is the model's from_config, with the config, and takes a dtype.
    """
    model = drawn_anew(make())
    rng = np.random.default_rng(1)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(int)
    inputs |= {"input_ids": rng.integers(2, model.spec.vocab_size, mask.shape), "attention_mask": mask}
    with use_backend("numpy"):
        truth = model(**inputs)[0]
    with use_backend("numba"):
        _assert_close("numba", model(**inputs)[0], truth)
        for dtype in dtypes:
            low = make(dtype=dtype)
            low.load_state_dict(model.state_dict())
            _assert_close(dtype, low(**inputs)[0], truth)
    if cuda_emulator.unavailable_reason() is None:
        emulator = cuda_emulator.Emulator(cuda_emulator.SCHEDULES[0])
        with _cuda.use_runtime(emulator), use_backend("cupy"):
            found = model(**inputs)[0]
            assert emulator.launches
        _assert_close("cupy", found, truth)


def _assert_close(what: str, found: Any, truth: np.ndarray) -> None:
    found = found if kernels.array_module(found) is np else found.get()
    error = np.abs(found - truth).max() / np.abs(truth).max()
    assert error <= TOLERANCE[what], f"{what} is off by {error:.3g} of the scale"


def check_gradients(model: Model, *parts: str, **batch: Any) -> None:
    """Compare float64 gradients with finite differences; `parts`: only of parameters whose names hold one."""
    rng = np.random.default_rng(0)
    state = {name: rng.normal(0.0, 0.4, array.shape) for name, array in model.state_dict().items()}

    with use_backend("numpy"):
        model.load_state_dict(state)
        _, grads = value_and_grad(model)(**batch)
        for name in (name for name in state if not parts or any(part in name for part in parts)):
            assert_slope(model, grads, lambda: model(**batch).loss, [name], step=1e-5)


def check_loads(model: Model, folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """A file of `tensors` loads to the parameters of `model`, without a warning."""
    save_checkpoint(folder, model.config, tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = type(model).from_pretrained(folder)
    assert not again.newly_initialised
    assert_same_arrays(again.state_dict(), model.state_dict())


def check_spellings(model: Model, folder: Path, *, copies: Mapping[str, str]) -> None:
    """Old and odd files load: the prefix there or not, or another before it, gamma and beta, buffers of positions.

    `copies` are tensors that published files hold besides, name -> the parameter they repeat.
    """
    tensors, rules = dict(model.state_dict()), model.family.name_rules
    assert any(name.startswith(rules.prefix) for name in tensors)
    buffers = {f"{rules.prefix}{buffer}": np.arange(24)[None] for buffer in rules.buffers}
    buffers = {name: array for name, array in buffers.items() if name not in tensors}
    repeated = {copy: tensors[original] for copy, original in copies.items()}
    spellings = {
        "as saved": lambda name: name,
        "bare": lambda name: name.removeprefix(rules.prefix),
        "of DataParallel": lambda name: f"module.{name}",
    }
    if any("LayerNorm" in name for name in tensors):
        spellings["of TensorFlow"] = lambda name: name.replace("Norm.weight", "Norm.gamma").replace(
            "Norm.bias", "Norm.beta"
        )
    for kind, spelling in spellings.items():
        renamed = {spelling(name): array for name, array in (tensors | buffers | repeated).items()}
        assert kind == "as saved" or renamed.keys() != (tensors | buffers | repeated).keys()
        check_loads(model, folder, renamed)
    originals = set(copies.values())
    instead = {name: array for name, array in tensors.items() if name not in originals} | repeated
    check_loads(model, folder, instead)


def check_recorded(model: Model, *, is_recorded: bool = True) -> None:
    """From the second time on that a shape comes, the encoder is one program on Numba, and computes the same."""
    ids = np.random.default_rng(0).integers(7, 40, (2, 5))
    run = mock.patch.object(Recordings, "run", autospec=True, side_effect=Recordings.run)
    with use_backend("numba"), run as run:
        found = [model(ids).last_hidden_state for _ in range(3)]
    kept = {id(each): each.kept for (each, *_), _ in run.call_args_list}
    assert [len(programs) for each in kept.values() for programs in each.values()] == [1] * is_recorded
    with use_backend("numpy"):
        truth = model(ids).last_hidden_state
    for hidden in found:
        np.testing.assert_allclose(hidden, truth, rtol=0, atol=1e-5 * np.abs(truth).max())


def check_refused(make: Callable[[Mapping[str, Any]], Any], config: Mapping[str, Any], refused: Mapping[str, Any]):
    """Each of `refused`, key -> value, is an error that names the key."""
    for key, value in refused.items():
        refuses(ValueError, rf"config: {key} is", make, {**config, key: value})
