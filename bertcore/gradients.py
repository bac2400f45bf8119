"""Loss and gradients of a model, also of a loss that the caller computes from its outputs."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import numpy as np

from bertcore import kernels
from bertcore.kernels.arrays import NativeArray, is_bfloat16
from bertcore.nn.parameter import Block, Parameter
from bertcore.tape import Tape, Variable, current_tape, value_of, within

_factor: ContextVar[Any] = ContextVar("bertcore_gradient_factor", default=None)

Loss = Callable[[Any], tuple[Any, Mapping[str, Any]]]
NO_GRADIENT = ("mems", "attention_components")
Output = TypeVar("Output")


class HasParameters(Protocol):
    """A model, or parameters that are trained together."""

    def parameters(self) -> Iterator[Parameter]: ...


class TrainedModel(HasParameters, Protocol):
    """A model as training uses it: a `Model`, a `ReplacedTokenModel` or a `PeftModel`."""

    training: bool
    dtype: str

    @property
    def config(self) -> Any: ...
    @property
    def spec(self) -> Any: ...
    @property
    def arguments(self) -> tuple[str, ...]: ...
    def train(self, seed: int | None = None) -> Any: ...
    def eval(self) -> Any: ...
    def gradient_checkpointing_enable(self) -> None: ...
    def save_pretrained(self, folder: str | os.PathLike[str]) -> None: ...
    def load_weights(self, folder: str | os.PathLike[str]) -> None: ...
    def __call__(self, *args: Any, **inputs: Any) -> Any: ...


class Gradients(dict[str, Any]):
    """The gradients of a model's parameters by their names in a checkpoint: {name: array}.

    Tensors that one parameter joins (query, key and value) are views of one array, which `gradients_of` finds again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._whole: dict[Parameter, tuple[Any, dict[str, Any]]] = {}

    def add(self, parameter: Parameter, gradient: NativeArray) -> None:
        """Add the gradient of one parameter, in the shape that it computes in."""
        if len(parameter.names) == 1 and parameter.layout is None:
            name = parameter.names[0]
            self._whole[parameter], self[name] = (gradient, {name: gradient}), gradient
            return
        parts = dict(parameter.parts(gradient))
        self.update(parts)
        for part in parts.values():
            # A change of a part in memory of its own would not reach the whole array.
            if part is not gradient and not kernels.array_module(gradient).may_share_memory(part, gradient):
                return
        self._whole[parameter] = gradient, parts

    def accumulate(self, more: Mapping[str, Any]) -> None:
        """Add the gradients of another pass in place; each parameter's array is its own (`tape.Tape.gradients`).

        Gradients of parameters that had none here are taken as they are.
        """
        for name, gradient in more.items():
            if name in self:
                self[name] += gradient
            else:
                self[name] = gradient
        if isinstance(more, Gradients):
            self._whole = more._whole | self._whole

    def whole(self, parameters: Sequence[Parameter]) -> list[Any]:
        """Return the arrays that were added, or None where an entry under a parameter's names has been replaced."""
        found = (self._whole.get(parameter, (None, {})) for parameter in parameters)
        kept = ((whole, all(self.get(name) is part for name, part in parts.items())) for whole, parts in found)
        return [whole if is_kept else None for whole, is_kept in kept]


def gradients_of(parameters: Sequence[Parameter], grads: Mapping[str, Any]) -> list[Any]:
    """Return the gradients of `parameters` in the shapes that they compute in.

    Raises TypeError or ValueError for a name that `grads` lacks, a non-array, or a wrong shape or dtype.
    """
    whole = grads.whole(parameters) if isinstance(grads, Gradients) else [None] * len(parameters)
    pairs = zip(parameters, whole, strict=True)
    return [_joined(parameter, grads) if gradient is None else gradient for parameter, gradient in pairs]


