"""Products of content and relative position in attention's scores, compiled only if they exist.

`terms` is None, or the result of `terms_of` for a record. relative_forward.py and relative_backward.py implement these
functions for terms (`with_terms`).

In the forward, `place` is (sequence, head, first query of the sequence, queries, its first key, keys) and `block` the
part of it that is computed at once: (first query, end, first key, keys), counted within the sequence. In the backward,
`place` is (sequence, head, key head, first query, queries, first key, keys) and `block` (first query, queries, first
key, keys) of the rows of scores that are computed at once.
"""

from numba import types

from ..._numba import by_types


@by_types
def terms_of(step, relative):
    """Return the terms of the forward; None without `relative`, a marker."""
    return _with("terms_of", relative) or (lambda step, relative: None)


@by_types
def terms_size(terms, queries, keys, head_dim, like):
    """Return the elements of scratch for the terms of a block; not more for fewer queries or keys."""
    return _with("terms_size", terms) or (lambda terms, queries, keys, head_dim, like: 0)


@by_types
def prepare_terms(terms, place, block, head_dim, storage, scratch):
    """Prepare the operands shared by all panels of a block."""
    return _with("prepare_terms", terms) or (lambda terms, place, block, head_dim, storage, scratch: None)


@by_types
def add_terms(terms, tiles, place, block, panel, k_rows, head_dim, storage, scratch, scores, spare):
    """Add to the products (keys, width) of `panel`: (first query, queries, width, first key in the block, keys).

    `k_rows` are the block's keys as `lay_keys` writes them.
    `tiles` is the tiles' state, `spare` a scratch of the size of the scores.
    """
    return _with("add_terms", terms) or (
        lambda terms, tiles, place, block, panel, k_rows, head_dim, storage, scratch, scores, spare: None
    )


@by_types
def backward_terms_of(step, relative):
    """Return the terms of the backward; None without `relative`."""
    return _with("backward_terms_of", relative) or (lambda step, relative: None)


@by_types
def backward_terms_size(terms, queries, keys, head_dim, like):
    """Return the elements of scratch for the terms of a sequence and head; not more for fewer queries or keys."""
    return _with("backward_terms_size", terms) or (lambda terms, queries, keys, head_dim, like: 0)


@by_types
def begin_terms(terms, place, head_dim, scratch):
    """Prepare the operands shared by all blocks of a sequence and head."""
    return _with("begin_terms", terms) or (lambda terms, place, head_dim, scratch: None)


@by_types
def add_terms_to_rows(terms, place, block, head_dim, scratch, products, row):
    """Add the terms to the products of a block, rows of `row` elements."""
    return _with("add_terms_to_rows", terms) or (lambda terms, place, block, head_dim, scratch, products, row: None)


@by_types
def differentiate_terms(terms, place, block, head_dim, scale, scratch, grad_scores, row, grad_q, grad_k):
    """Write the gradients of a block's terms; add to the unscaled ones of its queries and of its keys."""
    return _with("differentiate_terms", terms) or (
        lambda terms, place, block, head_dim, scale, scratch, grad_scores, row, grad_q, grad_k: None
    )


@by_types
def finish_terms(terms, place, head_dim, scale, scratch):
    """Write the sums of the blocks of a sequence and head."""
    return _with("finish_terms", terms) or (lambda terms, place, head_dim, scale, scratch: None)


def with_terms(function):
    """Decorate the implementation of `function` for terms: for a first argument, or `relative`, that is given."""

    def register(implementation):
        _IMPLEMENTATIONS[function.__name__] = implementation
        return implementation

    return register


_IMPLEMENTATIONS = {}


def _with(name, terms):
    """Return a function's implementation for terms; None without terms."""
    return None if isinstance(terms, types.NoneType) else _IMPLEMENTATIONS[name]
