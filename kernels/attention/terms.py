"""Further terms of attention's scores beside query @ key.T, for kernels that are the forward kernel with such terms.

`terms` is None, or a tuple of whichever kernel has them: it overloads these three functions for its type. `place` is
(sequence, head, first query of the sequence, queries, its first key, keys), `block` what is computed together of it:
(first query, end, first key, keys), counted within the sequence.
"""

from numba import types
from numba.extending import overload

from .._numba.steps import OPTIONS


def terms_size(terms, queries, keys, head_dim, like):
    """How many elements of scratch the terms of a block need; not more for fewer queries or keys."""
    raise NotImplementedError("for compiled code")


def prepare_terms(terms, place, block, k_words, head_dim, word, scratch):
    """What all panels of a block share; `k_words` are the rows of its keys, whole vectors apart."""
    raise NotImplementedError("for compiled code")


def add_terms(terms, place, block, i, count, width, k_words, head_dim, word, scratch, scores, spare):
    """Add to the products (keys, width) of the queries from i on; `spare` is a scratch of the size of the scores."""
    raise NotImplementedError("for compiled code")


@overload(terms_size, jit_options=OPTIONS)
def _no_size(terms, queries, keys, head_dim, like):
    if isinstance(terms, types.NoneType):
        return lambda terms, queries, keys, head_dim, like: 0
    return None


@overload(prepare_terms, jit_options=OPTIONS)
def _prepare_nothing(terms, place, block, k_words, head_dim, word, scratch):
    if isinstance(terms, types.NoneType):
        return lambda terms, place, block, k_words, head_dim, word, scratch: None
    return None


@overload(add_terms, jit_options=OPTIONS)
def _add_nothing(terms, place, block, i, count, width, k_words, head_dim, word, scratch, scores, spare):
    if isinstance(terms, types.NoneType):
        return lambda terms, place, block, i, count, width, k_words, head_dim, word, scratch, scores, spare: None
    return None
