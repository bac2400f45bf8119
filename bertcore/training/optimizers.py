"""Optimisers: each step updates a model's parameters in place, from gradients by checkpoint name."""

from __future__ import annotations

import fnmatch
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count, check_number, check_strings
from bertcore.gradients import HasParameters, gradients_of
from bertcore.kernels.arrays import Array
from bertcore.nn.parameter import Parameter, change_together

MOMENTS = "first_moment", "second_moment"
Update = tuple[Parameter, Array, Array]  # a parameter with its values and its gradient


@dataclass
class Group:
    """Parameters that share a learning rate and weight decay.

    Attributes:
        parameters: the parameters of the group.
        lr: the learning rate of the next step, set by a schedule.
        initial_lr: the rate that a schedule's factors multiply.
        weight_decay: the weight of the parameter itself in its update.
        is_excluded: whether it is excluded from weight decay, like biases and norms; LAMB then does not scale its rate.
    """

    parameters: list[Parameter] = field(repr=False)
    lr: float
    weight_decay: float
    is_excluded: bool = False
    initial_lr: float = 0.0

    def __post_init__(self) -> None:
        self.initial_lr = self.lr


class Optimizer:
    """Base of AdamW, StableAdamW, LAMB, SGD and Muon: groups, moments, one step (see `kernels.adam_update`).

    Args:
        model: the model; its parameters, float32 or float64, are trained, except frozen ones.
        lr: the learning rate.
        betas: the fraction of the first and second moment kept at each step.
        eps: added to the root of the second moment.
        weight_decay: the weight decay of matrices and tables; biases and norms have none.
        groups: exceptions; the first match wins. Each is a mapping with "names", shell patterns ("*.layer.0.*") of
            checkpoint names, and "lr", "weight_decay" or both.

    Attributes:
        groups: all groups, the exceptions first.

    Raises:
        TypeError, ValueError: for a wrong number or group, and names that match no parameter.
    """

    rule = "adamw"

    def __init__(
        self,
        model: HasParameters,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        groups: Sequence[Mapping[str, Any]] = (),
    ):
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay}.items():
            check_number(name, value)
        is_pair = isinstance(betas, tuple | list) and len(betas) == 2
        if not is_pair or not all(isinstance(beta, numbers.Real) and 0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas is {betas!r}, expected two numbers of at least 0 and below 1")
        self.betas, self.eps = (betas[0], betas[1]), eps
        self._steps, self._skipped = 0, 0
        if not hasattr(model, "parameters"):
            raise TypeError(f"model is {type(model).__name__}, expected a model of bertcore, not its parameters")
        self.groups = _make_groups(model.parameters(), lr, weight_decay, groups)
        self._moments: dict[Parameter, tuple[Any, ...]] = {}

    @property
    def lr(self) -> float:
        """The learning rate of the last group, which has the most parameters."""
        return self.groups[-1].lr

    @property
    def step_count(self) -> int:
        """The number of steps made."""
        return self._steps - int(self._skipped)

    def step(self, grads: Mapping[str, Array], scale: Array | None = None) -> None:
        """Update every parameter that is not frozen with its gradient in `grads` (from `value_and_grad`).

        Args:
            grads: the gradients by name; only read.
            scale: a 0-d array, in the memory of the gradients, that multiplies them (`clip_factor`); if it is inf or
                NaN, no step is made, and the host does not wait for it.

        Raises:
            TypeError, ValueError: for a missing gradient, or a wrong shape or dtype; nothing is changed then.
        """
        _check_gradients(grads)
        parameters = [parameter for group in self.groups for parameter in group.parameters if not parameter.is_frozen]
        gradients = gradients_of(parameters, grads)
        _check_scale(scale, gradients)
        with kernels.on_device_of(next(iter(grads.values()), None)):
            self.begin_step(scale)(parameters, gradients)

    def begin_step(self, scale: Array | None = None) -> Callable[[Sequence[Parameter], Sequence[Array]], None]:
        """Count a step and return a function that makes it for some parameters, by gradients of their shapes.

        Each parameter is given once; `scale` is that of `step`.
        """
        number = self._count(scale)

        def update(parameters: Sequence[Parameter], gradients: Sequence[Array]) -> None:
            def change(arrays: list[Array]) -> None:
                parts = {part[0]: part for part in zip(parameters, arrays, gradients, strict=True)}
                for group in self.groups:
                    self._change(group, [parts[each] for each in group.parameters if each in parts], number, scale)

            if number is not None:
                change_together(parameters, change)

        return update

    def _count(self, scale: Array | None) -> int | Array | None:
        """Return the number of this step, from 1; None if the host knows that no step is made."""
        if scale is not None and kernels.array_module(scale) is np and not np.isfinite(scale):
            return None
        self._steps += 1
        if scale is None or kernels.array_module(scale) is np:
            return self.step_count
        self._skipped = self._skipped + ~kernels.array_module(scale).isfinite(scale)  # only the device knows it
        return self._steps - self._skipped

    def _change(self, group: Group, parts: list[Update], number: int | Array, scale: Array | None) -> None:
        """Change the arrays of a group's parameters in place, at the step of this number."""
        rule = "adamw" if self.rule == "lamb" and group.is_excluded else self.rule
        if lists := self._lists(parts, by_tensor=rule != "adamw"):  # others depend on the norms of the tensors
            options: dict[str, Any] = {"lr": group.lr, "weight_decay": group.weight_decay, "step": number, "rule": rule}
            kernels.adam_update(*lists, betas=self.betas, eps=self.eps, grad_scale=scale, **options)

    def _lists(self, parts: list[Update], *, by_tensor: bool) -> list[list[Array]]:
        """Return lists of the parameters' values, gradients and moments, on request in pieces by tensor."""
        sets: list[tuple[Array, ...]] = []
        for parameter, array, grad in parts:
            whole = array, grad, *self._moments_of(parameter, array)
            sets += zip(*map(parameter.pieces, whole), strict=True) if by_tensor else [whole]
        return list(map(list, zip(*sets, strict=True)))

    def _kinds(self, parameter: Parameter) -> tuple[str, ...]:
        """Return the names of the moments kept for `parameter`, arrays of its shape."""
        return MOMENTS

    def _moments_of(self, parameter: Parameter, array: Array) -> tuple[Array, ...]:
        """Return the moments of `parameter`, zeros at first."""
        if parameter not in self._moments:
            xp = kernels.array_module(array)
            self._moments[parameter] = tuple(xp.zeros_like(array) for _ in self._kinds(parameter))
        return self._moments[parameter]

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume a run from; the arrays are views, which the next step changes.

        It has "step_count", and for each parameter "first_moment.NAME" and "second_moment.NAME" (or "momentum.NAME" in
        `Muon`).
        """
        state: dict[str, Any] = {"step_count": np.asarray(self.step_count)}
        for parameter, moments in self._moments.items():
            for kind, array in zip(self._kinds(parameter), moments, strict=True):
                host = array if isinstance(array, np.ndarray) else array.get()
                state |= {f"{kind}.{name}": part for name, part in parameter.parts(host)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the arrays are copied.

        Raises:
            ValueError: for an array that is missing, unknown or of a wrong shape; nothing is restored then.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state is {type(state).__name__}, expected the result of state_dict")
        parameters = [parameter for group in self.groups for parameter in group.parameters]
        moments, known = {}, {"step_count"}
        for parameter in parameters:
            kinds = self._kinds(parameter)
            expected = {f"{kind}.{name}": shape for kind in kinds for name, shape in parameter.expected.items()}
            if expected.keys().isdisjoint(state):
                continue  # frozen, or no step yet
            check_arrays(state, expected)
            known |= expected.keys()
            arrays = [{name: state[f"{kind}.{name}"] for name in parameter.names} for kind in kinds]
            copies = [np.array(parameter.joined(part)[0], parameter.dtype, order="C") for part in arrays]
            moments[parameter] = tuple(map(kernels.to_backend, copies))  # where the active backend trains it
        unknown = sorted(set(state) - known)
        if unknown or "step_count" not in state:
            raise ValueError(f"state: {'unknown are ' + ', '.join(unknown) if unknown else 'step_count is missing'}")
        self._steps, self._skipped = check_count("state['step_count']", state["step_count"], 0), 0
        self._moments = moments


class StepInBackward:
    """One step of an optimiser, made while the backward pass completes gradients, which are freed at once.

    Args:
        optimizer: the optimiser that makes the step.
        max_norm: 0 for no limit; else all gradients are multiplied by max_norm / `norm_before` if that is below 1.
        norm_before: the joint norm of the previous step's gradients; None without one: then nothing is clipped.
        at_once: the number of elements updated together: a call for each parameter takes 0.2 ms of Python.
    """

    def __init__(self, optimizer: Optimizer, max_norm: float, norm_before: float | None, at_once: int = 1 << 20):
        dtype, is_clipped = optimizer.groups[-1].parameters[0].dtype, max_norm and norm_before is not None
        self._update = optimizer.begin_step(
            clip_factor(np.asarray(norm_before), max_norm, dtype) if is_clipped else None
        )
        self._waiting: list[tuple[Parameter, Array]] = []
        self._at_once, self._size, self._squares = at_once, 0, 0.0

    def take(self, parameter: Parameter, gradient: Array) -> None:
        """Take a parameter's gradient once the backward pass no longer needs it."""
        self._waiting.append((parameter, gradient))
        self._size += gradient.size
        if self._size >= self._at_once:
            self._make()

    def finish(self) -> Array:
        """Update the remaining parameters; return the joint norm of all gradients, a 0-d array."""
        self._make()
        return np.asarray(self._squares**0.5)

    def _make(self) -> None:
        """Update the waiting parameters, unless a gradient so far is inf or NaN."""
        if self._waiting:
            parameters, gradients = zip(*self._waiting, strict=True)
            self._waiting, self._size = [], 0
            self._squares += float(kernels.joint_norm(list(gradients))) ** 2
            if np.isfinite(self._squares):
                self._update(parameters, gradients)


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101)."""


class StableAdamW(Optimizer):
    """AdamW with a smaller step where squared gradients exceed their running mean.

    Source: Wortsman et al. 2023, arXiv:2304.13013.
    """

    rule = "stable_adamw"


class SGD(Optimizer):
    """Steps along the gradient alone, without moments."""

    def _kinds(self, parameter: Parameter) -> tuple[str, ...]:
        return ()

    def _change(self, group: Group, parts: list[Update], number: int | Array, scale: Array | None) -> None:
        for _, array, grad in parts:
            xp = kernels.array_module(array)
            if scale is not None:
                grad = xp.where(xp.isfinite(scale), grad * scale, 0)
            array -= group.lr * (grad + group.weight_decay * array)


class LAMB(Optimizer):
    """Steps in proportion to each tensor's norm, for large batches (You et al. 2020, arXiv:1904.00962).

    As in the authors' code, tensors that are excluded from weight decay (biases and norms, and groups whose
    "weight_decay" is 0) are also excluded from the proportion: their rate is `lr` itself.
    """

    rule = "lamb"


def clip_grad_norm(grads: Mapping[str, Array], max_norm: float) -> float:
    """Scale all gradients in place so that their joint norm is at most `max_norm`; return the norm before scaling.

    The bits do not depend on the number of threads. If the norm is inf or NaN, no gradient is changed.

    Raises:
        TypeError, ValueError: if `max_norm` is not a positive number.
    """
    return kernels.clip_norm(_arrays(grads), max_norm)


def grad_norm(grads: Mapping[str, Array]) -> Array:
    """Return the joint norm of all gradients, a 0-d float64 array in their memory; the host does not wait for it.

    Its bits do not depend on the number of threads.
    """
    return kernels.joint_norm(_arrays(grads))


def _check_gradients(grads: object) -> None:
    if not isinstance(grads, Mapping):
        raise TypeError(f"grads is {type(grads).__name__}, expected the gradients of value_and_grad: arrays by name")


def _arrays(grads: Mapping[str, Array]) -> list[Array]:
    _check_gradients(grads)
    return list(grads.values())


def clip_factor(norm: Array, max_norm: float, dtype: np.dtype) -> Array:
    """Return the factor that limits gradients of this joint norm (`grad_norm`) to `max_norm`, a 0-d array.

    It is NaN if the norm is inf or NaN; `Optimizer.step` makes no step then.
    """
    xp = kernels.array_module(norm)
    with np.errstate(all="ignore"):
        factor = xp.minimum(max_norm / norm, 1.0)
    return xp.where(xp.isfinite(norm), factor, np.nan).astype(dtype)


def _check_scale(scale: Array | None, grads: list[Array]) -> None:
    if scale is None:
        return
    if not hasattr(scale, "dtype") or isinstance(scale, np.generic):
        raise TypeError(f"scale is {type(scale).__qualname__}, expected an array without axes")
    for grad in grads:
        if scale.shape != () or scale.dtype != grad.dtype:
            raise ValueError(f"scale has shape {scale.shape} and dtype {scale.dtype}, expected () and {grad.dtype}")


def _make_groups(
    parameters: Iterable[Parameter], lr: float, weight_decay: float, exceptions: Sequence[Mapping[str, Any]]
) -> list[Group]:
    rest = list(parameters)
    made: list[Group] = []
    if not isinstance(exceptions, Sequence) or isinstance(exceptions, str):
        raise TypeError(f"groups is {exceptions!r}, expected a list of groups")
    for index, given in enumerate(exceptions):
        _check_group(f"groups[{index}]", given)
        chosen = [parameter for parameter in rest if _is_meant(parameter, given["names"])]
        if not chosen:
            raise ValueError(f"groups[{index}]: no other parameter has a name like {', '.join(given['names'])}")
        rest = [parameter for parameter in rest if parameter not in chosen]
        made += _with_decay(chosen, given.get("lr", lr), given.get("weight_decay"), weight_decay)
    return made + _with_decay(rest, lr, None, weight_decay)


def _with_decay(parameters: list[Parameter], lr: float, decay: float | None, default: float) -> list[Group]:
    """Return one group if `decay` is given; else biases and norms without decay, and the others with the default."""
    if decay is not None:
        return [Group(parameters, lr, decay, is_excluded=decay == 0)]
    vectors = [parameter for parameter in parameters if parameter.uses == {"vector"}]
    others = [parameter for parameter in parameters if parameter.uses != {"vector"}]
    return [
        group for group in (Group(vectors, lr, 0.0, is_excluded=True), Group(others, lr, default)) if group.parameters
    ]


def _check_group(label: str, given: Mapping[str, Any]) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f'{label} is {given!r}, expected a dict of "names", and "lr" or "weight_decay"')
    unknown = [key for key in given if key not in ("names", "lr", "weight_decay")]
    if unknown or "names" not in given:
        raise ValueError(f'{label} has {", ".join(given)}, expected "names", and "lr" or "weight_decay"')
    if not check_strings(f"{label}: names", given["names"]):
        raise ValueError(f"{label}: names is empty, expected at least one pattern")
    for key in given.keys() - {"names"}:
        check_number(f"{label}: {key}", given[key])


def _is_meant(parameter: Parameter, patterns: Sequence[str]) -> bool:
    meant = {any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) for name in parameter.names}
    if len(meant) > 1:
        raise ValueError(f"{', '.join(parameter.names)} are one parameter: name all or none of them")
    return True in meant


def check_arrays(state: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless a state has arrays of these names and shapes."""
    for name, shape in expected.items():
        if name not in state:
            raise ValueError(f"state has no {name!r}")
        if state[name].shape != shape:
            raise ValueError(f"state[{name!r}] has shape {state[name].shape}, expected {shape}")
        if state[name].dtype.kind not in "fuV":  # unsigned codes of 8 bits
            raise ValueError(f"state[{name!r}] holds {state[name].dtype}, expected floating point")


