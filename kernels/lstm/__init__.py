"""A long short-term memory (LSTM) over packed sequences, in one direction or both; forward and backward."""

from typing import Any, NamedTuple

from .. import checks
from ..arguments import Floats, Offsets, WideFloats
from ..arrays import Array, ArrayT, NativeArray, Operand
from ..operation import Function, Operation


class LSTMSaved(NamedTuple):
    """The arrays that `lstm` keeps for its backward.

    `gates`, (tokens, directions * 4 * hidden), and `cells`, (tokens, directions * hidden), are those of each token
    after their functions, in the dtype that the operation computes in.
    """

    weight: Array
    cu_seqlens: Array
    output: Array
    gates: Array
    cells: Array


def _forward(
    function: Function, backend: str, save: bool, input: Operand, weight: Operand, cu_seqlens: NativeArray
) -> Any:
    output, gates, cells = function(input, weight, cu_seqlens)
    return (output, LSTMSaved(weight, cu_seqlens, output, gates, cells)) if save else output


def _kept_shapes(given: Any) -> dict[str, Any]:
    directions, _, hidden = given.weight.shape
    return {"gates": given.input.shape, "cells": (given.input.shape[0], directions * hidden)}


LSTM = Operation(
    __package__,
    "lstm",
    {"input": Floats("tokens gates"), "weight": Floats("directions units hidden"), "cu_seqlens": Offsets(of="input")},
    saves=LSTMSaved,
    kept={"output": Floats("tokens width"), "gates": WideFloats("tokens gates"), "cells": WideFloats("tokens width")},
    kept_shapes=_kept_shapes,
    gradients=("input", "weight"),
    output=lambda saved: (saved.cells.shape, saved.weight.dtype),
    forward=_forward,
)


def lstm(
    input: ArrayT, weight: ArrayT, cu_seqlens: Array, *, save: bool = False, backend: str | None = None
) -> Any:  # fmt: skip
    """Return the hidden states of an LSTM over packed sequences, like torch.nn.LSTM without its first product.

    Source: Hochreiter and Schmidhuber 1997, Long short-term memory.

    Args:
        input: input @ weight_ih.T + bias_ih + bias_hh of each token, (tokens, directions * 4 * hidden): first the
            input, forget, cell and output gates of the forward direction, then those of the backward one; float32 or
            float64 on Numba, float32, float16 or bfloat16 on CUDA, any floating dtype on NumPy.
        weight: torch.nn.LSTM's weight_hh of each direction, (directions, 4 * hidden, hidden), of the dtype of `input`;
            a second direction runs from the last token of a sequence to its first.
        cu_seqlens: integer offsets of the sequences, (sequences + 1,), from 0 to the number of tokens. On a GPU their
            values are not checked.
        save: also return the state that `lstm_backward` needs.
        backend: "numpy", "numba" or "cupy"; by default the active one (see `use_backend`).

    Returns:
        (tokens, directions * hidden), of the kind and dtype of `input`; with `save`, a tuple of it and an `LSTMSaved`.

    Raises:
        TypeError: for a wrong kind of array or dtype.
        ValueError: for a wrong shape or offset.
        BackendUnavailable: if the backend cannot run here.
    """
    call = LSTM.open(backend, input, weight, cu_seqlens)
    _check_weight("weight", call.given[1])
    directions, units, _ = call.given[1].shape
    checks.shape((None, directions * units), input=call.given[0])
    return call.run(save)


def lstm_backward(grad_output: ArrayT, saved: LSTMSaved, *, backend: str | None = None) -> tuple[ArrayT, ArrayT]:
    """Return the gradients of `lstm`.

    Args:
        grad_output: the gradient with respect to the output, (tokens, directions * hidden), of its dtype.
        saved: the state that `lstm` returned with `save=True`.
        backend: as for `lstm`; errors are the same.

    Returns:
        (grad_input, grad_weight), of the shapes and dtype of input and weight.
    """
    call = LSTM.open_backward(backend, grad_output, saved)
    weight, _, output, gates, _ = call.saved
    _check_weight("saved.weight", weight)
    directions, units, hidden = weight.shape
    checks.shape((None, directions * hidden), **{"saved.output": output})
    checks.shape((None, directions * units), **{"saved.gates": gates})
    return call.run()


def _check_weight(name: str, weight: Operand) -> None:
    directions, _, hidden = weight.shape
    if directions not in (1, 2):
        raise ValueError(f"{name} has shape {tuple(weight.shape)}, expected 1 or 2 directions in the first axis")
    checks.shape((directions, 4 * hidden, hidden), **{name: weight})
