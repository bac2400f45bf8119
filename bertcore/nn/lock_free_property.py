"""Attributes that are computed when they are first read."""

from collections.abc import Callable
from typing import Any


class lock_free_property:
    """functools.cached_property without its lock.

    Before Python 3.12 that is one lock for all instances: threads wait for each other, and a child that is forked while
    another thread holds it waits forever. Two threads that read one instance at once may both compute.
    """

    def __init__(self, function: Callable[[Any], Any]):
        self._function, self._name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = self._function(instance)
        instance.__dict__[self._name] = value  # found before this descriptor from now on
        return value
