"""What a pass of models takes on this machine, measured: time, resident memory, and their weights on disk.

Each model is in a process of its own, so that its memory is its own. The models pass in turns, so that what else the
machine does meets all of them alike.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np  # what is resident with it is where counting begins

from bertcore.models.resident import check_resident_is_told, resident_megabytes

ROUNDS = 7
TURN = 0.2  # seconds that a model passes for, at least, in a round
WARM_UP = 2  # the first pass of a model prepares what the others use


@dataclass(frozen=True)
class Member:
    """A model to be measured.

    Attributes:
        name: what messages call it.
        config: as in config.json.
        folder: its checkpoint; None for random weights in float32.
    """

    name: str
    config: Mapping[str, Any]
    folder: Path | None = None


@dataclass(frozen=True)
class PassCost:
    """What a pass takes.

    Attributes:
        seconds: of a pass, in each round.
        resident: megabytes (10^6 bytes) of the process after the passes, beyond Python with NumPy: weights, scratch
            memory, compiled kernels and the compiler's library.
        on_disk: megabytes of the files of weights; of random ones, what they would take in float32.
    """

    seconds: tuple[float, ...]
    resident: float
    on_disk: float

    @property
    def latency(self) -> float:
        """The median of the rounds, in seconds."""
        return statistics.median(self.seconds)


def pass_costs(members: Sequence[Member], batch: int, length: int, *, backend: str = "numba") -> list[PassCost]:
    """What a pass through each model's encoder takes here, with random tokens and no padding.

    Args:
        members: the models, all of which are loaded at once.
        batch: sequences of a pass.
        length: tokens of each.
        backend: what computes.

    Raises:
        ValueError: for a length beyond a model's longest.
        OSError: where the system does not tell the memory of a process (Linux does).
        RuntimeError: if a model cannot be loaded or a pass failed, with the message.
    """
    check_resident_is_told()
    on_disk = [_megabytes_on_disk(member, length) for member in members]
    asked = {"batch": batch, "length": length, "backend": backend}
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_warm_worker(member, asked)) for member in members]
        rounds = [[worker.turn() for worker in workers] for _ in range(ROUNDS)]
    turns = zip(*rounds, strict=True)
    return [
        PassCost(tuple(turn["seconds"] for turn in own), own[-1]["resident"], megabytes)
        for own, megabytes in zip(turns, on_disk, strict=True)
    ]


def _megabytes_on_disk(member: Member, length: int) -> float:
    from bertcore.checkpoint import naming_config, open_checkpoint
    from bertcore.models.auto import AutoModel

    with naming_config(member.name):
        model = AutoModel.class_for_config(member.config)(member.config)
    longest = model.spec.longest_sequence
    if longest is not None and length > longest:
        raise ValueError(f"length is {length}, and {member.name} takes {longest} tokens")
    if member.folder is None:
        return model.num_parameters() * 4 / 1e6
    files = {info.file for info in open_checkpoint(member.folder).info.values()}
    return sum(file.stat().st_size for file in files) / 1e6


@contextlib.contextmanager
def _warm_worker(member: Member, asked: Mapping[str, Any]) -> Iterator[_Worker]:
    """A process with the model, which has made its first passes.

    One that compiled kernels takes what the compiler does (100 MB and more): another is then started in its place.
    """
    folder = member.folder and str(member.folder)
    asked = {**asked, "config": dict(member.config), "folder": folder}
    for is_last in (False, True):
        with _started(member.name) as worker:
            if not worker.ask(asked)["compiled"] or is_last:
                yield worker
                return


@contextlib.contextmanager
def _started(name: str) -> Iterator[_Worker]:
    with tempfile.TemporaryFile() as errors:
        command, pipe = [sys.executable, "-m", "bertcore.models.cost"], subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors)
        try:
            yield _Worker(name, process, errors)
        finally:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class _Worker:
    """A process with one model, which passes when it is asked to."""

    name: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def turn(self) -> dict[str, float]:
        """The seconds of a pass, and what is resident after it."""
        return self.ask({})

    def ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """The process's answer; RuntimeError if it ended instead."""
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(what).encode() + b"\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            code = self.process.wait()
            self.errors.seek(0)
            last = (self.errors.read().decode(errors="replace").strip().splitlines() or [f"exit code {code}"])[-1]
            raise RuntimeError(f"{self.name} cannot be measured: {last}")
        return json.loads(answer)


def _answer_requests() -> None:
    """The process's own part: a model is told in the first line, a turn asked for in each that follows."""
    before = resident_megabytes()
    passes = _passes(**json.loads(sys.stdin.readline()))
    print(json.dumps({"compiled": next(passes)}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"seconds": next(passes), "resident": resident_megabytes() - before}), flush=True)


def _passes(config: Mapping[str, Any], folder: str | None, batch: int, length: int, backend: str) -> Iterator[Any]:
    """Whether the first passes compiled kernels; then the seconds of a pass, for ever."""
    from bertcore import kernels
    from bertcore.models.auto import AutoModel

    with kernels.use_backend(backend):
        with _compilations(backend) as compiled:
            model = AutoModel.from_pretrained(folder) if folder else AutoModel.from_config(config)
            ids = np.random.default_rng(0).integers(0, model.spec.vocab_size, (batch, length))
            for _ in range(WARM_UP):
                _pass(model, ids)
        yield bool(compiled)
        while True:
            yield _seconds(model, ids)


def _compilations(backend: str) -> contextlib.AbstractContextManager[list[str]]:
    if backend != "numba":
        return contextlib.nullcontext([])
    from bertcore.kernels._numba.compile.cache import compilations

    return compilations()


def _seconds(model: Any, ids: np.ndarray) -> float:
    """Seconds of a pass, the mean of a turn's."""
    _pass(model, ids)  # the other models had the caches, and the threads slept
    count, started = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - started < TURN:
        _pass(model, ids)
        count += 1
    return (time.perf_counter() - started) / count


def _pass(model: Any, ids: np.ndarray) -> np.ndarray:
    from bertcore import kernels

    return kernels.to_host(model(ids).last_hidden_state)  # a GPU has computed them then


if __name__ == "__main__":
    _answer_requests()
