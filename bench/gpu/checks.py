"""Correctness on the GPU: every kernel against its definition, every family against NumPy."""

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np

from bench.gpu.operations import batch_invariant
from bench.gpu.timings import Step
from bertcore import AutoModel, AutoModelForMaskedLM, autocast, kernels, use_backend, value_and_grad, vjp
from bertcore.execution.graphs import NotCapturedWarning
from bertcore.kernels import _cuda
from bertcore.models.model import Model
from bertcore.training import LAMB, AdamW, Muon, StableAdamW
from bertcore.training.optimizers import Optimizer, clip_factor, grad_norm
from tests.cuda_emulator.modules import OPERATIONS, modules
from tests.kernels.arrays import DTYPES
from tests.kernels.conformance.cases import CASES
from tests.kernels.conformance.checks import DTYPES_OF, assert_conforms, on_disk
from tests.tiny_families import drawn_anew, runnable, tiny_config

LAYOUTS = ("contiguous", "slice")  # in turns
TOLERANCE = 1e-4  # of a float32 model's output, relative to its largest; MobileBERT amplifies 2e-6 to 3e-5
LENGTHS = (7, 1, 4)
PASSES = ("operation by operation", "captured", "replayed", "replayed again")
LEARNERS = (
    ("bert-base-uncased", AdamW),
    ("deberta-v3-small", LAMB),
    ("bert-base-uncased", StableAdamW),
    ("bert-base-uncased", Muon),
)
TWICE = "bert-base-uncased"  # encodes two batches before the gradients of either
LEARNING_STEPS = 4
LEARNING_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}
BATCH_INVARIANT = "linear, batch-invariant"


def steps(every: int = 1, families: list[str] | None = None) -> Iterator[Step]:
    """Yield the checks: each operation in each dtype over the tests' cases, a model of each family, some that learn.

    `every`: take one case in so many; `families`: presets, by default one of each family.
    """
    yield Step("kernel", "compile", "", partial(_compile, every))
    for operation, dtype in product(on_disk("cupy"), DTYPES_OF["cupy"]):
        yield Step("kernel", operation, dtype, partial(_check_kernel, operation, dtype, every))
    for dtype in DTYPES_OF["cupy"]:
        yield Step("kernel", BATCH_INVARIANT, dtype, partial(_check_batch_invariant, dtype, every))
    for name in families or runnable():
        yield Step("family", name, "float32", partial(_check_family, name))
        yield Step("family", f"{name}, gradients", "float32", partial(_check_gradients, name))
        if name == TWICE:
            yield Step("family", f"{name}, two at once", "float32", partial(_check_gradients, name, 2))
    for (name, rule), dtype in product(LEARNERS, ("float32", "bfloat16")):
        yield Step("family", f"{name}, {rule.__name__}", dtype, partial(_check_learning, name, rule, dtype))


def _compile(every: int) -> Iterator[dict[str, Any]]:
    """Compile all kernels on all CPUs at once: one after the other they take minutes on a fresh machine."""
    runtime, start = _cuda.runtime(), time.perf_counter()
    wanted = [(module, kernel) for name in OPERATIONS for module in modules(name) for kernel in module.instantiations]

    def problem(module: Any, kernel: str) -> str:
        try:
            runtime.loaded(module, kernel)
        except Exception as error:  # compile the others all the same
            return f"{kernel}: {line(error)}"
        return ""

    wanted = wanted[::every]
    first = problem(*wanted[0])  # loads the common parts once
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [found for found in (first, *pool.map(problem, *zip(*wanted[1:], strict=True))) if found]
    yield {"cases": len(wanted), "note": f"{time.perf_counter() - start:.1f} s"} | _status(problems)


def _status(problems: Sequence[str]) -> dict[str, str]:
    return {"status": "wrong", "note": f"{len(problems)} wrong; {problems[0]}"} if problems else {}


def _check_kernel(operation: str, dtype: str, every: int) -> Iterator[dict[str, Any]]:
    cases = list(CASES[operation].values())[::every]
    laid_out = zip(cases, cycle(LAYOUTS), strict=False)
    wrong = [note for case, layout in laid_out if (note := _wrong(case, operation, dtype, layout))]
    yield {"cases": len(cases)} | _status(wrong)


def _check_batch_invariant(dtype: str, every: int) -> Iterator[dict[str, Any]]:
    with batch_invariant():
        yield from _check_kernel("linear", dtype, every)


def _wrong(case: Any, operation: str, dtype: str, layout: str) -> str:
    try:
        assert_conforms(case, operation, "cupy", DTYPES[dtype], [layout])
    except Exception as error:  # one broken kernel must not hide the others' results
        return f"{case.name}, {layout}: {line(error)}"
    return ""


def _check_family(name: str) -> Iterator[dict[str, Any]]:
    """Compare a small model on cupy and on numpy over batches of one layout.

    The first is computed operation by operation, the second captured as a CUDA graph, the others replay it.
    """
    model = drawn_anew(AutoModel.from_config(tiny_config(name)))
    wrong = [f"{pass_by}: {note}" for number, pass_by in enumerate(PASSES) if (note := _wrong_pass(model, number))]
    yield {"cases": len(PASSES)} | _status(wrong)


def _wrong_pass(model: Model, seed: int) -> str:
    try:
        error = _model_error(model, seed)
    except Exception as problem:  # a pass that cannot be captured may still be right without a graph
        return line(problem)
    return "" if error < TOLERANCE else f"off by {error:.2g} of the scale (allowed {TOLERANCE:.0e})"


