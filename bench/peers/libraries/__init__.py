"""The libraries that are compared. Each loads the checkpoint in its own way and is timed by its own fastest door."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.peers.cases import Batch

OURS = "bertcore"


class Unsupported(Exception):
    """The library does not have this precision on this machine."""


class Session(NamedTuple):
    """A loaded model.

    Attributes:
        bind: brings a batch into the library's own arrays, once; the call that it returns is what is timed.
        hidden: brings what the call returned to the last hidden state, (texts, longest, hidden), in NumPy.
        note: what a reader of the figures should know.
    """

    bind: Callable[[Batch], Callable[[], Any]]
    hidden: Callable[[Any], np.ndarray] = np.asarray
    note: str = ""


class Peer(NamedTuple):
    """A library under the name it has in the results.

    Attributes:
        precisions: what it may be able to compute in.
        needs: modules that must be installed.
        load: (folder of the checkpoint, precision, threads) -> Session; may raise Unsupported.
    """

    name: str
    precisions: Sequence[str]
    needs: Sequence[str]
    load: Callable[[Path, str, int], Session]


def missing_reason(peer: Peer) -> str | None:
    """What is not installed and how to install it, or None."""
    missing = [name for name in peer.needs if importlib.util.find_spec(name) is None]
    return f'{" and ".join(missing)} not installed: pip install -e ".[bench,parity]"' if missing else None


def all_peers() -> dict[str, Peer]:
    """Every library by name, ours first."""
    names = ("ours", "pytorch", "onnx_runtime", "open_vino", "c_translate")
    modules = (importlib.import_module(f"{__name__}.{name}") for name in names)
    return {peer.name: peer for module in modules for peer in module.PEERS}
