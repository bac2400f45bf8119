"""Calls with lists of arrays: a training step changes hundreds at once, mostly those of the previous step.

Checks of an array on a GPU stay valid while the array lives. So a list of the arrays that the same argument had in an
earlier call is not checked again, except for its first array. Only weak references are kept; arrays in host memory are
checked in every call.
"""

import itertools
import operator
import weakref
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from . import _cuda, checks, dispatch

MOST_KNOWN = 64  # lists; beyond that, the one noted first is forgotten

_known: dict[tuple[str, str, int], list[weakref.ref]] = {}  # by operation, argument and the first array's identity


def open_lists(
    package: str,
    backend: str | None,
    lists: dict[str, Any],
    *,
    written: Collection[str] = (),
    passing: Collection[str] = (),
    apart: Collection[str] = (),
    **others: Any,
) -> tuple[dispatch.ArrayCall, list[tuple[Any, ...]]]:
    """Open a call of the operation folder `package`; return (call, the n-th arrays of all lists for each n).

    All arrays are in one place and of one floating dtype that the backend can compute in. The arrays of a tuple have
    one shape and, in host memory, do not overlap.

    Args:
        lists: by the name of the argument, none of them empty; or a single array each.
        written: names of the lists whose arrays are changed in place.
        passing: names of the lists that have new arrays in each call: gradients.
        apart: names of lists that may have another floating dtype.
        others: single arrays, or None; they follow the lists in the call's arrays.
    """
    labels, lists = _labelled(lists)
    known = {name for name, arrays in lists.items() if _is_known(package, name, arrays)}
    named = {
        label: array
        for name, arrays in lists.items()
        for label, array in zip(labels[name], arrays[:1] if name in known else arrays, strict=name not in known)
    }
    call = dispatch.open_call(package, backend, optional=tuple(others), **named, **others)
    natives = dict(zip((*named, *others), call.arrays, strict=True))

    def of(names: Iterable[str]) -> dict[str, Any]:
        return {label: natives[label] for name in names for label in labels[name] if label in named}

    rest = {name: natives[name] for name in others}
    checks.floating(call.backend, **of(name for name in lists if name not in apart), **rest)
    checks.floating("numpy", **of(apart))
    whole = {name: arrays if name in known else list(of([name]).values()) for name, arrays in lists.items()}
    sets = _in_sets(labels, whole)
    checks.updatable(**of(written))
    if call.backend == "cupy" and not _cuda.is_emulated():
        call.on_device()  # all are on one
        for name in lists.keys() - known - set(passing):
            _note(package, name, lists[name], whole[name])
    return call, sets


def _labelled(lists: dict[str, Any]) -> tuple[dict[str, list[str]], dict[str, list[Any]]]:
    """Return the names of the arrays of each list in errors, and the lists."""
    if not isinstance(next(iter(lists.values())), list | tuple):
        return {name: [name] for name in lists}, {name: [array] for name, array in lists.items()}
    checks.of_one_length(**lists)
    return {name: checks.numbers(name, len(arrays)) for name, arrays in lists.items()}, lists


def _is_known(package: str, name: str, arrays: list[Any]) -> bool:
    known = [each() for each in _known.get((package, name, id(arrays[0])), ())]
    is_same = len(known) == len(arrays) and all(map(operator.is_, known, arrays))
    return is_same and all(map(operator.is_not, known, itertools.repeat(None)))  # None if an array is gone


def _note(package: str, name: str, arrays: list[Any], natives: list[Any]) -> None:
    """Remember a list that has passed all checks; except tensors, which become new arrays in each call."""
    if all(map(operator.is_, arrays, natives)):
        if len(_known) >= MOST_KNOWN:
            _known.pop(next(iter(_known)), None)
        _known[package, name, id(arrays[0])] = list(map(weakref.ref, arrays))


def _in_sets(labels: dict[str, list[str]], lists: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    sets = list(zip(*lists.values(), strict=True))
    first, *others = ([array.shape for array in arrays] for arrays in lists.values())
    differ = any(shapes != first for shapes in others)
    if differ or isinstance(sets[0][0], np.ndarray):
        for names, arrays in zip(zip(*labels.values(), strict=True), sets, strict=True):
            # There are hundreds of sets: the checks that name the arrays run only if one is likely to fail.
            if differ or any(itertools.starmap(np.may_share_memory, itertools.combinations(arrays, 2))):
                by_name = dict(zip(names, arrays, strict=True))
                checks.shape(arrays[0].shape, **by_name)
                checks.no_two_overlap(**by_name)
    return sets
