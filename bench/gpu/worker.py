"""The process of `python -m bench.gpu` that uses the GPU: it runs the steps it is asked for.

It reads the number of a step from each line of its input, and writes a JSON object on each line of its output:
{"machine", "steps"} when it is ready (or {"unavailable"}, and ends), {"row"} for each row of a step, {"is_usable"}
after each step: false if the GPU answers every further call of this process with an earlier error.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from bench import machine
from bench.gpu import checks, models, operations, peers, timings
from bench.gpu.timings import Step
from bertcore import kernels


def main(arguments: Sequence[str], peer: peers.Torch | None = None) -> None:
    """Run the steps that the input names, until it ends. Tests give a `peer` in place of PyTorch on the GPU."""
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
        _say(output, is_usable=is_usable(peer))


def _own_output() -> TextIO:
    """Return standard output for this module alone; prints of others go to standard error."""
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
    """Return the checks, then timings of ours alone, then beside the peer, whose compiler may take minutes."""
    size = timings.tiny() if is_quick else timings.full()
    steps = [*checks.steps(every=40 if is_quick else 1)]
    for one in (None, peer)[: 1 if peer is None else 2]:
        steps += [*operations.product_steps(size, one), *operations.attention_steps(size, one)]
        steps += [*models.steps(size, one), *operations.row_steps(size, one)]
    return steps


def rows_of(step: Step) -> Iterator[dict[str, Any]]:
    """Yield the rows of a step, or one that says what failed; steps that fail in the peer alone are left out."""
    try:
        yield from step.run()
    except Exception as error:  # a failure must not hide the rest
        is_peers = step.is_beside and not isinstance(error, AssertionError)
        yield {"status": "left out" if is_peers else "failed", "note": checks.line(error)}


def is_usable(peer: peers.Torch | None) -> bool:
    """Return whether the GPU still computes; frees unused memory."""
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
