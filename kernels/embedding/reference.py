"""Rows of a table by integer id.

    output[...] = weight[input[...]]

A bfloat16 table takes half the memory, for models that compute in float32: its rows are returned as float32.

The gradient of a table row is the sum of the gradients of its occurrences, added in their order in float64 (a frequent
id, such as the first position, occurs thousands of times). A row that does not occur gets zeros.
"""

import numpy as np

from ..arrays import ieee_arithmetic, is_bfloat16


def embedding(input, weight):
    """Return rows for ids of any shape, (*shape of the ids, dim), in the weight's dtype (float32 for bfloat16)."""
    rows = weight[input]  # np.take rejects uint64 before NumPy 2.1
    return rows.astype(np.float32) if is_bfloat16(weight.dtype) else rows


@ieee_arithmetic
def embedding_backward(grad_output, input, num_embeddings, add_to):
    """Return the gradient of the (num_embeddings, dim) weight, added to the array `add_to` if that is not None."""
    grad_weight = add_to
    if add_to is None:
        grad_weight = np.zeros((num_embeddings, grad_output.shape[-1]), dtype=grad_output.dtype)
    ids = input.reshape(-1)
    if ids.size == 0:
        return grad_weight
    order = np.argsort(ids, kind="stable")
    occurring, first = np.unique(ids[order], return_index=True)
    rows = grad_output.reshape(ids.size, -1)[order].astype(np.float64)
    grad_weight[occurring] += np.add.reduceat(rows, first, axis=0).astype(grad_weight.dtype)
    return grad_weight