def _joined(parameter: Parameter, grads: Mapping[str, Any]) -> NativeArray:
    for name, shape in parameter.expected.items():
        if name not in grads:
            raise ValueError(f"grads has no {name!r}, expected the gradient of each trained tensor")
        if not hasattr(grads[name], "dtype"):
            raise TypeError(f"grads[{name!r}] is {type(grads[name]).__name__}, expected an array of shape {shape}")
        if grads[name].shape != shape:
            raise ValueError(f"grads[{name!r}] has shape {grads[name].shape}, expected {shape}")
        if grads[name].dtype != parameter.dtype:
            raise ValueError(f"grads[{name!r}] has dtype {grads[name].dtype}, expected {parameter.dtype}")
    return parameter.joined(grads)[0]


def multiplied_gradients(factor: NativeArray | None) -> AbstractContextManager[None]:
    """Return a block that multiplies all gradients by `factor`, a 0-d array or None, from the loss on.

    This keeps small gradients from vanishing in float16.
    """
    return within(_factor, factor)


def _multiplied(gradient: NativeArray) -> NativeArray:
    factor = _factor.get()
    return gradient if factor is None else _scaled(gradient, factor)


def zero_gradients(model: HasParameters) -> Gradients:
    """Return gradients of zero in the memory of the backend in force."""
    grads = Gradients()
    for parameter in model.parameters():
        if not parameter.is_frozen:
            grads.add(parameter, kernels.to_backend(np.zeros(parameter.shape, parameter.dtype)))
    return grads


def value_and_grad(model: Block, loss: Loss | None = None) -> Callable[..., tuple[Any, Gradients]]:
    """Return a function that runs `model` and differentiates its loss.

        out, grads = value_and_grad(model)(input_ids=..., attention_mask=..., labels=...)

    `grads` maps every parameter's name, as it stands in the checkpoint, to the gradient of `out.loss`, of the
    parameter's shape and dtype; parameters that the loss does not depend on get zeros. A shared parameter (tied
    embeddings) appears once, with the sum over its uses; a frozen one does not appear.

    Args:
        model: of any class.
        loss: the caller's own loss instead of the model's: `loss(out)` is given the model's output and returns the
            loss and its gradients with respect to the output's fields, {"logits": array, ...}, each as `vjp` takes
            them; `out.loss` then is that loss. An example, the squared length of each sequence's first hidden state:

                def loss(out):
                    first = out.last_hidden_state[:, 0]
                    gradient = np.zeros_like(out.last_hidden_state)
                    gradient[:, 0] = 2 * first
                    return (first**2).sum(), {"last_hidden_state": gradient}

    Raises:
        ValueError: if the batch has no labels, so that there is no loss; if the model is in bfloat16 or int8 on the
            CPU, which is only for inference; also errors of the model, and of `vjp` for the gradients of `loss`.
    """
    if not callable(model):
        raise TypeError(f"model is {type(model).__qualname__}, expected a model")
    if loss is None:
        return lambda *args, **batch: differentiate(model, lambda: model(*args, **batch))
    return lambda *args, **batch: differentiate(model, lambda: with_loss(model(*args, **batch), loss))


