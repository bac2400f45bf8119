"""Late interaction: the score of queries and documents by the best match of each query token, forward and backward."""

import math
from typing import Any, NamedTuple

from .. import checks, dispatch
from ..arguments import Floats, Integers, Offsets
from ..arrays import Array, ArrayT, NativeArray, Operand
from ..operation import Function, Operation


class MaxsimSaved(NamedTuple):
    """The arrays and numbers that `maxsim` keeps for its backward.

    `best`, int32 (documents, query tokens), has the row of `document` that is most similar to each query token, -1 for
    a document without tokens.
    """

    query: Array
    document: Array
    cu_seqlens: Array
    cu_seqlens_q: Array | None
    best: Array


def _forward(
    function: Function, backend: str, save: bool, query: Operand, document: Operand, cu_seqlens: NativeArray,
    cu_seqlens_q: NativeArray | None = None,
) -> Any:  # fmt: skip
    rows, best = function(*_packed(query, document, cu_seqlens, cu_seqlens_q))
    return (rows, MaxsimSaved(query, document, cu_seqlens, cu_seqlens_q, best)) if save else rows


def _backward(function: Function, backend: str, grad_output: NativeArray, saved: MaxsimSaved) -> tuple[Any, Any]:
    grad_query, grad_document = function(grad_output, *_packed(*saved[:4]), saved.best)
    return grad_query.reshape(saved.query.shape), grad_document


def _packed(
    query: Operand, document: Operand, cu_seqlens: NativeArray, cu_seqlens_q: NativeArray | None
) -> tuple[Operand, Operand, NativeArray, NativeArray]:
    """Return the arguments with packed queries."""
    if cu_seqlens_q is not None:
        return query, document, cu_seqlens, cu_seqlens_q
    queries, length, dim = query.shape
    offsets = dispatch.array_module(cu_seqlens).arange(queries + 1, dtype=cu_seqlens.dtype) * length
    return query.reshape(queries * length, dim), document, cu_seqlens, offsets.astype(cu_seqlens.dtype)


def _output(saved: MaxsimSaved) -> tuple[Any, Any]:
    queries = saved.query.shape[0] if saved.cu_seqlens_q is None else saved.cu_seqlens_q.shape[0] - 1
    return (queries, saved.cu_seqlens.shape[0] - 1), saved.query.dtype


MAXSIM = Operation(
    __package__,
    "maxsim",
    {
        "query": Floats("... dim"),
        "document": Floats("tokens dim"),
        "cu_seqlens": Offsets(of="document"),
        "cu_seqlens_q": Offsets(of="query", optional=True),
    },
    saves=MaxsimSaved,
    kept={"best": Integers("documents query_tokens")},
    kept_shapes=lambda given: {"best": (given.cu_seqlens.shape[0] - 1, math.prod(given.query.shape[:-1]))},
    gradients=("query", "document"),
    output=_output,
    forward=_forward,
    backward=_backward,
)


def maxsim(
    query: ArrayT,
    document: ArrayT,
    cu_seqlens: Array,
    *,
    cu_seqlens_q: Array | None = None,
    save: bool = False,
    backend: str | None = None,
) -> Any:
    """Sum over the tokens of a query the highest dot product with a token of a document, for each pair.

    A document without tokens scores 0. Among equal products, the first token counts. Source: Khattab and Zaharia 2020,
    ColBERT, arXiv:2004.12832.

    Args:
        query: vectors of the query tokens, (queries, length, dim), or packed (tokens, dim) with cu_seqlens_q; float32
            or float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on NumPy.
        document: vectors of the tokens of all documents, (tokens, dim), of the dtype of `query`.
        cu_seqlens: integer offsets of the documents, (documents + 1,), from 0 to the number of tokens. On a GPU their
            values are not checked.
        cu_seqlens_q: the same for packed queries.
        save: also return the state that `maxsim_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        (queries, documents), of the kind and dtype of `query`; with `save`, a tuple of it and a `MaxsimSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape or offset.
        BackendUnavailable: if the backend cannot run here.
    """
    call = MAXSIM.open(backend, query, document, cu_seqlens, cu_seqlens_q)
    _check_query("query", *call.given)
    return call.run(save)


def maxsim_backward(grad_output: ArrayT, saved: MaxsimSaved, *, backend: str | None = None) -> tuple[ArrayT, ArrayT]:
    """Return the gradients of `maxsim`: each query token and its best match receive each other's vector.

    Args:
        grad_output: the gradient with respect to the output, (queries, documents), of its dtype.
        saved: the state that `maxsim` returned with `save=True`.
        backend: as for `maxsim`; errors are the same.

    Returns:
        (grad_query, grad_document), of the shapes and dtype of query and document.
    """
    call = MAXSIM.open_backward(backend, grad_output, saved)
    query, document, cu_seqlens, cu_seqlens_q, best = call.saved
    _check_query("saved.query", query, document, cu_seqlens, cu_seqlens_q)
    tokens = query.shape[0] if cu_seqlens_q is not None else query.shape[0] * query.shape[1]
    checks.shape((cu_seqlens.shape[0] - 1, tokens), **{"saved.best": best})
    checks.in_range("saved.best", best, document.shape[0], also=-1)
    return call.run()


def _check_query(name: str, query: Operand, document: Operand, cu_seqlens: object, cu_seqlens_q: object) -> None:
    shape = (None, document.shape[1]) if cu_seqlens_q is not None else (None, None, document.shape[1])
    checks.shape(shape, **{name: query})
