"""Loss and gradients of a model."""

from collections.abc import Callable, Mapping
from typing import Any

from bertcore import kernels
from bertcore.nn.parameter import Parameter
from bertcore.tape import Tape, Variable


class Gradients(dict[str, Any]):
    """The gradients of a model's parameters by their names in a checkpoint: {name: array}.

    What one parameter joins (query, key and value) are views of one array, which `gradient_of` finds again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._whole: dict[Parameter, tuple[Any, dict[str, Any]]] = {}

    def add(self, parameter: Parameter, gradient: Any) -> None:
        """Take the gradient of one parameter, of the shape that it computes in."""
        parts, xp = dict(parameter.parts(gradient)), kernels.array_module(gradient)
        if all(xp.may_share_memory(part, gradient) for part in parts.values()):  # else a change would not reach it
            self._whole[parameter] = gradient, parts
        self.update(parts)

    def whole(self, parameter: Parameter) -> Any:
        """The array that was added; None if an entry under the parameter's names has been replaced since."""
        gradient, parts = self._whole.get(parameter, (None, {}))
        is_whole = gradient is not None and all(self.get(name) is part for name, part in parts.items())
        return gradient if is_whole else None


def gradient_of(parameter: Parameter, grads: Mapping[str, Any]) -> Any:
    """The gradient of `parameter` in the shape that it computes in.

    Raises:
        ValueError: which name is missing in `grads`, or which shape or dtype is wrong.
    """
    whole = grads.whole(parameter) if isinstance(grads, Gradients) else None
    if whole is not None:
        return whole
    for name, shape in parameter.expected.items():
        if name not in grads:
            raise ValueError(f"grads has no {name!r}, which is to be trained")
        if grads[name].shape != shape:
            raise ValueError(f"grads[{name!r}] has shape {grads[name].shape}, expected {shape}")
        if grads[name].dtype != parameter.dtype:
            raise ValueError(f"grads[{name!r}] has dtype {grads[name].dtype}, expected {parameter.dtype}")
    return parameter.joined(grads)[0]


def value_and_grad(model: Any) -> Callable[..., tuple[Any, Gradients]]:
    """A function that runs `model` and differentiates its loss.

        out, grads = value_and_grad(model)(input_ids=..., attention_mask=..., labels=...)

    `grads` maps every parameter's name, as it stands in the checkpoint, to the gradient of `out.loss`, of the
    parameter's shape and dtype; parameters that the loss does not depend on get zeros. A shared parameter (tied
    embeddings) appears once, with the sum over its uses; a frozen one does not appear.

    Raises:
        ValueError: if the batch has no labels, so that there is no loss; if the model is in bfloat16 or int8 on the
            CPU, which is for inference alone; and whatever the model raises.
    """

    return lambda *args, **batch: differentiate(model, lambda: model(*args, **batch))


def differentiate(model: Any, run: Callable[[], Any]) -> tuple[Any, Gradients]:
    """The output of `run`, whose `loss` is made of passes through `model`, and the gradients of that loss.

    As `value_and_grad`, for a loss of any operations (bertcore.nn.functional).
    """
    with Tape() as tape:
        out = run()
    variable = getattr(out, "loss", None)
    if variable is None:
        raise ValueError("value_and_grad needs a loss: call a model that has a head, with labels")
    if type(variable) is not Variable:
        raise ValueError("every parameter that the loss depends on is frozen: there is nothing to differentiate")
    out.loss = variable.value
    xp = kernels.array_module(out.loss)
    found = tape.gradients(variable, xp.ones((), out.loss.dtype))
    grads = Gradients()
    for parameter in model.parameters():
        if parameter.is_frozen:
            continue
        gradient = found.get(parameter)
        if gradient is None:
            gradient = xp.zeros(parameter.shape, parameter.dtype)
        grads.add(parameter, gradient)
    return out, grads
