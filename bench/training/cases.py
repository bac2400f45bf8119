"""Cases of training, models and batches with their FLOPs, and the loop of each library.

A loop is forward, backward, clipping and AdamW. Biases and norms have no weight decay in either library. PyTorch's
AdamW is the fused one, which takes a seventh to a tenth of the time of its default.
"""

import functools
import importlib
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import machine
from bench.peers.cases import random_batch
from bench.peers.checkpoint import cached, quiet
from bench.texts import ragged_lengths
from bertcore import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    autocast,
    use_backend,
    value_and_grad,
)
from bertcore.gradients import differentiate
from bertcore.models.cost import flops_per_token
from bertcore.models.model import Model
from bertcore.presets import preset_config
from bertcore.training import AdamW, AdamW8bit, clip_grad_norm
from bertcore.training.optimizers import StepInBackward
from tests.tiny_families import tiny_config

MASKED_LM, CLASSIFICATION = "MaskedLM", "SequenceClassification"
TASKS = {MASKED_LM: AutoModelForMaskedLM, CLASSIFICATION: AutoModelForSequenceClassification}
LABELLED = 0.15  # of the tokens, in masked language modelling
BATCHES = 4  # that take turns

SHAPES = {"8x64": (64,) * 8, "64x64": (64,) * 64, "8x128": (128,) * 8, "ragged": ragged_lengths(64)}

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One model on batches of one shape; `quick` chooses its small model, `changes` edit the preset's config."""

    model: str
    shape: str
    task: str = MASKED_LM
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    quick: bool = False

    @property
    def name(self) -> str:
        return f"{self.model}/{self.shape}"

    @property
    def lengths(self) -> tuple[int, ...]:
        return SHAPES[self.shape]

    @property
    def config(self) -> dict[str, Any]:
        config = tiny_config(self.model) if self.quick else preset_config(self.model)
        return config | self.changes

    @functools.cached_property
    def flops(self) -> float:
        """The FLOPs of a step's products: three times those of a forward that scores labelled tokens alone."""
        model = AutoModel(self.config)
        encoder = sum(length * flops_per_token(model, length) for length in self.lengths)
        head = 0.0
        if self.task == MASKED_LM:
            width, rows = model.spec.hidden_size, LABELLED * sum(self.lengths)
            head = 2 * rows * width * (width + model.spec.vocab_size)
        return 3 * (encoder + head)

    def batches(self) -> list[Batch]:
        """Return random ids and labels, the same in every run."""
        seed = zlib.crc32(self.name.encode())
        return [self._batch(np.random.default_rng(seed + number)) for number in range(BATCHES)]

    def _batch(self, rng: np.random.Generator) -> Batch:
        words, config = self.config["vocab_size"], self.config
        ids, mask = random_batch(self.lengths, words, rng.integers(2**32), config.get("pad_token_id") or 0)
        if self.task == CLASSIFICATION:
            labels = rng.integers(0, 2, len(ids))
        else:
            is_chosen = (rng.random(ids.shape) < LABELLED) & (mask == 1)
            ids, labels = np.where(is_chosen, words - 1, ids), np.where(is_chosen, ids, -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


_LONGER = {"max_position_embeddings": 128}
CASES = (
    Case("mini-bert", "8x64"),
    Case("mini-bert", "64x64"),
    Case("mini-bert", "ragged", changes=_LONGER),
    Case("bert-base-uncased", "8x128"),
    Case("deberta-v3-base", "8x128", CLASSIFICATION, {"num_hidden_layers": 4}),
)


def find_case(name: str, quick: bool = False) -> Case:
    """Return the case of that name."""
    (found,) = (case for case in CASES if case.name == name)
    return replace(found, quick=quick)


OURS, RECOMPUTING, TORCH = "bertcore", "bertcore, layers recomputed", "torch"
IN_BACKWARD = "bertcore, layers recomputed, optimiser in backward"
IN_EIGHT_BITS = f"{IN_BACKWARD}, 8-bit moments"
IN_BFLOAT16, TORCH_IN_BFLOAT16 = f"{OURS}, bfloat16", f"{TORCH}, bfloat16"  # as TrainingArguments(bf16=True)
LEARNING_RATE, WEIGHT_DECAY, MOST_NORM = 1e-4, 0.01, 1.0


class Loop(NamedTuple):
    """A model and its optimiser."""

    step: Callable[[Batch], float]  # trains on a batch; returns the loss before
    train: Callable[[bool], object]  # switches dropout on (True) or off


def checkpoint_of(case: Case, workdir: Path) -> Path:
    """Return the folder of the random weights that all libraries begin with."""

    def save(folder: Path) -> None:
        TASKS[case.task].from_config(case.config).save_pretrained(folder)

    return cached(workdir / case.name.replace("/", "-"), save)


def ours(case: Case, folder: Path) -> Loop:
    """Return the loop of bertcore on Numba."""
    model = TASKS[case.task].from_pretrained(folder)
    return _loop_of(model)


def recomputing(case: Case, folder: Path) -> Loop:
    """Return the loop of bertcore with layers recomputed in the backward instead of kept."""
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


def in_backward(case: Case, folder: Path, kind: type[AdamW] = AdamW) -> Loop:
    """Return the loop with layers recomputed and the optimiser in the backward pass, clipped by the norm before."""
    model = TASKS[case.task].from_pretrained(folder)
    model.encoder.recomputes_layers = True
    optimizer, norms = kind(model, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY), [None]

    def step(batch: Batch) -> float:
        made = StepInBackward(optimizer, MOST_NORM, norms[-1])
        with use_backend("numba"):
            out, _ = differentiate(model, lambda: model(**batch), made.take)
            norms[:] = [float(made.finish())]
        return float(out.loss)

    return Loop(step, lambda on: model.train(0) if on else model.eval())


def in_eight_bits(case: Case, folder: Path) -> Loop:
    """Return the loop of `in_backward` with moments in 8 bits."""
    return in_backward(case, folder, AdamW8bit)


def in_bfloat16(case: Case, folder: Path) -> Loop:
    """Return the loop of bertcore that multiplies by weights in bfloat16."""
    return _within(lambda: autocast("bfloat16"), ours(case, folder))


def torch_in_bfloat16(case: Case, folder: Path) -> Loop:
    """Return the loop of transformers under PyTorch's autocast to bfloat16."""
    return _within(lambda: importlib.import_module("torch").autocast("cpu"), torch(case, folder))


def _within(context: Callable[[], AbstractContextManager[Any]], loop: Loop) -> Loop:
    def step(batch: Batch) -> float:
        with context():
            return loop.step(batch)

    return Loop(step, loop.train)


def torch(case: Case, folder: Path) -> Loop:
    """Return the loop of transformers on PyTorch, in float32."""
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


LOOPS: Mapping[str, Callable[[Case, Path], Loop]] = {OURS: ours, RECOMPUTING: recomputing}
LOOPS |= {IN_BACKWARD: in_backward, IN_EIGHT_BITS: in_eight_bits, IN_BFLOAT16: in_bfloat16}
LOOPS |= {TORCH_IN_BFLOAT16: torch_in_bfloat16, TORCH: torch}


def set_threads(library: str, threads: int) -> None:
    """Set a library's threads."""
    machine.set_threads(threads)
    if library in (TORCH, TORCH_IN_BFLOAT16):
        importlib.import_module("torch").set_num_threads(threads)