def _model_error(model: Model, seed: int) -> float:
    batch = _inputs(model, seed)
    with use_backend("numpy"):
        expected = model(**batch)
    with use_backend("cupy"), warnings.catch_warnings():
        warnings.simplefilter("error", NotCapturedWarning)
        found = model(**batch)
    assert kernels.array_module(found[0]) is not np, "the result is not on the GPU"
    pairs = [pair for name in expected for pair in _pairs(found[name], expected[name])]
    # The scale of all fields: MobileBERT's pooler reads numbers of 1,000, whose rounding is 2.5e-4 of its own output.
    scale = max(float(np.abs(array).max()) for _, array in pairs)
    return max(float(np.abs(array.get() - other).max()) for array, other in pairs) / scale


def _pairs(found: Any, expected: Any) -> list[tuple[Any, Any]]:
    """Return the arrays of a field; memories are a tuple of arrays."""
    return list(zip(found, expected, strict=True)) if isinstance(expected, tuple) else [(found, expected)]


def _check_gradients(name: str, at_once: int = 1) -> Iterator[dict[str, Any]]:
    """Compare a small model's gradients, with dropout, with its first ones, which are computed operation by operation.

    Later ones are computed by CUDA graphs if the family's layers have them. With several batches `at_once`, each later
    forward and backward encloses those of the other batches.
    """
    model, seeds = drawn_anew(AutoModel.from_config(tiny_config(name))), range(at_once)
    shape = len(LENGTHS), max(LENGTHS), model.spec.hidden_size
    gradient = {"last_hidden_state": np.random.default_rng(1).normal(size=shape).astype(np.float32)}

    def grads(seeds: Sequence[int]) -> dict[str, Any]:
        pullbacks = {seed: vjp(model.train(seed))(**_inputs(model, seed))[1] for seed in seeds}
        found = {seed: pullback(gradient) for seed, pullback in pullbacks.items()}
        return {f"{key} of batch {seed}": grad for seed, of_batch in found.items() for key, grad in of_batch.items()}

    with use_backend("cupy"), warnings.catch_warnings():
        warnings.simplefilter("error", NotCapturedWarning)
        found = [{key: grad for seed in seeds for key, grad in grads([seed]).items()}]
        found += [grads(seeds) for _ in PASSES[1:]]
    wrong = []
    scale = max(float(np.abs(grad.get()).max()) for grad in found[0].values())
    for pass_by, others in zip(PASSES[1:], found[1:], strict=True):
        for key, grad in found[0].items():
            error = float(np.abs(others[key].get() - grad.get()).max()) / scale
            if not error < TOLERANCE:
                wrong.append(f"{pass_by}: {key} off by {error:.2g} of the scale (allowed {TOLERANCE:.0e})")
    yield {"cases": len(PASSES)} | _status(wrong)


def _batch(model: Model, seed: int) -> tuple[np.ndarray, np.ndarray]:
    mask = (np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]).astype(int)
    return np.random.default_rng(seed).integers(2, model.spec.vocab_size, mask.shape), mask


def _inputs(model: Model, seed: int) -> dict[str, np.ndarray]:
    """Return a batch, with entities if the family has them."""
    ids, mask = _batch(model, seed)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "entity_ids" in model.family.inputs:
        entities = np.random.default_rng(seed).integers(1, model.spec.details.vocab_size, (len(ids), 2))
        places = np.broadcast_to([[2, -1], [3, 4]], (*entities.shape, 2))  # mentions of one word, and of two
        inputs |= {"entity_ids": entities, "entity_position_ids": places}
    return inputs


def _check_learning(name: str, rule: type[Optimizer], dtype: str) -> Iterator[dict[str, Any]]:
    """Compare losses and first gradients of masked language modelling with dropout on cupy and on numpy."""
    (expected, exact), (found, grads) = (_learn(name, rule, dtype, backend) for backend in ("numpy", "cupy"))
    tolerance = LEARNING_TOLERANCE[dtype]
    errors = {"losses": np.abs(np.subtract(found, expected)).max() / expected[0]}
    scale = max(np.abs(grad).max() for grad in exact.values())
    for key, grad in exact.items():  # a bias of keys has rounding alone
        errors[key] = np.abs(grads[key].get() - grad).max() / max(np.abs(grad).max(), scale / 10)
    wrong = [
        f"{key} off by {error:.2g} (allowed {tolerance:.0e})" for key, error in errors.items() if not error < tolerance
    ]
    yield {"cases": len(errors)} | _status(wrong)


def _learn(name: str, rule: type[Optimizer], dtype: str, backend: str) -> tuple[list[float], dict[str, Any]]:
    """Return the losses of some steps, and the gradients of the first."""
    model = drawn_anew(AutoModelForMaskedLM.from_config(tiny_config(name)))
    ids, mask = _batch(model, 0)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": np.where(mask == 1, ids, -100)}
    optimizer, differentiate, losses, first = rule(model, lr=1e-3), value_and_grad(model), [], None
    with use_backend(backend), autocast(dtype) if dtype == "bfloat16" else nullcontext():
        for step in range(LEARNING_STEPS):
            model.train(seed=step)
            out, grads = differentiate(**batch)
            first = {key: grad.copy() for key, grad in grads.items()} if first is None else first
            optimizer.step(grads, scale=clip_factor(grad_norm(grads), 1.0, np.float32))
            losses.append(float(out.loss))
    return losses, first


def line(error: Exception) -> str:
    """Return the error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
