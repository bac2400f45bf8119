"""The nearest codes, with q a query and c a row of the corpus.

distance = number of bits of q xor c        (uint8, the least first)
product = sum_i q_i c_i                     (int8, the greatest first)
"""

import numpy as np

BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int32)  # of each byte


def nearest_codes(query, corpus, top_k):
    """Return scores, int32, and rows, int64, (queries, kept)."""
    kept = min(top_k, len(corpus))
    scores, rows = np.empty((len(query), kept), np.int32), np.empty((len(query), kept), np.int64)
    for number, code in enumerate(query):
        if query.dtype == np.uint8:
            found, sign = BITS[corpus ^ code].sum(axis=1, dtype=np.int32), 1
        else:  # float64 holds the sums, and has fast products
            found, sign = (corpus.astype(np.float64) @ code.astype(np.float64)).astype(np.int32), -1
        rows[number] = np.argsort(sign * found, kind="stable")[:kept]
        scores[number] = found[rows[number]]
    return scores, rows
