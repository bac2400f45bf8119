"""Rotary position embeddings on CUDA: float32, float16 and bfloat16, in float32; the definition is in reference.py.

The positions stay on the GPU and are not checked here: a position beyond the tables gives NaN.
"""

import numpy as np

from .. import _cuda

MOST_THREADS, WARP, VECTOR_BYTES = 256, 32, 16
KERNELS = _cuda.Source(__file__, "rotary.cu", _cuda.instantiations("rotary_tokens", _cuda.FLAGS))


def rotary(input, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """Rotate (tokens, ..., head_dim) by rows `positions` of the tables, or by the row of each token's position."""
    return _turn(input, cos, sin, cu_seqlens, positions, interleaved, inplace, 1)


def rotary_backward(grad_output, cos, sin, cu_seqlens, positions, interleaved, inplace):
    """Return the gradient with respect to the input of `rotary`."""
    return _turn(grad_output, cos, sin, cu_seqlens, positions, interleaved, inplace, -1)


def _turn(input, cos, sin, cu_seqlens, positions, interleaved, inplace, sign):
    xp = _cuda.array_module(input)
    unit_columns = input.strides[-1] == input.itemsize or input.shape[-1] <= 1
    source = input if unit_columns else xp.ascontiguousarray(input)
    target = source if inplace else xp.empty(input.shape, input.dtype)
    if input.size:
        positions = None if positions is None else positions.astype(np.int64, copy=False)
        cos, sin, offsets, positions = _cuda.contiguous(cos, sin, cu_seqlens, positions)
        tokens, *between, head_dim = input.shape
        parts, heads = between if len(between) == 2 else (1, *between)
        sequences = 0 if offsets is None else len(offsets) - 1
        args = (
            source, *_strides(source), target, *_strides(target), cos, sin, offsets, np.int32(sequences), positions,
            np.int64(cos.shape[0]), np.int32(cos.shape[1]), np.int32(parts), np.int32(heads), np.int32(head_dim),
            np.float32(sign),
        )  # fmt: skip
        kernel = _cuda.template("rotary_tokens", _cuda.c_type(input.dtype), bool(interleaved))
        vectors = parts * heads * -(-head_dim * input.dtype.itemsize // VECTOR_BYTES)
        KERNELS.launch(kernel, (tokens,), (min(MOST_THREADS, -(-vectors // WARP) * WARP),), args)
    if inplace and source is not input:
        input[...] = source
    return input if inplace else target


def _strides(array):
    """Return the elements from one token, part and head to the next."""
    steps = [stride // array.itemsize for stride in array.strides[:-1]]
    return tuple(map(np.int64, steps if len(steps) == 3 else (steps[0], 0, steps[1])))
