"""Late interaction on CUDA: float32, float16 and bfloat16, in float32; the definition is in reference.py.

The offsets stay on the GPU, so that the host does not wait: they are not checked, but clamped to the number of tokens.
"""

import numpy as np

from .. import _cuda

TILE, ROWS, THREADS = 32, 8, 128  # the first two as in maxsim.cu
NAMES = ("maxsim_peaks", "maxsim_sums", "maxsim_query_backward", "maxsim_document_backward")
KERNELS = _cuda.Source(__file__, "maxsim.cu", [it for name in NAMES for it in _cuda.instantiations(name)])


def maxsim(query, document, cu_seqlens, cu_seqlens_q):
    """Return scores (queries, documents), and best, int32 (documents, query tokens), the row of each maximum or -1."""
    xp, (tokens, dim) = _cuda.array_module(query), query.shape
    queries, documents = len(cu_seqlens_q) - 1, len(cu_seqlens) - 1
    peaks, best = xp.zeros((documents, tokens), np.float32), xp.full((documents, tokens), -1, np.int32)
    scores = xp.zeros((queries, documents), query.dtype)
    query, document, cu_seqlens, cu_seqlens_q = _cuda.contiguous(query, document, cu_seqlens, cu_seqlens_q)
    if best.size:
        args = query, document, cu_seqlens, peaks, best, *map(np.int32, (tokens, len(document), dim))
        _launch("maxsim_peaks", query, (documents, -(-tokens // TILE)), (TILE, ROWS), args)
    if scores.size:
        args = peaks, cu_seqlens_q, scores, *map(np.int32, (queries, documents, tokens))
        _launch("maxsim_sums", query, (-(-documents // THREADS), queries), (THREADS,), args)
    return scores, best


def maxsim_backward(grad_output, query, document, cu_seqlens, cu_seqlens_q, best):
    """Return the gradients of query and document."""
    xp, (tokens, dim), (documents, _) = _cuda.array_module(query), query.shape, best.shape
    grad_query, grad_document = xp.zeros(query.shape, query.dtype), xp.zeros(document.shape, document.dtype)
    if not (tokens and dim and documents):
        return grad_query, grad_document
    grad, query, document, best = _cuda.contiguous(grad_output, query, document, best)
    queries, numbers = _sequence_of_rows(xp, cu_seqlens_q, tokens), _sequence_of_rows(xp, cu_seqlens, len(document))
    sizes = tuple(map(np.int32, (documents, tokens, dim)))
    _launch("maxsim_query_backward", query, (tokens,), (THREADS,), (grad, document, queries, best, grad_query, *sizes))
    if len(document):
        args = grad, query, queries, best, numbers, grad_document, *sizes
        _launch("maxsim_document_backward", query, (len(document),), (THREADS,), args)
    return grad_query, grad_document


def _sequence_of_rows(xp, cu_seqlens, rows):
    """Return the number of the sequence of each row, int32."""
    found = xp.searchsorted(cu_seqlens, xp.arange(rows, dtype=cu_seqlens.dtype), side="right") - 1
    return found.astype(np.int32)


def _launch(kernel, like, grid, block, args):
    KERNELS.launch(_cuda.template(kernel, _cuda.c_type(like.dtype)), grid, block, args)
