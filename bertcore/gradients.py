"""Loss and gradients of a model."""

from collections.abc import Callable
from typing import Any

from bertcore import kernels
from bertcore.tape import Tape


def value_and_grad(model: Any) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """A function that runs `model` and differentiates its loss.

        out, grads = value_and_grad(model)(input_ids=..., attention_mask=..., labels=...)

    `grads` maps every parameter's name, as it stands in the checkpoint, to the gradient of `out.loss`, of the
    parameter's shape and dtype; parameters that the loss does not depend on get zeros. A shared parameter (tied
    embeddings) appears once, with the sum over its uses.

    Raises:
        ValueError: if the batch has no labels, so that there is no loss; if the model is in bfloat16 or int8 on the
            CPU, which is for inference alone; and whatever the model raises.
    """

    def call(*args: Any, **batch: Any) -> tuple[Any, dict[str, Any]]:
        with Tape() as tape:
            out = model(*args, **batch)
        variable = getattr(out, "loss", None)
        if variable is None:
            raise ValueError("value_and_grad needs a loss: call a model that has a head, with labels")
        out.loss = variable.value
        xp = kernels.array_module(out.loss)
        found = tape.gradients(variable, xp.ones((), out.loss.dtype))
        grads = {}
        for parameter in model.parameters():
            gradient = found.get(parameter)
            if gradient is None:
                gradient = xp.zeros(parameter.shape, parameter.dtype)
            grads.update(parameter.parts(gradient))
        return out, grads

    return call
