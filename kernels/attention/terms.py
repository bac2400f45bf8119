"""Further terms of attention's scores beside query @ key.T, for kernels that are attention's with such terms.

`terms` is None, or a tuple of whichever kernel has them: it implements these functions for that (`with_terms`).

Of the forward: `place` is (sequence, head, first query of the sequence, queries, its first key, keys), `block` what is
computed together of it: (first query, end, first key, keys), counted within the sequence.
Of the backward: `sequences` is as attention/cpu.py makes it, `block` (sequence, head, first query, queries): rows of
scores that are computed together.
"""

from numba import types
from numba.extending import overload

from .._numba.steps import OPTIONS


def terms_size(terms, queries, keys, head_dim, like):
    """How many elements of scratch the terms of a block need; not more for fewer queries or keys."""
    raise NotImplementedError("for compiled code")


def prepare_terms(terms, place, block, k_words, head_dim, storage, scratch):
    """What all panels of a block share; `k_words` are the rows of its keys, whole vectors apart."""
    raise NotImplementedError("for compiled code")


def add_terms(terms, place, block, i, count, width, k_words, head_dim, storage, scratch, scores, spare):
    """Add to the products (keys, width) of the queries from i on; `spare` is a scratch of the size of the scores."""
    raise NotImplementedError("for compiled code")


def backward_terms_size(terms, sequences, head_dim, like):
    """How many elements of scratch the terms of a sequence and head need."""
    raise NotImplementedError("for compiled code")


def begin_terms(terms, sequences, s, h, head_dim, scratch):
    """What all blocks of a sequence and head share."""
    raise NotImplementedError("for compiled code")


def add_terms_to_rows(terms, sequences, block, head_dim, scratch, products, row):
    """Add to the products of a block, rows of `row` elements."""
    raise NotImplementedError("for compiled code")


def differentiate_terms(terms, sequences, block, head_dim, scale, scratch, grad_scores, row, grad_q, grad_k, columns):
    """Write the gradients of a block's terms; add to the unscaled ones of its queries and of all keys."""
    raise NotImplementedError("for compiled code")


def finish_terms(terms, sequences, s, h, head_dim, scale, scratch):
    """Write what the blocks of a sequence and head have summed up."""
    raise NotImplementedError("for compiled code")


def without_terms(function):
    """Decorates what `function` is where `terms` is None."""
    return _implement(function, lambda terms: isinstance(terms, types.NoneType))


def with_terms(function):
    """Decorates what `function` is where there are terms."""
    return _implement(function, lambda terms: not isinstance(terms, types.NoneType))


def _implement(function, suits):
    def register(implementation):
        def choose(terms, *arguments):
            return implementation if suits(terms) else None

        overload(function, jit_options=OPTIONS, strict=False)(choose)
        return implementation

    return register


@without_terms(terms_size)
def _no_size(terms, queries, keys, head_dim, like):
    return 0


@without_terms(prepare_terms)
def _prepare_nothing(terms, place, block, k_words, head_dim, storage, scratch):
    pass


@without_terms(add_terms)
def _add_nothing(terms, place, block, i, count, width, k_words, head_dim, storage, scratch, scores, spare):
    pass


@without_terms(backward_terms_size)
def _no_backward_size(terms, sequences, head_dim, like):
    return 0


@without_terms(begin_terms)
def _begin_nothing(terms, sequences, s, h, head_dim, scratch):
    pass


@without_terms(add_terms_to_rows)
def _add_nothing_to_rows(terms, sequences, block, head_dim, scratch, products, row):
    pass


@without_terms(differentiate_terms)
def _differentiate_nothing(
    terms, sequences, block, head_dim, scale, scratch, grad_scores, row, grad_q, grad_k, columns
):
    pass


@without_terms(finish_terms)
def _finish_nothing(terms, sequences, s, h, head_dim, scale, scratch):
    pass
