"""The LSTM on CUDA: float32, float16 and bfloat16, in float32; the definition is in reference.py.

The offsets stay on the GPU, so that the host does not wait: they are not checked, but clamped to the number of tokens.
"""

import numpy as np

from .. import _cuda
from ..linear.cuda import linear_weight_gradient

MOST_THREADS = 1024
NAMES = ("lstm_forward", "lstm_backward")
KERNELS = _cuda.Source(__file__, "lstm.cu", [it for name in NAMES for it in _cuda.instantiations(name)])


def lstm(input, weight, cu_seqlens):
    """Return the output, (tokens, directions * hidden), the gates and the cells."""
    xp, (directions, _, hidden), tokens = _cuda.array_module(input), weight.shape, len(input)
    output = xp.zeros((tokens, directions * hidden), input.dtype)
    gates, cells = xp.zeros(input.shape, np.float32), xp.zeros(output.shape, np.float32)
    input, weight, cu_seqlens = _cuda.contiguous(input, weight.transpose(0, 2, 1), cu_seqlens)
    _launch("lstm_forward", hidden, 4 * hidden, (input, weight, cu_seqlens, output, gates, cells))
    return output, gates, cells


def lstm_backward(grad_output, weight, cu_seqlens, output, gates, cells):
    """Return the gradients of input and weight."""
    xp, (directions, units, hidden) = _cuda.array_module(output), weight.shape
    grad_gates, grad_weight = xp.zeros(gates.shape, np.float32), xp.zeros(weight.shape, weight.dtype)
    grad, weight, cu_seqlens, gates, cells = _cuda.contiguous(grad_output, weight, cu_seqlens, gates, cells)
    _launch("lstm_backward", hidden, hidden, (grad, weight, cu_seqlens, gates, cells, grad_gates))
    grad_input, places = grad_gates.astype(output.dtype), xp.arange(len(output))
    sequence = xp.searchsorted(cu_seqlens, places, side="right")
    for direction in range(directions):
        is_first = places == (cu_seqlens[sequence] - 1 if direction else cu_seqlens[sequence - 1])
        own = output[:, direction * hidden : (direction + 1) * hidden]
        last = xp.where(is_first[:, None], xp.zeros((), own.dtype), xp.roll(own, -1 if direction else 1, axis=0))
        of_units = xp.ascontiguousarray(grad_input[:, direction * units : (direction + 1) * units])
        grad_weight[direction] = linear_weight_gradient(of_units, last, weight.dtype, None)
    return grad_input, grad_weight


def _launch(kernel, hidden, threads, args):
    """Run `kernel` with about `threads` threads for each sequence and direction; args[2] holds the offsets."""
    weight, sequences = args[1], len(args[2]) - 1
    if not (len(args[0]) and sequences and hidden):
        return
    block = (min(-(-threads // 32) * 32, MOST_THREADS),)
    name, sizes = _cuda.template(kernel, _cuda.c_type(weight.dtype)), (np.int32(len(args[0])), np.int32(hidden))
    KERNELS.launch(name, (sequences, len(weight)), block, (*args, *sizes), shared_bytes=8 * hidden)
