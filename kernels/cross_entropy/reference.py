"""Cross entropy of logits against class indices, one loss per row.

    lse_r  = log sum_c exp(input_rc)
    loss_r = lse_r - input[r, target_r],   0 where target_r is ignore_index

The gradient of row r is grad_r * (softmax(input_r) - onehot(target_r)); that of an ignored row is zeros, whatever its
values. With m_r the row's peak, softmax = exp((input - m) - log sum exp(input - m)), and lse is kept as those two
terms: rounded as one number it would lose the digits of the second if logits are large. Losses and lse are float32
(float64 for float64 input): half precision would round a loss to three digits before the mean is taken.
"""

import numpy as np

from ..arrays import ieee_arithmetic, widen


@ieee_arithmetic
def cross_entropy(input, target, ignore_index):
    """Return (losses, lse), (rows,) and (rows, 2), from (rows, classes) logits and (rows,) integer targets."""
    x = widen(input)
    peak = x.max(axis=1, initial=-np.inf)
    shift = np.where(np.isinf(peak), 0, peak)
    log_total = np.log(np.exp(x - shift[:, None]).sum(axis=1))
    counted = np.flatnonzero(target != ignore_index)
    losses = np.zeros_like(log_total)
    # log_total - (x - shift) keeps the digits that lse - x loses if all logits are large.
    losses[counted] = log_total[counted] - (x[counted, target[counted]] - shift[counted])
    return losses, np.stack([shift, log_total], axis=1)


@ieee_arithmetic
def cross_entropy_backward(grad_losses, input, target, lse, ignore_index, out):
    """Return the gradient of the (rows, classes) logits, in `out` if given, which may be the input.

    It is computed from the gradient of the (rows,) losses and the lse of the forward.
    """
    counted = np.flatnonzero(target != ignore_index)
    shift, log_total = widen(lse)[counted].T[:, :, None]
    difference = np.exp(widen(input)[counted] - shift - log_total)
    difference[np.arange(counted.size), target[counted]] -= 1
    grad_input = np.empty(input.shape, input.dtype) if out is None else out
    grad_input[...] = 0
    grad_input[counted] = (difference * widen(grad_losses)[counted, None]).astype(input.dtype)
    return grad_input
