"""The kernels as differentiable functions of PyTorch tensors: `import bertcore.kernels.torch as F`.

Each function has the name, the arguments and the result of the kernel, and a gradient for each floating tensor that it
takes, which the kernel's own backward computes. Tensors share their memory with the kernels. Gradients of gradients are
refused; other arrays than tensors raise TypeError.

    import bertcore.kernels.torch as F

    hidden = F.gelu(F.linear(x, weight, bias))
    F.layer_norm(hidden, scale).sum().backward()

On a GPU they run on PyTorch's current stream. `on_current_stream` and `share_memory` are for what calls CuPy beside
PyTorch in another way, as models do: they make CuPy use PyTorch's stream and PyTorch's pool of memory.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch.autograd.function import once_differentiable

from .attention.positions import TERMS, RelativePositions
from .operation import OPERATIONS, Operation

_kernels = importlib.import_module(__package__)  # by whatever name the folder goes

Tensor = torch.Tensor
Arguments = ParamSpec("Arguments")


class _Function(torch.autograd.Function):
    """One call of an operation, whose tensors that have a gradient are `tensors`, in the order of `names`."""

    @staticmethod
    def forward(
        ctx: Any, record: Operation, given: dict[str, Any], names: tuple[str, ...], *tensors: Tensor | None
    ) -> Any:
        with _stream_of(tensors):
            detached = {name: None if it is None else it.detach() for name, it in zip(names, tensors, strict=True)}
            result, saved = _call(getattr(_kernels, record.name), given | detached, save=True)
        own = {id(new): old for new, old in zip(detached.values(), tensors, strict=True) if old is not None}
        ctx.record, ctx.names, ctx.backend, ctx.saved = record, names, given["backend"], list(saved)
        ctx.places = [place for place, value in enumerate(saved) if isinstance(value, Tensor)]
        # PyTorch keeps the tensors: it notices when one is changed before the backward.
        ctx.save_for_backward(*[own.get(id(saved[place]), saved[place]) for place in ctx.places])
        for place in ctx.places:
            ctx.saved[place] = None
        if isinstance(result, tuple):
            ctx.mark_non_differentiable(*[part for part in result[1:] if isinstance(part, Tensor)])
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *others: Any) -> tuple[Tensor | None, ...]:
        record, fields = ctx.record, list(ctx.saved)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            fields[place] = tensor.detach()
        needed = dict(zip(ctx.names, ctx.needs_input_grad[3:], strict=True))
        options = {"needs_weight": needed["weight"]} if "needs_weight" in record.options else {}
        grad_output = grad_output.contiguous()
        with _stream_of([grad_output]):
            backward = getattr(_kernels, f"{record.name}_backward")
            found = backward(grad_output, record.saves(*fields), backend=ctx.backend, **options)
        gradients = {"grad_output": grad_output, **_by_name(record, found)}
        gradients |= {name: gradients[source] for name, source in record.same_gradient.items()}
        return None, None, None, *[gradients.get(name) if is_needed else None for name, is_needed in needed.items()]


def _by_name(record: Operation, found: Any) -> dict[str, Any]:
    """Return the gradients by the names of arguments, the fields of `relative` among them."""
    if isinstance(found, _kernels.Gradients):
        *found, relative = found
        found += [getattr(relative, name, None) for name in TERMS]
    return dict(zip(record.gradients, found if isinstance(found, list | tuple) else [found], strict=True))


def _call(function: Callable[..., Any], given: dict[str, Any], **options: Any) -> Any:
    """Call with the arguments by name; fields of `relative` that stand among them go there."""
    given = dict(given)
    if isinstance(given.get("relative"), RelativePositions):
        terms = {name: given.pop(name) for name in TERMS if name in given}
        given["relative"] = replace(given["relative"], **terms)
    return function(**given, **options)


def _differentiable(function: Callable[Arguments, Any]) -> Callable[Arguments, Tensor]:
    """Return the operation with its gradients in PyTorch; it takes no `save`."""
    record, signature = OPERATIONS[function.__name__], inspect.signature(function)
    has_gradient = {*record.gradients, *record.same_gradient}

    @wraps(function)
    def differentiable(*args: Arguments.args, **options: Arguments.kwargs) -> Tensor:
        bound = signature.bind(*args, **options)
        bound.apply_defaults()
        given = bound.arguments
        if given.pop("save") or given.get("inplace"):
            raise ValueError("save or inplace is True, expected False beside PyTorch's autograd")
        relative = given.get("relative")
        if isinstance(relative, RelativePositions):
            given |= {name: getattr(relative, name) for name in TERMS}
        # The block that is in force at the call may be over at the backward.
        given["backend"] = given["backend"] or _kernels.get_backend()
        names = []
        for name, value in given.items():
            if name not in has_gradient:
                if isinstance(value, Tensor) and value.requires_grad:
                    raise ValueError(f"{name} requires a gradient, and there is none for it: pass {name}.detach()")
            elif value is None or isinstance(value, Tensor):
                names.append(name)
            else:
                raise TypeError(f"{name} is of type {type(value).__name__}, expected a PyTorch tensor")
        tensors = [given.pop(name) for name in names]
        return _Function.apply(record, given, tuple(names), *tensors)

    return differentiable


softmax = _differentiable(_kernels.softmax)
activation = _differentiable(_kernels.activation)
gated_activation = _differentiable(_kernels.gated_activation)
gelu = _differentiable(_kernels.gelu)
linear = _differentiable(_kernels.linear)
layer_norm = _differentiable(_kernels.layer_norm)
dropout = _differentiable(_kernels.dropout)
dropout_layer_norm = _differentiable(_kernels.dropout_layer_norm)
rms_norm = _differentiable(_kernels.rms_norm)
affine = _differentiable(_kernels.affine)
embedding = _differentiable(_kernels.embedding)
pooling = _differentiable(_kernels.pooling)
cross_entropy = _differentiable(_kernels.cross_entropy)
rotary = _differentiable(_kernels.rotary)
maxsim = _differentiable(_kernels.maxsim)
attention = _differentiable(_kernels.attention)


@contextmanager
def on_current_stream(device: Any = None) -> Iterator[None]:
    """A block within which CuPy's current stream is PyTorch's, of this GPU or of `device`, which is then current.

    Neither then waits for the other, and what CuPy launches is part of a CUDA graph that PyTorch captures.
    """
    cuda, stream = importlib.import_module("cupy").cuda, torch.cuda.current_stream(device)
    # CuPy has a current stream for each GPU, and takes one from outside for the current GPU's.
    with cuda.Device(stream.device.index), cuda.Stream.from_external(stream):
        yield


def share_memory() -> None:
    """From now on CuPy takes its memory from PyTorch's pool, instead of keeping one beside it.

    Memory that is let go then serves both, on the stream that it was used on. Call it before anything is on the GPU:
    what CuPy's own pool already has stays there. `cupy.cuda.set_allocator` undoes it.
    """
    cuda = importlib.import_module("cupy").cuda

    def allocate(size: int, device: int) -> int:
        try:
            return torch.cuda.caching_allocator_alloc(size, device, cuda.get_current_stream().ptr)
        except torch.OutOfMemoryError as error:  # a RuntimeError
            raise MemoryError(str(error)) from error

    def free(address: int, device: int) -> None:
        torch.cuda.caching_allocator_delete(address)

    cuda.set_allocator(cuda.PythonFunctionAllocator(allocate, free).malloc)


def _stream_of(tensors: Sequence[Tensor | None]) -> AbstractContextManager:
    """PyTorch's stream for CuPy's launches, where tensors are on a GPU."""
    device = next((tensor.device for tensor in tensors if tensor is not None and tensor.is_cuda), None)
    return nullcontext() if device is None else on_current_stream(device)
