"""Late interaction, with q_1 .. q_n the token vectors of a query and d_1 .. d_m those of a document.

    score = sum_i max_j q_i . d_j

and 0 for a document without tokens. The gradient goes to each q_i and to the first d_j with the maximum.
"""

import numpy as np

from ..arrays import ieee_arithmetic, widen


@ieee_arithmetic
def maxsim(query, document, cu_seqlens, cu_seqlens_q):
    """Return scores (queries, documents), and best, int32 (documents, query tokens), the row of each maximum or -1."""
    q, d = widen(query), widen(document)
    documents = len(cu_seqlens) - 1
    peaks, best = np.zeros((documents, len(q)), q.dtype), np.full((documents, len(q)), -1, np.int32)
    for number, (first, last) in enumerate(spans(cu_seqlens)):
        if first < last:
            products = q @ d[first:last].T
            best[number] = products.argmax(axis=1)
            peaks[number] = np.take_along_axis(products, best[number][:, None], axis=1)[:, 0]
            best[number] += first
    scores = [peaks[:, first:last].sum(axis=1) for first, last in spans(cu_seqlens_q)]
    return np.reshape(scores, (len(scores), documents)).astype(query.dtype), best


@ieee_arithmetic
def maxsim_backward(grad_output, query, document, cu_seqlens, cu_seqlens_q, best):
    """Return the gradients of query and document."""
    grad, q, d = widen(grad_output), widen(query), widen(document)
    grad_query, grad_document = np.zeros_like(q), np.zeros_like(d)
    shares = np.repeat(grad, np.diff(cu_seqlens_q), axis=0)  # (query tokens, documents)
    for number, rows in enumerate(best):
        if cu_seqlens[number] < cu_seqlens[number + 1]:
            share = shares[:, number, None]
            grad_query += share * d[rows]
            np.add.at(grad_document, rows, share * q)
    return grad_query.astype(query.dtype, copy=False), grad_document.astype(document.dtype, copy=False)


def spans(cu_seqlens):
    """Return (first, last) of each sequence."""
    return zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)
