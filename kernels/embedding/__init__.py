"""Look up rows of a table by their ids, forward and backward."""

from typing import Any, NamedTuple

from .. import checks
from ..arguments import Floats, Integer, Integers
from ..arrays import Array, ArrayT, Operand
from ..operation import Function, Operation


class EmbeddingSaved(NamedTuple):
    """The arrays and numbers that `embedding` keeps for its backward."""

    input: Array
    num_embeddings: int


def _forward(function: Function, backend: str, save: bool, input: Operand, weight: Operand) -> Any:
    output = function(input, weight)
    return (output, EmbeddingSaved(input, weight.shape[0])) if save else output


EMBEDDING = Operation(
    __package__,
    "embedding",
    {"input": Integers("..."), "weight": Floats("num_embeddings dim", stored=True)},
    saves=EmbeddingSaved,
    kept={"num_embeddings": Integer(minimum=0, bits=64)},
    gradients=("weight",),
    output=lambda saved: ((*saved.input.shape, None), None),
    forward=_forward,
)


def embedding(input: Array, weight: ArrayT, *, save: bool = False, backend: str | None = None) -> Any:
    """Return weight[input]: the row of the table for each id.

    Args:
        input: integer ids from 0 to num_embeddings - 1, of any shape. On a GPU their values are not checked.
        weight: the table, (num_embeddings, dim); float32, float64 or bfloat16 on Numba, float32, float16 or bfloat16
            on CUDA, any floating dtype on NumPy.
        save: also return the state that `embedding_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        (*shape of input, dim), of the kind and dtype of `weight`; on NumPy and Numba float32 from a bfloat16 table.
        With `save`, a tuple of it and an `EmbeddingSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape, and for an id outside the table (which and where).
        BackendUnavailable: if the backend cannot run here.
    """
    call = EMBEDDING.open(backend, input, weight)
    input, weight = call.given
    checks.in_range("input", input, weight.shape[0])
    return call.run(save)


def embedding_backward(
    grad_output: ArrayT, saved: EmbeddingSaved, *, add_to: ArrayT | None = None, backend: str | None = None
) -> ArrayT:
    """Return the gradient of the table: each row is the sum of the gradients at its id's positions, or zero.

    Args:
        grad_output: the gradient with respect to the output, (*shape of input, dim).
        saved: the state that `embedding` returned with `save=True`.
        add_to: an array of the result's shape and dtype, C-contiguous, writable and apart from the others, or None. The
            gradient is added to it in place, only in rows whose ids occur, and it is returned.
        backend: as for `embedding`; errors are the same.

    Returns:
        (num_embeddings, dim), of the kind and dtype of `grad_output`.
    """
    call = EMBEDDING.open_backward(backend, grad_output, saved, add_to=add_to)
    checks.in_range("saved.input", call.saved.input, call.saved.num_embeddings)
    grad_output, add_to = call.grad_output, call.options["add_to"]
    if add_to is not None:
        checks.same_dtype("grad_output", grad_output, add_to=add_to)
        checks.shape((saved.num_embeddings, grad_output.shape[-1]), add_to=add_to)
        checks.updatable(add_to=add_to)
        checks.overlaps_none("add_to", {"add_to": add_to, "grad_output": grad_output, "input": call.saved.input})
    return call.run()