def vjp(model: Any) -> Callable[..., tuple[Any, Callable[[Mapping[str, Any]], Gradients]]]:
    """Return a function that runs `model` and returns its output, and its pullback from outputs to parameters.

        out, pullback = vjp(model)(input_ids=..., output_hidden_states=True)
        grads = pullback({"last_hidden_state": gradient, "hidden_states": (None, gradient_1, None)})

    A gradient has its field's shape and is converted to its dtype and memory; its values at padding are not read. The
    gradient of a field that is a tuple is a sequence of that length; entries may be None. Every field has a gradient
    except `mems` and `attention_components`: hidden states, attentions (the probabilities), pooler_output, logits, and
    the model's own loss. `grads` are as in `value_and_grad`.

    The pullback can be called once, since it uses up the arrays that the pass kept. It raises:
        ValueError: for a field that the output lacks or that has no gradient, a wrong shape, and if every parameter
            that the fields depend on is frozen.
        TypeError: for a gradient that is not an array of real numbers.
        RuntimeError: for the second call, and for parameters that have changed since the pass: products multiply by
            them in the backward, too.
    """

    def call(*args: Any, **batch: Any) -> tuple[Any, Callable[[Mapping[str, Any]], Gradients]]:
        version = model.version
        with Tape() as tape:
            out = model(*args, **batch)
            fields = dict(out.items())  # reads, and so records, fields that are computed when read

        def pullback(gradients: Mapping[str, Any]) -> Gradients:
            if not fields:
                raise RuntimeError("pullback is called a second time, but the pass's arrays are gone: call vjp again")
            if model.version != version:
                raise RuntimeError("the parameters have changed since: call pullback before the optimiser's step")
            found = list(_pairs(fields, gradients))
            _check_any(variable for variable, _ in found)
            fields.clear()
            with kernels.on_device_of(found[0][1]):
                variables, seeds = zip(*((variable, _multiplied(seed)) for variable, seed in found), strict=True)
                return _of_parameters(model, tape.gradients(tape.record(None, variables, lambda _: seeds), True))

        return _without_variables(out), pullback

    return call


def with_loss(out: Any, loss: Loss) -> Any:
    """Return `out` with the loss `loss(out)`, as for `value_and_grad`; under a tape it has gradients."""
    fields = dict(out.items())
    result = loss(_without_variables(_copy(out)))
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
        raise TypeError(f"loss returned {_described(result)}, expected (loss, {{field: gradient}})")
    value, gradients = result
    found, tape = list(_pairs(fields, gradients)), current_tape()
    out.loss = value
    if tape is not None:
        _check_any(variable for variable, _ in found)
        variables, seeds = zip(*found, strict=True)
        out.loss = tape.record(value, variables, lambda grad: tuple(_scaled(seed, grad) for seed in seeds))
    return out


def _scaled(array: NativeArray, factor: float | NativeArray) -> NativeArray:
    """Return array * factor in the array's dtype, as an array even if it has no axes."""
    return kernels.array_module(array).asarray(array * factor, array.dtype)


def differentiate(
    model: HasParameters, run: Callable[[], Any], take: Callable[[Parameter, Any], None] | None = None
) -> tuple[Any, Gradients]:
    """Return the output of `run`, whose `loss` is computed by passes through `model`, and the gradients of that loss.

    As `value_and_grad`, for a loss of any operations (bertcore.nn.functional). Given `take`, the gradients are not
    returned: it is called with each parameter and its gradient, in the shape that the parameter computes in, as soon as
    the backward pass has no more use for the parameter, which may change then.
    """
    with Tape() as tape:
        out = run()
    variable = getattr(out, "loss", None)
    if variable is None:
        raise ValueError("value_and_grad needs a loss: call a model that has a head, with labels")
    _check_any([variable])
    out = _without_variables(out)
    xp = kernels.array_module(out.loss)
    with kernels.on_device_of(out.loss):
        seed = _multiplied(xp.ones((), getattr(out.loss, "dtype", None)))
        if take is None:
            return out, _of_parameters(model, tape.gradients(variable, seed))
        left = {parameter: None for parameter in model.parameters() if not parameter.is_frozen}

        def deliver(parameter: Any, gradient: NativeArray) -> None:
            if parameter not in left:
                raise ValueError(f"the loss depends on {parameter!r}, which is not a parameter of the model to train")
            del left[parameter]
            take(parameter, _of_trained_names(parameter, gradient))

        for parameter, gradient in tape.gradients(variable, seed, deliver).items():
            deliver(parameter, gradient)
        for parameter in list(left):
            deliver(parameter, xp.zeros(parameter.shape, parameter.dtype))
        return out, Gradients()


