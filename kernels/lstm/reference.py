"""A long short-term memory over packed sequences, in one direction or in both (Hochreiter and Schmidhuber 1997).

With x_t the inputs of a token's gates (input @ weight_ih.T + biases) and W the recurrent weight of a direction:

    i, f, g, o = x_t + W h_{t-1}
    c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)
    h_t = sigmoid(o) tanh(c_t)

where h and c are 0 before the first token of a sequence; the second direction begins at its last token. The order of
the gates is that of torch.nn.LSTM.
"""

import numpy as np

from ..arrays import ieee_arithmetic, widen


@ieee_arithmetic
def lstm(input, weight, cu_seqlens):
    """Return the output and the cells, (tokens, directions * hidden), and between them the gates, 4 times as wide."""
    x, w = widen(input), widen(weight)
    directions, _, hidden = weight.shape
    gates, cells = np.zeros(input.shape, x.dtype), np.zeros((len(x), directions * hidden), x.dtype)
    output = np.zeros_like(cells)
    for direction, rows, before in _steps(cu_seqlens, directions):
        of_gates, own = _columns(direction, 4 * hidden), _columns(direction, hidden)
        known = x[rows, of_gates] + np.where(before >= 0, output[before, own], 0) @ w[direction].T
        i, f, g, o = np.split(known, 4, axis=1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        gates[rows, of_gates] = np.concatenate([i, f, g, o], axis=1)
        cells[rows, own] = f * np.where(before >= 0, cells[before, own], 0) + i * g
        output[rows, own] = o * np.tanh(cells[rows, own])
    return output.astype(input.dtype, copy=False), gates, cells


@ieee_arithmetic
def lstm_backward(grad_output, weight, cu_seqlens, output, gates, cells):
    """Return the gradients of input and weight."""
    w, grad = widen(weight), widen(grad_output)
    directions, _, hidden = weight.shape
    grad_input, grad_weight = np.zeros_like(gates), np.zeros_like(w)
    grad_hidden, grad_cells = grad.copy(), np.zeros_like(cells)
    for direction, rows, before in reversed(list(_steps(cu_seqlens, directions))):
        of_gates, own = _columns(direction, 4 * hidden), _columns(direction, hidden)
        i, f, g, o = np.split(gates[rows, of_gates], 4, axis=1)
        last, tanh = np.where(before >= 0, cells[before, own], 0), np.tanh(cells[rows, own])
        of_output = grad_hidden[rows, own]
        of_cell = grad_cells[rows, own] + of_output * o * (1 - tanh**2)
        parts = of_cell * g * i * (1 - i), of_cell * last * f * (1 - f)
        parts += of_cell * i * (1 - g**2), of_output * tanh * o * (1 - o)
        grad_input[rows, of_gates] = found = np.concatenate(parts, axis=1)
        grad_weight[direction] += found.T @ np.where(before >= 0, widen(output)[before, own], 0)
        has_before = before[:, 0] >= 0
        grad_hidden[before[has_before], own.reshape(1, -1)] += (found @ w[direction])[has_before]
        grad_cells[before[has_before], own.reshape(1, -1)] = (of_cell * f)[has_before]
    return grad_input.astype(output.dtype, copy=False), grad_weight.astype(weight.dtype, copy=False)


def previous_rows(cu_seqlens, tokens, direction):
    """Return the token before each token in a direction, (tokens,); -1 before the first one."""
    before = np.arange(tokens) + (-1, 1)[direction]
    ends = cu_seqlens[:-1] if direction == 0 else cu_seqlens[1:] - 1
    before[ends[np.diff(cu_seqlens) > 0]] = -1
    return before


def _steps(cu_seqlens, directions):
    """Yield (direction, rows, rows before them or -1) of the tokens of all sequences that are computed together."""
    starts, lengths = cu_seqlens[:-1].astype(np.int64), np.diff(cu_seqlens)
    for direction in range(directions):
        for step in range(lengths.max(initial=0)):
            first = starts[lengths > step]
            rows = (first + step if direction == 0 else first + lengths[lengths > step] - 1 - step)[:, None]
            yield direction, rows, rows + (-1, 1)[direction] if step else np.full_like(rows, -1)


def _columns(direction, width):
    return np.arange(direction * width, (direction + 1) * width)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))
