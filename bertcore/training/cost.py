"""Memory and time of a training step on this machine, measured before the training.

Models with two and four layers are trained for some steps, each in its own process; the difference extrapolates to more
layers. Nothing about the kernels is assumed, so the figures hold for every family.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np  # counting begins with its memory resident

from bertcore.system import check_resident_is_reported, resident_megabytes

FEW, MORE = 2, 4  # layers that are measured
WARM_UP, STEPS = 2, 5
LABELLED = 0.15  # of the tokens


@dataclass(frozen=True)
class StepCost:
    """Memory and time of a step.

    Attributes:
        activations: megabytes (10^6 bytes) that the forward pass keeps for the backward.
        peak: peak megabytes of the process beyond Python with NumPy: weights, gradients, moments, activations, compiled
            kernels, the compiler's library.
        seconds: of a step: forward, backward, clipping, AdamW.
    """

    activations: float
    peak: float
    seconds: float


@dataclass(frozen=True)
class TrainingCost:
    """Memory and speed of training a model.

    Attributes:
        weights, gradients, moments: megabytes (10^6 bytes) of float32; AdamW has two moments.
        kept: a step that keeps activations for the backward.
        checkpointed: a step with `gradient_checkpointing`, whose backward runs layers again.
        tokens_per_second, checkpointed_tokens_per_second: at this batch and length, without padding.
    """

    weights: float
    gradients: float
    moments: float
    kept: StepCost
    checkpointed: StepCost
    tokens_per_second: float
    checkpointed_tokens_per_second: float


def training_cost(config: Mapping[str, Any], batch: int, length: int) -> TrainingCost:
    """Measure the training of the model of `config` here, with its masked or causal language-model head.

    Args:
        config: as in config.json.
        batch: sequences of a step.
        length: tokens of each.

    Raises:
        ValueError: for a config without such a head, or a length beyond the model's longest.
        OSError: if the system does not report the memory of a process (Linux does).
        RuntimeError: if a step failed, with the message.
    """
    model = model_of(config)
    longest = model.spec.longest_sequence
    if longest is not None and length > longest:
        raise ValueError(f"length is {length}, and the model takes {longest} tokens")
    check_resident_is_reported()
    megabytes = model.num_parameters() * 4 / 1e6
    kept, checkpointed = (_step_cost(config, model, batch, length, again) for again in (False, True))
    tokens = batch * length
    rates = tokens / kept.seconds, tokens / checkpointed.seconds
    return TrainingCost(megabytes, megabytes, 2 * megabytes, kept, checkpointed, *rates)


def model_of(config: Mapping[str, Any]) -> Any:
    """Return the model, without values."""
    from bertcore.models.architectures import models_of

    models = models_of(config)
    for name in ("AutoModelForMaskedLM", "AutoModelForCausalLM"):
        if name in models:
            return models[name]
    raise ValueError(f"{config['model_type']} has no masked or causal language model to train")


def _step_cost(config: Mapping[str, Any], model: Any, batch: int, length: int, again: bool) -> StepCost:
    count = model.spec.num_layers
    if count <= MORE:
        return measured(config, batch, length, count, again)
    both = zip(*(astuple(measured(config, batch, length, layers, again)) for layers in (FEW, MORE)), strict=True)
    return StepCost(*(more + (count - MORE) * (more - few) / (MORE - FEW) for few, more in both))


def measured(config: Mapping[str, Any], batch: int, length: int, layers: int, again: bool) -> StepCost:
    """Measure a step with the first `layers` of the model, in its own process.

    A process that compiles kernels includes the compiler's memory (100 MB and more): it is measured again.
    """
    asked = json.dumps({"config": dict(config), "batch": batch, "length": length, "layers": layers, "again": again})
    command = [sys.executable, "-m", "bertcore.training.cost"]
    for _ in range(2):
        ended = subprocess.run(command, input=asked, capture_output=True, text=True)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
            raise RuntimeError(f"a step with {layers} layers failed: {last}")
        found = json.loads(ended.stdout)
        if not found.pop("compiled"):
            break
    return StepCost(**found)


def _measure(before: float, config: Mapping[str, Any], batch: int, length: int, layers: int, again: bool) -> StepCost:
    from bertcore import kernels
    from bertcore.gradients import value_and_grad
    from bertcore.training.optimizers import AdamW, clip_grad_norm

    model = type(model_of(config)).from_config(config)
    model.encoder.layers = model.encoder.layers[:layers]
    if again:
        model.gradient_checkpointing_enable()
    optimizer, differentiate = AdamW(model), value_and_grad(model)
    examples, times = _batch(model, batch, length), []
    with kernels.use_backend("numba"):
        for number in range(WARM_UP + STEPS):
            started = time.perf_counter()
            model.train(number)
            _, grads = differentiate(**examples)
            clip_grad_norm(grads, 1.0)
            optimizer.step(grads)
            del grads
            times.append(time.perf_counter() - started)
        peak = resident_megabytes("VmHWM") - before
        kept = _kept(model, examples)
    return StepCost(activations=kept, peak=peak, seconds=statistics.median(times[WARM_UP:]))


def _kept(model: Any, examples: Mapping[str, np.ndarray]) -> float:
    """Return the megabytes that a forward pass keeps for the backward of its loss."""
    from bertcore.kernels._numba import memory as arena
    from bertcore.tape import Tape

    arena.release()
    before = resident_megabytes()
    with Tape() as tape:
        loss = model(**examples).loss
    arena.release()
    kept = resident_megabytes() - before
    del tape, loss
    return max(kept, 0.0)


def _batch(model: Any, batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, model.spec.vocab_size, (batch, length))
    is_labelled = rng.random(ids.shape) < LABELLED
    is_labelled[:, -1] = True  # one at least
    return {"input_ids": ids, "labels": np.where(is_labelled, ids, -100)}


if __name__ == "__main__":
    before = resident_megabytes()
    from bertcore.kernels._numba.compile.cache import compilations

    with compilations() as compiled:
        cost = _measure(before, **json.load(sys.stdin))
    print(json.dumps({**asdict(cost), "compiled": bool(compiled)}))
