"""Handing out work: threads take the next task from a shared counter, so that a slow thread holds up no other."""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def take_task(typingctx, counter):
    """counter[0]++, atomically; the value before. `counter` is a C-contiguous int64 array, zero at the start."""

    def codegen(context, builder, sig, args):
        data = context.make_array(counter)(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "monotonic")

    return types.int64(counter), codegen
