"""Products of content and relative position in attention's scores, beside query @ key.T: compiled where they are there.

`terms` is None, or what `terms_of` makes of a record for relative_forward.py or relative_backward.py, which implement
these functions for it (`with_terms`).

Of the forward: `place` is (sequence, head, first query of the sequence, queries, its first key, keys), `block` what is
computed together of it: (first query, end, first key, keys), counted within the sequence.
Of the backward: `place` is (sequence, head, head of the keys, first query, queries, first key, keys), `block` (first
query, queries, first key, keys) of the rows of scores that are computed together.
"""

from numba import types

from ..._numba import by_types


@by_types
def terms_of(step, relative):
    """The terms of the forward; None without `relative`, a marker."""
    return _with("terms_of", relative) or (lambda step, relative: None)


@by_types
def terms_size(terms, queries, keys, head_dim, like):
    """How many elements of scratch the terms of a block need; not more for fewer queries or keys."""
    return _with("terms_size", terms) or (lambda terms, queries, keys, head_dim, like: 0)


@by_types
def prepare_terms(terms, place, block, head_dim, storage, scratch):
    """What all panels of a block share."""
    return _with("prepare_terms", terms) or (lambda terms, place, block, head_dim, storage, scratch: None)


@by_types
def add_terms(terms, tiles, place, block, panel, k_rows, head_dim, storage, scratch, scores, spare):
    """Add to the products (keys, width) of a panel: (first query, queries, width, first key in the block, keys).
    `k_rows` are the block's keys as `lay_keys` writes them.

    `tiles` is what tiles need, `spare` a scratch of the size of the scores.
    """
    return _with("add_terms", terms) or (
        lambda terms, tiles, place, block, panel, k_rows, head_dim, storage, scratch, scores, spare: None
    )


@by_types
def backward_terms_of(step, relative):
    """The terms of the backward; None without `relative`."""
    return _with("backward_terms_of", relative) or (lambda step, relative: None)


@by_types
def backward_terms_size(terms, queries, keys, head_dim, like):
    """How many elements of scratch the terms of a sequence and head need; not more for fewer queries or keys."""
    return _with("backward_terms_size", terms) or (lambda terms, queries, keys, head_dim, like: 0)


@by_types
def begin_terms(terms, place, head_dim, scratch):
    """What all blocks of a sequence and head share."""
    return _with("begin_terms", terms) or (lambda terms, place, head_dim, scratch: None)


@by_types
def add_terms_to_rows(terms, place, block, head_dim, scratch, products, row):
    """Add to the products of a block, rows of `row` elements."""
    return _with("add_terms_to_rows", terms) or (lambda terms, place, block, head_dim, scratch, products, row: None)


@by_types
def differentiate_terms(terms, place, block, head_dim, scale, scratch, grad_scores, row, grad_q, grad_k):
    """Write the gradients of a block's terms; add to the unscaled ones of its queries and of its keys."""
    return _with("differentiate_terms", terms) or (
        lambda terms, place, block, head_dim, scale, scratch, grad_scores, row, grad_q, grad_k: None
    )


@by_types
def finish_terms(terms, place, head_dim, scale, scratch):
    """Write what the blocks of a sequence and head have summed up."""
    return _with("finish_terms", terms) or (lambda terms, place, head_dim, scale, scratch: None)


def with_terms(function):
    """Decorates what `function` is where there are terms: where its first argument, or `relative`, is not None."""

    def register(implementation):
        _IMPLEMENTATIONS[function.__name__] = implementation
        return implementation

    return register


_IMPLEMENTATIONS = {}


def _with(name, terms):
    """What a function is where there are terms; None where there are none."""
    return None if isinstance(terms, types.NoneType) else _IMPLEMENTATIONS[name]