class Muon(Optimizer):
    """Orthogonalised momentum for the weights of linear layers; AdamW for all other parameters.

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/. A weight belongs to a layer if its
    checkpoint name has a number ("encoder.layer.0..."): AdamW updates embeddings, poolers, heads, biases and norms.
    Each tensor of a checkpoint is orthogonalised by itself, by five Newton-Schulz steps, and an update is as large as
    AdamW's (Liu et al. 2025, arXiv:2502.16982), so both share AdamW's learning rates and weight decay
    (`kernels.muon_update`).

    Args:
        momentum: the fraction of the momentum kept at each step (Nesterov's is applied).
        options: lr, betas, eps, weight_decay, groups as for `Optimizer`; betas and eps are AdamW's.
    """

    def __init__(self, model: HasParameters, *, momentum: float = 0.95, **options: Any):
        super().__init__(model, **options)
        if not isinstance(momentum, int | float) or not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum!r}, expected a number of at least 0 and below 1")
        self.momentum = momentum

    def _kinds(self, parameter: Parameter) -> tuple[str, ...]:
        return ("momentum",) if is_matrix_of_a_layer(parameter) else MOMENTS

    def _change(self, group: Group, parts: list[Update], number: int | Array, scale: Array | None) -> None:
        matrices, others = ([part for part in parts if is_matrix_of_a_layer(part[0]) == kind] for kind in (True, False))
        super()._change(group, others, number, scale)
        if lists := self._lists(matrices, by_tensor=True):
            options = {"lr": group.lr, "beta": self.momentum, "weight_decay": group.weight_decay}
            kernels.muon_update(*lists, grad_scale=scale, **options)


def is_matrix_of_a_layer(parameter: Parameter) -> bool:
    """Return whether the parameter is only a linear layer's weight, and its name has a number."""
    has_number = any(part.isdecimal() for part in parameter.names[0].split("."))
    return parameter.uses == {"weight"} and has_number and len(parameter.shape) == 2
