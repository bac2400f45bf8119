"""Which CUDA graphs of a model are kept, and when a pass becomes one: to a GPU what `Recordings` are to a CPU.

There every operation has a form that is noted, and compiled code runs the notes. On a GPU the stream notes what it is
given: one capture holds our kernels, CuPy's and cuBLASLt's alike, with their arguments as they are, and one launch does
all of it again, so that Python's time for each kernel is spent once for each layout and not for each pass.

A pass is captured when its layout comes for the second time:

1. What it is given is copied into arrays that stay.
2. The pass runs twice. After the first run whatever is made at a first use (compiled kernels, tables) is there, the
   second shows what memory a pass takes, and when (arena.py).
3. It is captured on a stream of its own, with all its arrays in one block of memory. The graphs of a model share the
   block, the largest that one of them needs: what a pass leaves there is read before the next starts (workspace.py).

What the pass does must depend on the layout alone: it may not read the GPU's values, take arrays from the host or keep
something for later. A pass that does, or that CUDA refuses, is NotCaptured, and no other of its model is tried.

A capture takes the time of three passes. Where graphs are let go before they are launched often enough to give it back
(parameters are replaced all the time, or there are more layouts than are kept), or where memory does not suffice,
layouts have to come more often before one is captured, twice as often each time.
"""

import importlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .workspace import Workspace

MOST_KEPT = 32  # graphs of one model
MOST_SEEN = 256  # layouts remembered
WORTH = 3  # launches that take less time, with the capture before them, than as many passes without a graph
MOST_PATIENCE = 64
NEVER = float("-inf")


class NotCaptured(RuntimeError):
    """A pass that runs but cannot be a CUDA graph, and why."""


@dataclass
class _Kept:
    """A graph, the workspace's block when it was captured, and how often it was given away."""

    graph: Any
    block: Any
    uses: int = 0


class GraphCache:
    """The graphs of a model, for any number of threads and streams: those of one version of what they read.

    Args:
        most_workspaces: how many passes may be under way at once, each in memory of its own.

    Attributes:
        lock: to be held while a graph is asked for, and until its workspace is held or its pass given to a stream.
    """

    def __init__(self, most_workspaces: int = 1):
        self.lock = threading.Lock()
        self._most_workspaces = most_workspaces
        self._version: Any = None
        self._kept: OrderedDict[tuple[Workspace, Any], _Kept] = OrderedDict()  # the last used are the last
        self._seen: OrderedDict[tuple[int, Any], float] = OrderedDict()  # how often layouts came, by GPU
        self._patience = 1  # how often a layout comes before it is captured
        self._workspaces: dict[int, list[Workspace]] = {}
        self._is_refused = False  # whether a pass was NotCaptured

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphCache, (self._most_workspaces,)  # a copy has arrays at other addresses

    @property
    def is_empty(self) -> bool:
        """Whether it keeps nothing of a graph."""
        return not self._kept and not any(workspace.retired for workspace in self._all_workspaces())

    def keep_only(self, version: Any) -> None:
        """Let the graphs of other versions go, and their memory."""
        if version != self._version:
            self._drop_all()
            self._seen.clear()
            self._version = version
        for workspace in self._all_workspaces():
            workspace.let_go()

    def graph(self, version: Any, key: Any, capture: Callable[[Workspace], Any]) -> Any:
        """The graph of a layout in a workspace that nobody holds: the one that is kept, or that `capture` makes now.

        None where the pass is to be computed without: the layout has not come often enough, all workspaces are held, or
        memory does not suffice.

        Args:
            version: that of what passes read.
            key: the layout, and what else a pass depends on.
            capture: makes a graph in a workspace; it returns None where a pass of this layout shall never be one.

        Raises:
            NotCaptured: where the pass cannot be captured; no other is tried then.
        """
        self.keep_only(version)
        if self._is_refused:
            return None
        workspace = self._free_workspace()
        kept = self._kept.get((workspace, key))
        if kept is None:
            kept = self._captured(workspace, key, capture)
        if kept is not None:
            self._kept.move_to_end((workspace, key))
            kept.uses += 1
        return kept and kept.graph

    def _all_workspaces(self) -> list[Workspace]:
        return [workspace for workspaces in list(self._workspaces.values()) for workspace in workspaces]

    def _free_workspace(self) -> Workspace | None:
        device = _device()
        workspaces = self._workspaces.setdefault(device, [])
        for workspace in workspaces:
            if workspace.is_free:
                return workspace
        if len(workspaces) == self._most_workspaces:
            return None
        workspaces.append(Workspace(device))
        return workspaces[-1]

    def _captured(self, workspace: Workspace | None, key: Any, capture: Callable[[Workspace], Any]) -> _Kept | None:
        place = _device(), key
        times = self._seen.setdefault(place, 0)
        self._seen[place] += 1
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        if times < self._patience or workspace is None:
            return None
        try:
            with workspace.in_turn():
                graph = capture(workspace)
        except NotCaptured:
            self._is_refused = True
            self._drop_all()
            raise
        except MemoryError:  # beside what a pass takes by itself: later there may be more
            self._seen[place] = 0
            self._wait_longer()
            return None
        if graph is None:
            self._seen[place] = NEVER
            return None
        self._retire_smaller(workspace)
        kept = self._kept[workspace, key] = _Kept(graph, workspace.block)
        if len(self._kept) > MOST_KEPT:
            self._drop([next(iter(self._kept))])
        return kept

    def _drop_all(self) -> None:
        self._drop(list(self._kept))
        for workspace in self._all_workspaces():
            workspace.block = None

    def _drop(self, places: list[tuple[Workspace, Any]]) -> None:
        """Retire graphs that will not be launched again; their layouts, if they come, have to come as often as new."""
        uses = sum(self._kept[place].uses for place in places)
        if uses < WORTH * len(places):
            self._wait_longer()
        elif places:
            self._patience = 1
        for workspace, key in places:
            self._seen.pop((workspace.device, key), None)
        self._retire(places)

    def _retire_smaller(self, workspace: Workspace) -> None:
        """Graphs in a block that has become too small would keep it beside the larger one: they are captured again."""
        others = [place for place, kept in self._kept.items() if place[0] is workspace]
        self._retire(place for place in others if self._kept[place].block is not workspace.block)

    def _retire(self, places: Iterable[tuple[Workspace, Any]]) -> None:
        for workspace, key in places:
            workspace.retired.append(self._kept.pop((workspace, key)))

    def _wait_longer(self) -> None:
        self._patience = min(2 * self._patience, MOST_PATIENCE)


def _device() -> int:
    return importlib.import_module("cupy").cuda.runtime.getDevice()
