"""Cross entropy of logits against class indices, one loss per row.

    lse_r  = log sum_c exp(input_rc)
    loss_r = lse_r - input[r, target_r],   0 where target_r is ignore_index

The gradient of row r is grad_r * (softmax(input_r) - onehot(target_r)), with softmax = exp(input - lse); an ignored
row's is zeros, whatever the row holds. Losses and lse are float32 (float64 for float64 input): half precision would
round a loss to three digits before the mean is taken.
"""

import numpy as np

from ..precision import widen


@np.errstate(invalid="ignore", divide="ignore")
def cross_entropy(input, target, ignore_index):
    """(losses, lse), each (rows,), from (rows, classes) logits and (rows,) integer targets."""
    x = widen(input)
    peak = x.max(axis=1, initial=-np.inf)
    shift = np.where(np.isinf(peak), 0, peak)
    log_total = np.log(np.exp(x - shift[:, None]).sum(axis=1))
    counted = np.flatnonzero(target != ignore_index)
    losses = np.zeros_like(log_total)
    # log_total - (x - shift) keeps the digits that lse - x loses when all logits are large.
    losses[counted] = log_total[counted] - (x[counted, target[counted]] - shift[counted])
    return losses, log_total + shift


@np.errstate(invalid="ignore")
def cross_entropy_backward(grad_losses, input, target, lse, ignore_index):
    """Gradient of the (rows, classes) logits from that of the (rows,) losses and the lse of the forward pass."""
    counted = np.flatnonzero(target != ignore_index)
    difference = np.exp(widen(input)[counted] - widen(lse)[counted, None])
    difference[np.arange(counted.size), target[counted]] -= 1
    grad_input = np.zeros(input.shape, dtype=input.dtype)
    grad_input[counted] = (difference * widen(grad_losses)[counted, None]).astype(input.dtype)
    return grad_input
