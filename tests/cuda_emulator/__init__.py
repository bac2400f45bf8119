"""CUDA kernels on the CPU: a runtime for bertcore.kernels._cuda that runs .cu files, unchanged, over NumPy arrays.

    with _cuda.use_runtime(Emulator(schedule="backward")):
        output = softmax_cuda.softmax(numpy_array, dim=-1)

Every CUDA thread is a fiber (include/scheduler.h); g++ compiles the kernel text behind include/cuda_emulator.h, once
per content. It detects, as an EmulatorError that names kernel, block, thread and, if known, the source line:

  - accesses beyond a shared array or an argument: each lies between inaccessible pages (include/memory.h)
  - reads of unwritten shared memory: it starts as NaN
  - data of cp.async used before it was waited for: it arrives at the wait, or under the schedule "random" some time
    before, and is NaN until then; and copies that are never committed
  - a missing barrier: results differ between the schedules, which let warps run ahead of each other in different orders
  - with races=True, every access of two threads to one byte that no barrier orders, whatever it does to the results
  - divergent barriers, deadlocks, lanes that disagree about a warp operation
  - misaligned vector accesses, indices beyond an array of known size, arguments that do not fit the kernel's parameters

Functions that CUDA allows to be off by some units in the last place are off by up to as much (include/device.h),
and products on tensor cores are cut off, not rounded (include/ptx.h), so that tolerances hold for a GPU.

It cannot show speed, bank conflicts, occupancy, and one region of a shared array overrunning into the next.
"""

from .runtime import SCHEDULES, Emulator, EmulatorError, unavailable_reason

__all__ = ["SCHEDULES", "Emulator", "EmulatorError", "unavailable_reason"]
