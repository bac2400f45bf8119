"""Rows of a table by integer id, forward and backward."""

from typing import Any

from .. import checks, dispatch
from ..precision import is_bfloat16


def embedding(input: Any, weight: Any, *, backend: str | None = None) -> Any:
    """weight[input]: the row of the table for every id.

    Args:
        input: integer ids from 0 to num_embeddings - 1, of any shape. On a GPU their values are not checked.
        weight: the table, (num_embeddings, dim); float32, float64 or bfloat16 on Numba, float32, float16 or bfloat16
            on CUDA, any floating dtype on NumPy.
        backend: "numpy", "numba" or "cupy"; by default the one in force (see `use_backend`).

    Returns:
        (*shape of input, dim), of the kind and dtype of `weight`; on NumPy and Numba float32 from a bfloat16 table.

    Raises:
        TypeError, ValueError: for a wrong kind of array, dtype or shape, and for an id outside the table (which
            and where).
        BackendUnavailable: if the backend cannot run here.
    """
    call = dispatch.open_call(__package__, backend, input=input, weight=weight)
    input, weight = call.arrays
    if call.backend != "numba" or not is_bfloat16(weight.dtype):  # Numba widens bfloat16, but does not compute in it
        checks.floating(call.backend, weight=weight)
    checks.integer(input=input)
    checks.shape((None, None), weight=weight)
    checks.in_range("input", input, weight.shape[0])
    return call.run("embedding", input, weight)


def embedding_backward(
    grad_output: Any, input: Any, num_embeddings: int, *, add_to: Any = None, backend: str | None = None
) -> Any:
    """The gradient of the table: each row is the sum of the gradients where its id stands, or zeros.

    Args:
        grad_output: the gradient with respect to the output, (*shape of input, dim).
        input: the ids, as for `embedding`.
        num_embeddings: the number of rows of the table.
        add_to: an array of the result's shape and dtype, C-contiguous, writable and apart from the others, or None. The
            gradient is added to it in place, in the rows that occur alone, and it is returned.
        backend: as for `embedding`.

    Returns:
        (num_embeddings, dim), of the kind and dtype of `grad_output`.

    Raises:
        As `embedding`.
    """
    arrays = {"grad_output": grad_output, "input": input, "add_to": add_to}
    call = dispatch.open_call(__package__, backend, optional=("add_to",), **arrays)
    grad_output, input, add_to = call.arrays
    checks.floating(call.backend, grad_output=grad_output, add_to=add_to)
    checks.integer(input=input)
    checks.shape((*input.shape, None), grad_output=grad_output)
    num_embeddings = checks.integer_number("num_embeddings", num_embeddings, minimum=0)
    if num_embeddings >= 1 << 63:
        raise ValueError(f"num_embeddings is an integer of {num_embeddings.bit_length()} bits, expected at most 63")
    checks.in_range("input", input, num_embeddings)
    if add_to is not None:
        checks.shape((num_embeddings, grad_output.shape[-1]), add_to=add_to)
        checks.updatable(add_to=add_to)
        checks.overlaps_none("add_to", {"add_to": add_to, "grad_output": grad_output, "input": input})
    return call.run("embedding_backward", grad_output, input, num_embeddings, add_to)
