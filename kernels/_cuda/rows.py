"""Which variant of a kernel over rows takes rows of a given width (the kernels' side: rows.cuh).

A kernel over rows comes as a pair of templates: <T, GROUP, ITEMS> keeps a row of up to GROUP * ITEMS elements in the
registers of GROUP threads, <T, GROUP> takes rows of any width and reads them more than once.
"""

from . import C_TYPES, c_type, is_aligned

# (GROUP, ITEMS). Up to 1024 elements a warp has a row to itself and waits for no other.
REGISTER_SHAPES = ((32, 8), (32, 32), (256, 16), (512, 32))
LONG_SHAPE = (512,)
WARP_WIDTH = 1024
VECTOR_BYTES = 16


def instantiations(in_registers, long):
    """Every name expression of a kernel pair, for all dtypes."""
    return tuple(
        _expression(name, c_name, shape)
        for c_name in C_TYPES.values()
        for name, shape in (*((in_registers, shape) for shape in REGISTER_SHAPES), (long, LONG_SHAPE))
    )


def any_width_instantiations(kernel):
    """Every name expression of a kernel <T, GROUP> that takes rows of any width, by a warp or by a block."""
    return tuple(f"{kernel}<{c_name}, {group}>" for c_name in C_TYPES.values() for group in (32, *LONG_SHAPE))


def plan_any_width(kernel, array):
    """(name expression, grid, block) of such a kernel for the rows of a contiguous, non-empty (..., width) array."""
    width = array.shape[-1]
    group, rows_per_block = (32, 4) if width <= WARP_WIDTH else (*LONG_SHAPE, 1)
    blocks = -(-array.size // width // rows_per_block)
    return _expression(kernel, c_type(array.dtype), (group,)), (blocks,), (group * rows_per_block,)


def plan(in_registers, long, array):
    """(name expression, grid, block) of the variant for the rows of a contiguous, non-empty (..., width) array."""
    width = array.shape[-1]
    per_vector = VECTOR_BYTES // array.dtype.itemsize
    on_boundaries = width % per_vector == 0 and is_aligned(array, VECTOR_BYTES)
    room = width if on_boundaries else width + per_vector - 1
    fitting = (shape for shape in REGISTER_SHAPES if room <= shape[0] * shape[1])
    shape = next(fitting, LONG_SHAPE)
    name = long if shape is LONG_SHAPE else in_registers
    rows_per_block = 4 if shape[0] == 32 else 1  # as ROW_THREADS in rows.cuh
    blocks = -(-array.size // width // rows_per_block)
    return _expression(name, c_type(array.dtype), shape), (blocks,), (shape[0] * rows_per_block,)


def _expression(name, c_name, shape):
    return f"{name}<{', '.join(map(str, (c_name, *shape)))}>"
