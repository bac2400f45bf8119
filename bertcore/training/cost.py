"""What a step of training will take on this machine: memory and time, told before they are spent.

Two and four layers of the model are trained for some steps, each in a process of its own; a further layer takes as much
as these two differ by, each. Nothing is assumed of how the kernels work, so that the figures hold for every family and
stay true when the kernels change.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np  # what is resident with it is where counting begins

from bertcore.models.resident import check_resident_is_told, resident_megabytes

FEW, MORE = 2, 4  # layers that are measured
WARM_UP, STEPS = 2, 5
LABELLED = 0.15  # of the tokens


@dataclass(frozen=True)
class StepCost:
    """What a step takes.

    Attributes:
        activations: megabytes (10^6 bytes) that the forward pass keeps for the backward.
        peak: the most megabytes of the process, beyond Python with NumPy: weights, gradients, moments, activations,
            compiled kernels, the compiler's library.
        seconds: of a step: forward, backward, clipping, AdamW.
    """

    activations: float
    peak: float
    seconds: float


@dataclass(frozen=True)
class TrainingCost:
    """What training a model takes.

    Attributes:
        weights, gradients, moments: megabytes (10^6 bytes) of float32; AdamW has two moments.
        kept: with activations kept for the backward.
        checkpointed: with `gradient_checkpointing`: layers are run again in the backward.
        tokens_per_second, checkpointed_tokens_per_second: at that batch and length, without padding.
    """

    weights: float
    gradients: float
    moments: float
    kept: StepCost
    checkpointed: StepCost
    tokens_per_second: float
    checkpointed_tokens_per_second: float


def training_cost(config: Mapping[str, Any], batch: int, length: int) -> TrainingCost:
    """What training the model of `config` takes here, with the head of its masked or causal language model.

    Args:
        config: as in config.json.
        batch: sequences of a step.
        length: tokens of each.

    Raises:
        ValueError: for a config without such a head, or a length beyond the model's longest.
        OSError: where the system does not tell the memory of a process (Linux does).
        RuntimeError: if a step failed, with the message.
    """
    model = _model_of(config)
    longest = model.spec.longest_sequence
    if longest is not None and length > longest:
        raise ValueError(f"length is {length}, and the model takes {longest} tokens")
    check_resident_is_told()
    megabytes = model.num_parameters() * 4 / 1e6
    kept, checkpointed = (_step_cost(config, model, batch, length, again) for again in (False, True))
    tokens = batch * length
    rates = tokens / kept.seconds, tokens / checkpointed.seconds
    return TrainingCost(megabytes, megabytes, 2 * megabytes, kept, checkpointed, *rates)


def _model_of(config: Mapping[str, Any]) -> Any:
    """The model, without values."""
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
    few, more = (asdict(measured(config, batch, length, layers, again)) for layers in (FEW, MORE))
    per_layer = {name: (more[name] - few[name]) / (MORE - FEW) for name in few}
    return StepCost(**{name: more[name] + (count - MORE) * per_layer[name] for name in more})


def measured(config: Mapping[str, Any], batch: int, length: int, layers: int, again: bool) -> StepCost:
    """What a step takes with the first `layers` of the model, in a process of its own.

    A process that compiles kernels takes what the compiler does (100 MB and more): it is then asked once more.
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


def _print_measured(asked: Mapping[str, Any]) -> None:
    before = resident_megabytes()
    from bertcore.kernels._numba.compile.cache import compilations

    with compilations() as compiled:
        cost = _measure(before, **asked)
    print(json.dumps({**asdict(cost), "compiled": bool(compiled)}))


def _measure(before: float, config: Mapping[str, Any], batch: int, length: int, layers: int, again: bool) -> StepCost:
    from bertcore import kernels
    from bertcore.gradients import value_and_grad
    from bertcore.training.optimizers import AdamW, clip_grad_norm

    model = type(_model_of(config)).from_config(config)
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
    """Megabytes that a forward pass keeps for the backward of its loss."""
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
    _print_measured(json.load(sys.stdin))
