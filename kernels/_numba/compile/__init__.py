"""Decorators that compile kernels and the functions they call.

`kernel` is for functions that Python calls, `helper` and `inline_helper` for those that kernels call, and `by_types`
for helpers that depend on the types of their arguments. `region` and `parallel_kernel` run a function in several
threads: it is the body of one task, whose last parameters are the task's number and the number of tasks, and is called
without the former:

    @parallel_kernel
    def scale(x, factor, task, tasks):                   # called as scale(x, factor, tasks)
        for i in range(share(len(x), task, tasks), share(len(x), task + 1, tasks)):
            x[i] *= factor

A kernel with several regions, or with work before and after them, is a `kernel(regions=True)` that calls functions
decorated with `region` in the same way. The scratch buffer of a task is an argument with a part for each task,
allocated by NumPy: a failed allocation within a region is not reported.

No fastmath flags: kernels say `fma` where they want one, so that rounding does not depend on what LLVM makes of the
loop around it, and infinities and NaN keep their meaning.

A region is a plain `prange` loop over tasks around a serial helper. A single task calls the helper directly, which
saves the 3 us of entering the thread pool.
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
    """Compile a function that only kernels call; it is cached as a part of them."""
    return numba.njit(**_INNER)(function)


def inline_helper(function):
    """Compile a small helper that is always inlined, so that the vectors it takes and returns stay in registers."""
    return numba.njit(**_INNER, forceinline=True)(function)


def by_types(choose=None, *, inline=False):
    """Make a function for kernels whose implementation depends on the types of its arguments.

    `choose` takes these types and returns a function with the same parameters; with `inline` it is always inlined.
    """
    if choose is None:
        return functools.partial(by_types, inline=inline)

    @functools.wraps(choose)
    def in_kernels(*arguments):
        raise NotImplementedError(f"{choose.__name__} is for compiled code")

    overload(in_kernels, jit_options={**_OUTER, "forceinline": inline})(choose)
    return in_kernels


def kernel(function=None, *, parallel=False, regions=False):
    """Compile a function that Python calls; it is cached on disk and runs without the GIL.

    With `regions` it calls functions made by `region`, with `parallel` it has a `prange` itself. Both take the number
    of tasks (`num_threads()` or fewer) as last argument: with 1 they must not enter the thread pool (threads.py).
    """
    if function is None:
        return functools.partial(kernel, parallel=parallel, regions=regions)
    compiled = numba.njit(**_OUTER, parallel=parallel, pipeline_class=KernelCompiler)(function)
    compiled._cache = KernelCache(function)  # as with cache=True
    return one_at_a_time(compiled) if (parallel or regions) and THREADING_LAYER == "workqueue" else compiled


def region(body):
    """Make a parallel region of the tasks of `body`, for kernels to call."""
    return numba.njit(**_INNER, parallel=True)(_loop_over_tasks(body))


def parallel_kernel(body):
    """Make a kernel that is one parallel region of the tasks of `body`."""
    return kernel(_loop_over_tasks(body), parallel=True)


def _loop_over_tasks(body):
    """Return a function with the parameters of `body` except the task's number; Numba wants them spelled out."""
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
    # Numba reads source lines of the file that the function names: those of body.
    above = "\n" * (body.__code__.co_firstlineno - 2)
    exec(compile(above + source, inspect.getfile(body), "exec"), names)
    return names[body.__name__]


# --- the compiler -----------------------------------------------------------------------------------------------------
#
# Numba optimises every function as soon as it is compiled, with all that it calls linked in: a helper five calls deep
# passes through LLVM five times. Python calls kernels alone, so their parts stay unoptimised until they are linked into
# a kernel, and LLVM runs once: attention's forward and backward compile in 20 instead of 70 s.


class KernelCompiler(Compiler):
    """Numba's compiler for functions that Python calls."""

    def compile_extra(self, function: Any) -> Any:
        """Compile a function for the types that the compiler was made for."""
        codegen = self.state.targetctx.codegen()
        self.state.library = JITCodeLibrary(codegen, function.__qualname__)
        self.state.library.enable_object_caching()
        with _parts_only(codegen):
            return super().compile_extra(function)


class _Part(JITCodeLibrary):
    """The code of a function that is only linked into others."""

    def _optimize_final_module(self):
        pass

    def _finalize_final_module(self):
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name):
        return 0  # as for functions without a Python wrapper

    @property
    def codegen(self):
        return self

    def set_env(self, name, environment):
        """Ignore the environment: the code is not loaded by itself."""


@contextmanager
def _parts_only(codegen: Any) -> Iterator[None]:
    """Make Numba compile parts only, within the block and under its lock."""
    before = codegen._library_class
    codegen._library_class = _Part
    try:
        yield
    finally:
        codegen._library_class = before
