"""Timings of BERT-base: whole forward passes and a training step, beside transformers compiled by PyTorch."""

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu.peers import Torch
from bench.gpu.timings import Other, Sizes, Step, by_events, check, rows
from bench.peers.cases import Batch, random_batch
from bertcore import AutoModel, AutoModelForMaskedLM, autocast, use_backend, value_and_grad
from bertcore.models.cost import flops_per_token
from bertcore.models.model import Model
from bertcore.training import AdamW
from bertcore.training.optimizers import clip_factor, grad_norm

PEER = "transformers, SDPA, torch.compile"
SINGLE_GOAL = 1e-3  # seconds
LABELLED, MOST_NORM, LEARNING_RATE = 0.15, 1.0, 1e-4
TRAINING_GOALS = {"bfloat16": 1.2}
BATCHES = 2  # that take turns


def steps(sizes: Sizes, peer: Torch | None) -> Iterator[Step]:
    """Yield the timings of models: ours alone, or beside the peer's if transformers is installed."""
    if peer is not None and not peer.has_transformers():
        return
    forward = functools.cache(partial(_Forward, sizes, peer))
    for lengths, goal in ((sizes.batch, 1.3), (sizes.ragged, 2.5), (sizes.single, None)):
        form = "x" if len(set(lengths)) == 1 else " texts of up to "
        run = partial(_time_forward, forward, lengths, goal)
        yield Step("model", f"BERT {len(lengths)}{form}{max(lengths)}", "float16", run, peer is not None)
    for dtype in ("bfloat16", "float32"):
        name = f"BERT masked LM {len(sizes.batch)}x{max(sizes.batch)}"
        yield Step("training", name, dtype, partial(_time_training, sizes, peer, dtype), peer is not None)


class _Forward:
    """The encoder in float16, and the peer's with the same weights."""

    def __init__(self, sizes: Sizes, peer: Torch | None):
        self.seconds, self.peer = sizes.seconds, peer
        self.model = AutoModel.from_config(dict(sizes.config), dtype="float16")
        self.module = None if peer is None else peer.encoder(_saved(self.model), "float16")


def _batches(model: Model, lengths: tuple[int, ...]) -> list[Batch]:
    return [random_batch(lengths, model.spec.vocab_size, seed, 0) for seed in range(BATCHES)]


def _saved(model: Model) -> Path:
    folder = Path(tempfile.mkdtemp())
    model.save_pretrained(folder)
    return folder


def _on_gpu(call: Callable[..., Any], **given: Any) -> Any:
    with use_backend("cupy"):
        return call(**given)


def _time_forward(
    forward: Callable[[], _Forward], lengths: tuple[int, ...], goal: float | None
) -> Iterator[dict[str, Any]]:
    own = forward()
    batches = _batches(own.model, lengths)
    ours = [partial(_on_gpu, own.model, **batch._asdict()) for batch in batches]
    others = {}
    if own.module is not None:
        theirs = [own.peer.encode(own.module, batch) for batch in batches]
        is_real = batches[0].is_real
        check(_real(ours[0]().last_hidden_state, is_real), _real(theirs[0](), is_real), "float16")
        others[PEER] = Other(own.peer.by_graph(theirs), goal)
    flops = sum(length * flops_per_token(own.model, length) for length in lengths)
    for row in rows(by_events(ours), others, own.seconds, flops=flops):
        yield row
    if goal is None and own.module is None:
        yield row | {"against": "1 ms", "against_s": SINGLE_GOAL, "ratio": SINGLE_GOAL / row["median_s"], "goal": 1.0}


def _real(hidden: Any, is_real: np.ndarray) -> Any:
    """Return the first text's real tokens."""
    return hidden[0][: int(is_real[0].sum())]


# ---- training --------------------------------------------------------------------------------------------------------


def _time_training(sizes: Sizes, peer: Torch | None, dtype: str) -> Iterator[dict[str, Any]]:
    """Time forward, backward, clipping and AdamW, without dropout; weights are float32, for bfloat16 with autocast."""
    model = AutoModelForMaskedLM.from_config(dict(sizes.config))
    batches = [_labelled(batch) for batch in _batches(model, sizes.batch)]
    folder = _saved(model) if peer is not None else None
    step = _our_step(model, dtype)
    ours, others = [partial(_on_gpu, step, **batch) for batch in batches], {}
    if peer is not None:
        their_step = peer.training_step(folder, dtype, LEARNING_RATE, MOST_NORM)
        theirs = [partial(their_step, peer.on_device(batch)) for batch in batches]
        first, other = float(ours[0]()), float(theirs[0]())
        assert abs(first - other) < 0.02 * abs(other), f"the first loss is {first}, the other's {other}"
        others["transformers, torch.compile, fused AdamW"] = Other(peer.by_events(theirs), TRAINING_GOALS.get(dtype))
    flops = 3 * sum(length * flops_per_token(model, length) for length in sizes.batch)
    yield from rows(by_events(ours), others, sizes.seconds, flops=flops)


def _our_step(model: Model, dtype: str) -> Callable[..., Any]:
    optimizer, differentiate = AdamW(model, lr=LEARNING_RATE), value_and_grad(model)

    def step(**batch: Any) -> Any:
        with autocast(dtype) if dtype == "bfloat16" else nullcontext():
            out, grads = differentiate(**batch)
        optimizer.step(grads, scale=clip_factor(grad_norm(grads), MOST_NORM, np.float32))
        return out.loss

    return step


def _labelled(batch: Batch) -> dict[str, np.ndarray]:
    is_labelled = np.random.default_rng(0).random(batch.input_ids.shape) < LABELLED
    is_labelled[0, 0] = True
    return batch._asdict() | {"labels": np.where(is_labelled & batch.is_real, batch.input_ids, -100)}
