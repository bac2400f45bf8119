"""The loop of each library: forward, backward, clipping, AdamW.

Biases and norms have no weight decay, in either. PyTorch's AdamW is the fused one, which takes a seventh to a tenth of
the time of its default here.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bench import machine
from bench.peers.checkpoint import cached, quiet
from bench.training.cases import TASKS, Batch, Case
from bertcore import use_backend, value_and_grad
from bertcore.models.model import Model
from bertcore.training import AdamW, clip_grad_norm

OURS, RECOMPUTING, TORCH = "bertcore", "bertcore, layers recomputed", "torch"
LEARNING_RATE, WEIGHT_DECAY, MOST_NORM = 1e-4, 0.01, 1.0


class Loop(NamedTuple):
    """A model and its optimiser.

    Attributes:
        step: trains on a batch; the loss before.
        train: switches dropout on (True) or off.
    """

    step: Callable[[Batch], float]
    train: Callable[[bool], object]


def checkpoint_of(case: Case, workdir: Path) -> Path:
    """The folder of the random weights that all libraries begin with."""

    def save(folder: Path) -> None:
        TASKS[case.task].from_config(case.config).save_pretrained(folder)

    return cached(workdir / case.name.replace("/", "-"), save)


def ours(case: Case, folder: Path) -> Loop:
    """bertcore on Numba."""
    model = TASKS[case.task].from_pretrained(folder)
    return _loop_of(model)


def recomputing(case: Case, folder: Path) -> Loop:
    """bertcore, with each layer computed once more in the backward instead of kept."""
    model = TASKS[case.task].from_pretrained(folder)
    model.encoder.recomputes_layers = True
    return _loop_of(model)


def _loop_of(model: Model) -> Loop:
    optimizer, differentiate = AdamW(model, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY), value_and_grad(model)

    def step(batch: Batch) -> float:
        with use_backend("numba"):
            out, grads = differentiate(**batch)
            clip_grad_norm(grads, MOST_NORM)
            optimizer.step(grads)
        return float(out.loss)

    return Loop(step, lambda on: model.train(0) if on else model.eval())


def torch(case: Case, folder: Path) -> Loop:
    """transformers on PyTorch, in float32."""
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    transformers.utils.logging.disable_progress_bar()
    with quiet():
        model = getattr(transformers, f"AutoModelFor{case.task}").from_pretrained(folder)
    parameters = list(model.parameters())
    groups = [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, fused=True)

    def step(batch: Batch) -> float:
        optimizer.zero_grad()
        loss = model(**{name: torch.from_numpy(array) for name, array in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, MOST_NORM)
        optimizer.step()
        return loss.item()

    return Loop(step, model.train)


LOOPS: Mapping[str, Callable[[Case, Path], Loop]] = {OURS: ours, RECOMPUTING: recomputing, TORCH: torch}


def set_threads(library: str, threads: int) -> None:
    """Give a library its threads."""
    machine.set_threads(threads)
    if library == TORCH:
        importlib.import_module("torch").set_num_threads(threads)
