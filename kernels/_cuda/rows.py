"""Which variant of a kernel over rows takes the rows of an array (the kernels' side: rows.cuh).

A kernel over rows comes as a pair of templates: NAME_rows<T, GROUP, ITEMS> keeps an aligned row of up to GROUP * ITEMS
elements in the registers of GROUP threads, NAME_any_rows<T, GROUP> takes any rows and reads them more than once.
"""

from . import C_TYPES, c_type, device, is_whole

# (GROUP, ITEMS). Up to 1024 elements a warp has a row to itself and waits for no other.
REGISTER_SHAPES = (*((32, items) for items in (8, 16, 24, 32)), *((128, items) for items in (16, 24, 32)))
REGISTER_THREADS = 128  # of a block
ANY_GROUPS = (32, 512)
WARP_WIDTH = 1024


def instantiations(kernel):
    """Every name expression of a kernel pair, for all dtypes."""
    any_rows = (
        _expression(f"{kernel}_any_rows", c_name, (group,)) for c_name in C_TYPES.values() for group in ANY_GROUPS
    )
    return *register_instantiations(kernel), *any_rows


def register_instantiations(kernel):
    """The instantiations of the template for aligned rows."""
    return tuple(
        _expression(f"{kernel}_rows", c_name, shape) for c_name in C_TYPES.values() for shape in REGISTER_SHAPES
    )


def plan(kernel, array, *beside):
    """(name expression, grid, block) for the rows of a contiguous, non-empty (..., width) array.

    `beside`: the other arrays of the kernel whose rows or columns run along with it, or None.
    """
    width = array.shape[-1]
    aligned = register_plan(kernel, array, *beside)
    if aligned is not None:
        return aligned
    group = ANY_GROUPS[width > WARP_WIDTH]
    threads = max(REGISTER_THREADS, group)
    blocks, name = -(-(array.size // width) * group // threads), f"{kernel}_any_rows"
    return _expression(name, c_type(array.dtype), (group,)), (blocks,), (threads,)


def register_plan(kernel, array, *beside):
    """`plan` by the template for aligned rows; None for rows that are not aligned, or too long."""
    width = array.shape[-1]
    shape = next((shape for shape in REGISTER_SHAPES if width <= shape[0] * shape[1]), None)
    if shape is None or not is_whole(width, array, *beside):
        return None
    group, items = shape
    resident = device().multiprocessors * (3 if items > 24 else 4)  # ROW_BLOCKS in rows.cuh
    blocks = min(-(-(array.size // width) * group // REGISTER_THREADS), resident)
    return _expression(f"{kernel}_rows", c_type(array.dtype), shape), (blocks,), (REGISTER_THREADS,)


def _expression(name, c_name, shape):
    return f"{name}<{', '.join(map(str, (c_name, *shape)))}>"
