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

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from .attention import RelativePositions
from .attention.positions import OF_RELATIVE

_kernels = importlib.import_module(__package__)  # by whatever name the folder goes

Tensor = torch.Tensor


class _Operation(torch.autograd.Function):
    """One call: `compute` gives the output and what is kept for `pullback`, which gives a gradient for each tensor."""

    @staticmethod
    def forward(ctx: Any, compute: Callable, pullback: Callable, *tensors: Tensor | None) -> Tensor:
        with _stream_of(tensors):
            output, *kept = compute(*map(_detached, tensors))
        ctx.pullback, ctx.count = pullback, len(tensors)
        ctx.save_for_backward(*tensors, *kept)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        saved = list(map(_detached, ctx.saved_tensors))
        with _stream_of(saved):
            gradients: Sequence[Tensor | None] = ctx.pullback(grad_output.contiguous(), *saved)
        needed = zip(gradients, ctx.needs_input_grad[2:], strict=True)
        return None, None, *(gradient if is_needed else None for gradient, is_needed in needed)


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


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


def _backend(backend: str | None) -> str:
    """The backend of both directions: the block that is in force at the call may be over at the backward."""
    return backend or _kernels.get_backend()


def _of_tensors(function: Callable) -> Callable:
    """A function whose arguments of type Tensor are checked to be tensors: TypeError names another."""
    signature = inspect.signature(function)
    kinds = {name: each.annotation for name, each in signature.parameters.items()}
    tensors = {name: kind for name, kind in kinds.items() if kind in (Tensor, Tensor | None)}

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Tensor:
        given = signature.bind(*args, **options).arguments
        for name, kind in tensors.items():
            if name in given and not isinstance(given[name], kind):
                raise TypeError(f"{name} is of type {type(given[name]).__name__}, expected a PyTorch tensor")
        return function(*args, **options)

    return checked


