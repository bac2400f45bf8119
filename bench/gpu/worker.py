"""The process of `python -m bench.gpu` that has the GPU: it does the steps that it is asked for.

It reads the number of a step from each line of its input, and writes a JSON object on each line of its output:
{"machine", "steps"} when it is ready (or {"unavailable"}, and ends), {"row"} for each row of a step, {"is_usable"}
after each step: false where the GPU answers every further call of this process with the error of an earlier one.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from bench import machine
from bench.gpu import checks, models, operations, peers, products, sizes
from bench.gpu.timings import Step
from bertcore import kernels


def main(arguments: Sequence[str], peer: peers.Torch | None = None) -> None:
    """Do what the input asks for, until it ends. Tests give a `peer` that stands for PyTorch on the GPU."""
    output = _own_output()
    reason = kernels.unavailable_reason("cupy")
    if reason is not None:
        _say(output, unavailable=reason)
        return
    peer = peer or _torch()
    steps = all_steps("--quick" in arguments, peer)
    _say(output, machine=machine.describe(), steps=[[it.kind, it.name, it.dtype, it.is_beside] for it in steps])
    for line in sys.stdin:
        for row in rows_of(steps[int(line)]):
            _say(output, row=row)
        _say(output, is_usable=_is_usable(peer))


def _own_output() -> TextIO:
    """Standard output for this module alone: what others print goes to standard error."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output


def _say(output: TextIO, **message: Any) -> None:
    print(json.dumps(message, default=float), file=output, flush=True)


def _torch() -> peers.Torch | None:
    reason = peers.torch_unavailable_reason()
    if reason is not None:
        print(f"nothing is compared with PyTorch: {reason}", file=sys.stderr)
        return None
    peer = peers.Torch()
    if not peer.has_transformers():
        print("no model is compared: transformers is not installed", file=sys.stderr)
    return peer


def all_steps(is_quick: bool, peer: peers.Torch | None) -> list[Step]:
    """What is right, then what ours take alone, then beside the peer: what its compiler does may take minutes."""
    size = sizes.tiny() if is_quick else sizes.full()
    steps = [*checks.steps(every=40 if is_quick else 1)]
    for one in (None, peer)[: 1 if peer is None else 2]:
        steps += [*products.steps(size, one), *operations.attention_steps(size, one)]
        steps += [*models.steps(size, one), *operations.row_steps(size, one)]
    return steps


def rows_of(step: Step) -> Iterator[dict[str, Any]]:
    """The rows of a step, or one that says what failed. What a peer cannot do is left out, a wrong result is not."""
    try:
        yield from step.run()
    except Exception as error:  # what fails must not hide the rest
        is_peers = step.is_beside and not isinstance(error, AssertionError)
        yield {"status": "left out" if is_peers else "failed", "note": checks.line(error)}


def _is_usable(peer: peers.Torch | None) -> bool:
    """Whether the GPU still computes; gives back what no array uses."""
    cupy = importlib.import_module("cupy")
    try:
        cupy.cuda.runtime.deviceSynchronize()
        cupy.get_default_memory_pool().free_all_blocks()
        if peer is not None:
            peer.free()
    except Exception as error:  # of CuPy or of PyTorch
        print(f"the GPU is given up: {checks.line(error)}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
