"""Numba's defaults for this package: `helper` for functions called from kernels, `by_types` for those that
depend on the types of what they get, `kernel` for what Python calls, and
`region` and `parallel_kernel` for what threads share.

What threads share is written once, as the body of one task, whose last parameters are its number and how many there
are; it is called without its number:

    @parallel_kernel
    def scale(x, factor, task, tasks):                   # called as scale(x, factor, tasks)
        for i in range(share(len(x), task, tasks), share(len(x), task + 1, tasks)):
            x[i] *= factor

A kernel of several such regions, one after another, or with work before and after them, is a `kernel(regions=True)`
that calls functions decorated with `region` in the same way. What a task needs as scratch is an argument with a part
for each task, made by NumPy: memory that cannot be had within a region is not reported.

No fastmath flags: kernels say `fma` where they want one, so that a sum's rounding does not depend on what LLVM makes of
the loop around it, and infinities and NaN keep their meaning.

Measured (Numba 0.68, 2 cores): a parallel function compiles 0.35 s slower than its serial body and loads from a warm
cache in 3-12 ms (nothing of the 2 s of numba #8085 was seen); a process's very first load costs 0.2-0.4 s more, which
is Numba filling its registries. So a region is a plain `prange` loop over tasks around a serial helper; with a single
task it calls the helper directly, which saves the 3 us of entering the pool. A call of a region within a kernel costs
nothing that could be measured.
"""

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import overload

from ..threads import THREADING_LAYER, one_at_a_time
from .cache import KernelCache

_OUTER = {"nogil": True, "error_model": "numpy"}
_INNER = {**_OUTER, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def helper(function):
    """Compile a function that only kernels call. Not cached by itself: its code is part of the kernels'."""
    return numba.njit(**_INNER)(function)


def inline_helper(function):
    """A small helper that takes or returns vectors: always inlined, so that they stay in registers."""
    return numba.njit(**_INNER, forceinline=True)(function)


def by_types(choose=None, *, inline=False):
    """A function that only kernels call, and that is another one for other types of its arguments.

    `choose` gets these types and returns it, a function of the same parameters; with `inline` it is always inlined.
    """
    if choose is None:
        return functools.partial(by_types, inline=inline)

    @functools.wraps(choose)
    def in_kernels(*arguments):
        raise NotImplementedError(f"{choose.__name__} is for compiled code")

    overload(in_kernels, jit_options={**_OUTER, "forceinline": inline})(choose)
    return in_kernels


def kernel(function=None, *, parallel=False, regions=False):
    """Compile a function that Python calls: cached on disk, without the GIL.

    With `regions` it calls functions made by `region`, with `parallel` it has a `prange` of its own. The last argument
    of both is the number of tasks (`num_threads()` or fewer): with 1 it must not enter the pool (see threads.py).
    """
    if function is None:
        return functools.partial(kernel, parallel=parallel, regions=regions)
    compiled = numba.njit(**_OUTER, parallel=parallel, pipeline_class=KernelCompiler)(function)
    compiled._cache = KernelCache(function)  # what Numba's cache=True does, with a cache of ours
    return one_at_a_time(compiled) if (parallel or regions) and THREADING_LAYER == "workqueue" else compiled


def region(body):
    """A parallel region of the tasks that `body` is one of (see above), for kernels to call."""
    return numba.njit(**_INNER, parallel=True)(_loop_over_tasks(body))


def parallel_kernel(body):
    """A kernel that is one parallel region of the tasks that `body` is one of (see above)."""
    return kernel(_loop_over_tasks(body), parallel=True)


def _loop_over_tasks(body):
    """A function of body's parameters but for the number of the task; Numba wants them spelled out."""
    *parameters, task, tasks = inspect.signature(body).parameters
    given = ", ".join(parameters)
    source = f"""
def {body.__name__}({given}, {tasks}):
    if {tasks} == 1:
        body({given}, 0, 1)
    else:
        for {task} in prange({tasks}):
            body({given}, {task}, {tasks})
"""
    names = {"__name__": body.__module__, "body": helper(body), "prange": numba.prange}
    # Numba reads the lines of the file that the function says it stands in: they are those of body.
    above = "\n" * (body.__code__.co_firstlineno - 2)
    exec(compile(above + source, inspect.getfile(body), "exec"), names)
    return names[body.__name__]


# --- the compiler ----------------------------------------------------------------------------------------------------
#
# Compiles a kernel, and all that it calls, once.
#
# Numba optimises every function and makes machine code of it as soon as it is compiled, with all that it calls linked
# in; a helper that stands five calls deep passes through LLVM five times, and the body of a parallel loop three times
# more. Python calls kernels alone. So the functions that a kernel is made of stay as they were lowered until they are
# linked into it, and LLVM runs once. Measured (Numba 0.68, CPU time): attention forward and backward in float32 70 to
# 20 s.


class KernelCompiler(Compiler):
    """Numba's compiler, for functions that Python calls."""

    def compile_extra(self, function: Any) -> Any:
        """Compile a function for the types that the compiler was made for."""
        codegen = self.state.targetctx.codegen()
        self.state.library = JITCodeLibrary(codegen, function.__qualname__)
        self.state.library.enable_object_caching()
        with _parts_only(codegen):
            return super().compile_extra(function)


class _Part(JITCodeLibrary):
    """The code of a function that is only ever linked into that of another one."""

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name):
        return 0  # as of any function without a wrapper for Python

    @property
    def codegen(self):
        return self

    def set_env(self, name, environment):
        """What Numba tells the code generator; the code is not loaded, and reads no objects of Python."""


@contextmanager
def _parts_only(codegen: Any) -> Iterator[None]:
    """What Numba compiles within the block, under its lock, are parts."""
    before = codegen._library_class
    codegen._library_class = _Part
    try:
        yield
    finally:
        codegen._library_class = before
