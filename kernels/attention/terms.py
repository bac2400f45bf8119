"""Products of content and relative position in attention's scores, beside query @ key.T: compiled where they are there.

`terms` is None, or what `terms_of` makes of a record for relative_forward.py or relative_backward.py, which implement
these functions for it (`with_terms`).

Of the forward: `place` is (sequence, head, first query of the sequence, queries, its first key, keys), `block` what is
computed together of it: (first query, end, first key, keys), counted within the sequence.
Of the backward: `place` is (sequence, head, head of the keys, first query, queries, first key, keys), `block` (first
query, queries, first key, keys) of the rows of scores that are computed together.
"""

from numba import types
from numba.extending import overload

from .._numba.steps import OPTIONS


def terms_of(step, relative):
    """The terms of the forward; None without `relative`, a marker."""
    raise NotImplementedError("for compiled code")


def terms_size(terms, queries, keys, head_dim, like):
    """How many elements of scratch the terms of a block need; not more for fewer queries or keys."""
    raise NotImplementedError("for compiled code")


def prepare_terms(terms, place, block, head_dim, storage, scratch):
    """What all panels of a block share."""
    raise NotImplementedError("for compiled code")


def add_terms(terms, room, place, block, panel, k_rows, head_dim, storage, scratch, scores, spare):
    """Add to the products (keys, width) of a panel: (first query, queries, width, first key in the block, keys).
    `k_rows` are the block's keys as `lay_keys` gives them.

    `room` is what tiles need, `spare` a scratch of the size of the scores.
    """
    raise NotImplementedError("for compiled code")


def backward_terms_of(step, relative):
    """The terms of the backward; None without `relative`."""
    raise NotImplementedError("for compiled code")


def backward_terms_size(terms, queries, keys, head_dim, like):
    """How many elements of scratch the terms of a sequence and head need; not more for fewer queries or keys."""
    raise NotImplementedError("for compiled code")


def begin_terms(terms, place, head_dim, scratch):
    """What all blocks of a sequence and head share."""
    raise NotImplementedError("for compiled code")


def add_terms_to_rows(terms, place, block, head_dim, scratch, products, row):
    """Add to the products of a block, rows of `row` elements."""
    raise NotImplementedError("for compiled code")


def differentiate_terms(terms, place, block, head_dim, scale, scratch, grad_scores, row, grad_q, grad_k):
    """Write the gradients of a block's terms; add to the unscaled ones of its queries and of its keys."""
    raise NotImplementedError("for compiled code")


def finish_terms(terms, place, head_dim, scale, scratch):
    """Write what the blocks of a sequence and head have summed up."""
    raise NotImplementedError("for compiled code")


def with_terms(function):
    """Decorates what `function` is where there are terms: where its first argument, or `relative`, is not None."""

    def register(implementation):
        _IMPLEMENTATIONS[function.__name__] = implementation
        return implementation

    return register


_IMPLEMENTATIONS = {}


def _overload(function, without):
    def choose(*arguments):
        decides = arguments[1] if function.__name__.endswith("terms_of") else arguments[0]
        return without if isinstance(decides, types.NoneType) else _IMPLEMENTATIONS[function.__name__]

    overload(function, jit_options=OPTIONS, strict=False)(choose)


_overload(terms_of, lambda step, relative: None)
_overload(terms_size, lambda terms, queries, keys, head_dim, like: 0)
_overload(prepare_terms, lambda terms, place, block, head_dim, storage, scratch: None)
_overload(add_terms, lambda terms, room, place, block, panel, k_rows, head_dim, storage, scratch, scores, spare: None)
_overload(backward_terms_of, lambda step, relative: None)
_overload(backward_terms_size, lambda terms, queries, keys, head_dim, like: 0)
_overload(begin_terms, lambda terms, place, head_dim, scratch: None)
_overload(add_terms_to_rows, lambda terms, place, block, head_dim, scratch, products, row: None)
_overload(
    differentiate_terms,
    lambda terms, place, block, head_dim, scale, scratch, grad_scores, row, grad_q, grad_k: None,
)
_overload(finish_terms, lambda terms, place, head_dim, scale, scratch: None)