def _of_trained_names(parameter: Parameter, gradient: NativeArray) -> NativeArray:
    """Set to 0 the parts of a gradient whose tensors are not trained; return the gradient."""
    if parameter.trained_names is not None:
        for name, piece in zip(parameter.names, parameter.pieces(gradient), strict=True):
            if name not in parameter.trained_names:
                piece[...] = 0
    return gradient


def _of_parameters(model: HasParameters, found: Mapping[Any, Any]) -> Gradients:
    """Return the gradients by name, from those by parameter."""
    grads, parameters = Gradients(), list(model.parameters())
    for parameter in parameters:
        if parameter.is_frozen:
            continue
        gradient = found.get(parameter)
        if gradient is None:
            xp = kernels.array_module(next(iter(found.values())))
            gradient = xp.zeros(parameter.shape, parameter.dtype)
        grads.add(parameter, _of_trained_names(parameter, gradient))
    adapters = [parameter.adapter for parameter in parameters if parameter.adapter is not None]
    factors = (factor for adapter in adapters for factor in adapter.parameters())
    if any(factor in found and factor.names[0] not in grads for factor in factors):
        raise ValueError("this model has adapters: differentiate the PeftModel made from it")
    return grads


def _check_any(items: Iterable[Any]) -> None:
    if not any(type(item) is Variable for item in items):
        raise ValueError("every parameter that the loss depends on is frozen: there is nothing to differentiate")


def _pairs(fields: Mapping[str, Any], gradients: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield (field or part of one, its gradient in its dtype and memory) for each gradient that is not None."""
    if not isinstance(gradients, Mapping):
        raise TypeError(f"gradients is {type(gradients).__name__}, expected a mapping of fields to gradients")
    if all(gradient is None for gradient in gradients.values()):
        raise ValueError("gradients is empty, expected those of at least one field")
    for name, gradient in ((name, each) for name, each in gradients.items() if each is not None):
        if name not in fields:
            raise ValueError(f"gradients has {name!r}, which the output does not have; it has {', '.join(fields)}")
        if name in NO_GRADIENT:
            raise ValueError(f"gradients has {name!r}, through which no gradient flows")
        yield from _parts(name, fields[name], gradient)


def _parts(name: str, field: Any, gradient: Any) -> Iterator[tuple[Any, Any]]:
    if type(field) is tuple:
        if not isinstance(gradient, tuple | list) or len(gradient) != len(field):
            expected = f"a tuple of {len(field)}, whose entries may be None"
            raise ValueError(f"gradients[{name!r}] is {_described(gradient)}, expected {expected}")
        for index, (part, of_part) in enumerate(zip(field, gradient, strict=True)):
            if of_part is not None:
                yield from _parts(f"{name}[{index}]", part, of_part)
        return
    value = value_of(field)
    xp, given = kernels.array_module(value), gradient
    if xp is np and kernels.array_module(given) is not np:
        raise TypeError(f"gradients[{name!r}] is on a GPU, expected an array in host memory as the output is")
    given = xp.asarray(given)
    if given.dtype.kind not in "iuf" and not is_bfloat16(given.dtype):
        raise TypeError(f"gradients[{name!r}] is {_described(gradient)}, expected an array of real numbers")
    if given.shape != value.shape:
        raise ValueError(f"gradients[{name!r}] has shape {given.shape}, expected {value.shape}")
    yield field, given.astype(value.dtype, copy=False)


def _described(gradient: object) -> str:
    if isinstance(gradient, tuple | list):
        return f"a {type(gradient).__name__} of {len(gradient)}"
    return f"{type(gradient).__name__} of {gradient.dtype}" if hasattr(gradient, "dtype") else type(gradient).__name__


def _copy(out: Output) -> Output:
    other = object.__new__(type(out))
    vars(other).update(vars(out))
    return other


def _without_variables(out: Output) -> Output:
    """Return `out` with plain arrays."""
    for name, field in vars(out).items():
        vars(out)[name] = _plain(field)
    return out


def _plain(field: Any) -> Any:
    return tuple(map(_plain, field)) if type(field) is tuple else value_of(field)