def _check_constant(**tensors: Any) -> None:
    """ValueError for a tensor that asks for a gradient and gets none."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            raise ValueError(f"{name} requires a gradient, and there is none for it: pass {name}.detach()")


@_of_tensors
def softmax(input: Tensor, dim: int = -1, *, backend: str | None = None) -> Tensor:
    """`kernels.softmax` with its gradient."""
    options = {"dim": dim, "backend": _backend(backend)}

    def compute(input: Tensor) -> tuple[Tensor, ...]:
        output = _kernels.softmax(input, **options)
        return output, output

    def pullback(grad: Tensor, input: Tensor, output: Tensor) -> tuple[Tensor, ...]:
        return (_kernels.softmax_backward(grad, output, **options),)

    return _Operation.apply(compute, pullback, input)


@_of_tensors
def activation(input: Tensor, activation: str, *, backend: str | None = None) -> Tensor:
    """`kernels.activation` with its gradient."""
    return _elementwise("activation", input, activation=activation, backend=_backend(backend))


@_of_tensors
def gated_activation(input: Tensor, activation: str, *, gate: str = "first", backend: str | None = None) -> Tensor:
    """`kernels.gated_activation` with its gradient."""
    return _elementwise("gated_activation", input, activation=activation, gate=gate, backend=_backend(backend))


def _elementwise(name: str, input: Tensor, **options: Any) -> Tensor:
    forward, backward = getattr(_kernels, name), getattr(_kernels, f"{name}_backward")
    return _Operation.apply(
        lambda input: (forward(input, **options),),
        lambda grad, input: (backward(grad, input, **options),),
        input,
    )


@_of_tensors
def gelu(input: Tensor, approximate: str = "none", *, bias: Tensor | None = None, backend: str | None = None) -> Tensor:
    """`kernels.gelu` with the gradients of input and bias."""
    options = {"approximate": approximate, "backend": _backend(backend)}
    return _Operation.apply(
        lambda input, bias: (_kernels.gelu(input, bias=bias, **options),),
        lambda grad, input, bias: _kernels.gelu_backward(grad, input, bias=bias, **options),
        input,
        bias,
    )


@_of_tensors
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """`kernels.linear` with the gradients of input, weight and bias; the weight is a tensor, not a prepared one."""
    backend, needs_weight = _backend(backend), weight.requires_grad
    return _Operation.apply(
        lambda *tensors: (_kernels.linear(*tensors, backend=backend),),
        lambda grad, *tensors: _kernels.linear_backward(grad, *tensors, needs_weight=needs_weight, backend=backend),
        input,
        weight,
        bias,
    )


@_of_tensors
def layer_norm(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """`kernels.layer_norm` with the gradients of input, weight, bias and residual."""
    options = {"eps": eps, "backend": _backend(backend)}

    def compute(input: Tensor, residual: Tensor, *parameters: Tensor) -> tuple[Tensor]:
        return (_kernels.layer_norm(input, *parameters, residual=residual, **options),)

    def pullback(grad: Tensor, input: Tensor, residual: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        rows, *others = _kernels.layer_norm_backward(grad, input, *parameters, residual=residual, **options)
        return rows, rows, *others

    return _Operation.apply(compute, pullback, input, residual, weight, bias)


@_of_tensors
def rms_norm(
    input: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    residual: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """`kernels.rms_norm` with the gradients of input, weight and residual."""
    options = {"eps": eps, "backend": _backend(backend)}

    def compute(input: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (_kernels.rms_norm(input, weight, residual=residual, **options),)

    def pullback(grad: Tensor, input: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        rows, of_weight = _kernels.rms_norm_backward(grad, input, weight, residual=residual, **options)
        return rows, rows, of_weight

    return _Operation.apply(compute, pullback, input, residual, weight)


@_of_tensors
def embedding(input: Tensor, weight: Tensor, *, backend: str | None = None) -> Tensor:
    """`kernels.embedding` with the gradient of the table."""
    backend, rows = _backend(backend), len(weight)
    return _Operation.apply(
        lambda weight: (_kernels.embedding(input, weight, backend=backend),),
        lambda grad, weight: (_kernels.embedding_backward(grad, input, rows, backend=backend),),
        weight,
    )


@_of_tensors
def pooling(
    input: Tensor, cu_seqlens: Any, mode: str = "mean", *, skipped: int = 0, backend: str | None = None
) -> Tensor:
    """`kernels.pooling` with the gradient of the input."""
    given, options = (cu_seqlens, mode), {"skipped": skipped, "backend": _backend(backend)}
    return _Operation.apply(
        lambda input: (_kernels.pooling(input, *given, **options),),
        lambda grad, input: (_kernels.pooling_backward(grad, input, *given, **options),),
        input,
    )


@_of_tensors
def cross_entropy(
    input: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean", backend: str | None = None
) -> Tensor:
    """`kernels.cross_entropy` with the gradient of the logits."""
    options = {"ignore_index": ignore_index, "reduction": reduction, "backend": _backend(backend)}
    return _Operation.apply(
        lambda input: _kernels.cross_entropy(input, target, return_lse=True, **options),
        lambda grad, input, lse: (_kernels.cross_entropy_backward(grad, input, target, lse=lse, **options),),
        input,
    )


@_of_tensors
def rotary(
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    cu_seqlens: Any = None,
    positions: Any = None,
    interleaved: bool = False,
    backend: str | None = None,
) -> Tensor:
    """`kernels.rotary` with the gradient of the input; the tables have none."""
    _check_constant(cos=cos, sin=sin)
    angles = {"cos": cos, "sin": sin, "cu_seqlens": cu_seqlens, "positions": positions}
    options = {**angles, "interleaved": interleaved, "backend": _backend(backend)}
    return _Operation.apply(
        lambda input: (_kernels.rotary(input, **options),),
        lambda grad, input: (_kernels.rotary_backward(grad, **options),),
        input,
    )


@_of_tensors
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens: Any = None,
    cu_seqlens_k: Any = None,
    attn_mask: Any = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None,
    relative: RelativePositions | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    backend: str | None = None,
) -> Tensor:
    """`kernels.attention` with the gradients of query, key, value, bias and the floating terms of `relative`.

    `attn_mask` has none; scores that are to have one are the `bias`.
    """
    _check_constant(attn_mask=attn_mask)
    options = {
        "cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k, "attn_mask": attn_mask, "is_causal": is_causal,
        "window": window, "scale": scale, "dropout_p": dropout_p, "dropout_seed": dropout_seed,
        "backend": _backend(backend),
    }  # fmt: skip
    if not isinstance(relative, RelativePositions | None):
        raise TypeError(f"relative is of type {type(relative).__name__}, expected RelativePositions or None")
    names = [] if relative is None else OF_RELATIVE

    def given(bias: Tensor | None, terms: Sequence[Tensor | None]) -> dict[str, Any]:
        changed = None if relative is None else replace(relative, **dict(zip(names, terms, strict=True)))
        return {"bias": bias, "relative": changed, **options}

    def compute(query: Tensor, key: Tensor, value: Tensor, bias: Any, *terms: Any) -> tuple[Tensor, ...]:
        output, lse = _kernels.attention(query, key, value, return_lse=True, **given(bias, terms))
        return output, output, lse

    def pullback(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Any, *rest: Any) -> tuple[Any, ...]:
        *terms, output, lse = rest
        found = _kernels.attention_backward(grad, query, key, value, output, lse, **given(bias, terms))
        return *found[:4], *(getattr(found.relative, name) for name in names)

    terms = [getattr(relative, name) for name in names]
    return _Operation.apply(compute, pullback, query, key, value, bias, *terms)
