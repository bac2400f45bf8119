"""The kernels as differentiable functions of PyTorch tensors: `import bertcore.kernels.torch as F`.

Each function has the name, the arguments and the result of the kernel, and a gradient for each floating tensor among
the arguments, computed by the kernel's own backward. Tensors share their memory with the kernels, except those with a
negative or conjugate bit, which are copied. Gradients of gradients and forward-mode derivatives raise
NotImplementedError, arrays other than tensors TypeError.

    import bertcore.kernels.torch as F

    hidden = F.gelu(F.linear(x, weight, bias))
    F.layer_norm(hidden, scale).sum().backward()

Under torch.compile each function is one operator of PyTorch in the graph. torch.func's grad, vjp, jacrev and vmap
accept the functions, too; within torch.compile PyTorch supports only vmap. vmap calls the kernel once for each element
of the batch, all with the same seed of dropout. Arguments for eager calls only are rejected there: `return_probs`,
`return_components`, `compute_dtype` and pooling's `dtype`.

On a GPU they run on PyTorch's current stream. `on_current_stream` and `share_memory` are for other code that calls CuPy
together with PyTorch, such as models: they make CuPy use PyTorch's stream and PyTorch's memory pool.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any, ParamSpec

import torch
from torch.autograd.function import once_differentiable

from .arguments import Argument, Integers, Seed, WideFloats, check_axes
from .attention.arguments import terms_of
from .attention.positions import OF_RELATIVE, TERMS, RelativePositions
from .dispatch import AUTO, IMPLEMENTATIONS
from .operation import OPERATIONS, Operation

_kernels = importlib.import_module(__package__)  # whatever the name of the folder
_NAMESPACE = __package__.replace(".", "_")
_BACKENDS = (*IMPLEMENTATIONS, AUTO)

Tensor = torch.Tensor
Arguments = ParamSpec("Arguments")


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hide the function from torch.compile without importing torch.compile, which takes seconds."""
    hidden = cache(lambda: torch.compiler.disable(function))
    return lambda *given: (hidden() if "torch._dynamo" in sys.modules else function)(*given)


def _is_transformed() -> bool:
    """Return whether torch.func transforms the call; under torch.compile, which traces operators, only vmap works."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def _refuse_forward_mode(ctx: object, *tangents: object) -> None:
    raise NotImplementedError("the kernels have no forward-mode derivatives, expected torch.func.grad, vjp or jacrev")


class _Function(torch.autograd.Function):
    """One eager call of an operation; `tensors` are those that have a gradient, in the order of `names`."""

    jvp = staticmethod(_refuse_forward_mode)

    @staticmethod
    def forward(
        ctx: Any, record: Operation, given: dict[str, Any], names: tuple[str, ...], *tensors: Tensor | None
    ) -> Any:
        with stream_of(tensors):
            detached = {name: None if it is None else it.detach() for name, it in zip(names, tensors, strict=True)}
            result, saved = _call(record, given | detached, save=True)
        own = {id(new): old for new, old in zip(detached.values(), tensors, strict=True) if old is not None}
        ctx.record, ctx.names, ctx.backend, ctx.saved = record, names, given["backend"], list(saved)
        ctx.places = [place for place, value in enumerate(saved) if isinstance(value, Tensor)]
        # PyTorch saves the tensors: it detects a change before the backward.
        ctx.save_for_backward(*[own.get(id(saved[place]), saved[place]) for place in ctx.places])
        for place in ctx.places:
            ctx.saved[place] = None
        if isinstance(result, tuple):
            ctx.mark_non_differentiable(*[part for part in result[1:] if isinstance(part, Tensor)])
        return result

    @staticmethod
    @once_differentiable
    @_untraced
    def backward(ctx: Any, grad_output: Tensor, *others: object) -> tuple[Tensor | None, ...]:
        fields = list(ctx.saved)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            fields[place] = tensor.detach()
        needed = dict(zip(ctx.names, ctx.needs_input_grad[3:], strict=True))
        gradients = _gradients(ctx.record, grad_output, fields, ctx.backend, needed.get("weight", False))
        return None, None, None, *[gradients.get(name) if is_needed else None for name, is_needed in needed.items()]


_apply = _untraced(_Function.apply)


class _Transformed(torch.autograd.Function):
    """One call of an operator under torch.func; its last argument is (operator, function that saves, pullback)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        *values, (operator, _, _) = given
        return tuple(operator(*values))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *values, (_, keep, ctx.pull_back) = inputs
        keep(ctx, values, output)

    @staticmethod
    @_untraced
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return *ctx.pull_back(ctx, grads), None

    jvp = staticmethod(_refuse_forward_mode)


_apply_transformed = _untraced(_Transformed.apply)


def _refuse_second(ctx: object, grads: object) -> None:
    raise NotImplementedError("the kernels have no gradients of gradients, expected one derivative of each call")


def _call(record: Operation, given: dict[str, Any], **options: Any) -> Any:
    """Call the kernel with the record's arguments by name, which include the fields of `relative`."""
    given = {name: it.resolve_conj().resolve_neg() if isinstance(it, Tensor) else it for name, it in given.items()}
    if "distance_rows" in given:
        terms = {name: given[name] for name in (*OF_RELATIVE, "longest")}
        given = {name: value for name, value in given.items() if name not in terms}
        given["relative"] = None if terms["distance_rows"] is None else RelativePositions(**terms)
    return getattr(_kernels, record.name)(**given, **options)


def _gradients(
    record: Operation, grad_output: Tensor, fields: Sequence[Any], backend: str, needs_weight: bool
) -> dict[str, Any]:
    """Return the gradients by the names of the arguments, which include the fields of `relative`."""
    options = {"needs_weight": needs_weight} if "needs_weight" in record.options else {}
    grad_output = grad_output.resolve_neg().contiguous()
    with stream_of([grad_output]):
        backward = getattr(_kernels, f"{record.name}_backward")
        found = backward(grad_output, record.saves(*fields), backend=backend, **options)
    if isinstance(found, _kernels.AttentionGradients):
        *found, relative = found
        found += [getattr(relative, name, None) for name in TERMS]
    named = dict(zip(record.gradients, found if isinstance(found, list | tuple) else [found], strict=True))
    return _with_equal(record, grad_output, named)


def _with_equal(record: Operation, grad_output: Tensor, gradients: dict[str, Any]) -> dict[str, Any]:
    known = {"grad_output": grad_output, **gradients}
    return gradients | {name: known.get(source) for name, source in record.same_gradient.items()}


class _Operator:
    """An operation as two PyTorch operators, forward and backward, for code that traces calls.

    The forward returns its output and, if `keep`, the arrays among the record's `kept` and the number of the backend,
    which is chosen when the operator runs. The record determines shapes and the operators' schemas.
    """

    def __init__(self, record: Operation):
        self.record = record
        self.names = tuple(name for name, argument in record.arguments.items() if argument.schema)
        self.fields = {name: argument.schema for name, argument in record.fields.items() if argument.schema}
        if "output" in record.fields:
            self.fields["output"] = "Tensor?"
        given = ", ".join(f"{record.arguments[name].schema} {name}" for name in self.names)
        saved = ", ".join(f"{schema} {name}" for name, schema in self.fields.items())
        shapes = "SymInt[] sizes, int[] ndims, ScalarType dtype"
        schema = f"(Tensor grad_output, {saved}, {shapes}, str[] wanted, Tensor backend) -> Tensor[]"
        self.forward = self._operator(
            "", f"({given}, str backend, bool keep) -> Tensor[]", self._compute, self._fake_result
        )
        self.backward = self._operator("_backward", schema, self._compute_gradients, self._fake_gradients)
        self.forward.register_autograd(self._pull_back, setup_context=self._keep)
        self.backward.register_autograd(_refuse_second)

    def _operator(self, suffix: str, schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
        name = f"{_NAMESPACE}::{self.record.name}{suffix}"
        operator = torch.library.custom_op(name, compute, mutates_args=(), schema=schema)
        operator.register_fake(fake)

        def of_batch(info: Any, dims: Sequence[int | None], *given: Any) -> tuple[list[Tensor], list[int]]:
            if not info.batch_size:
                raise ValueError("torch.vmap is over no element, expected at least one")
            calls = [
                operator(
                    *[it.select(dim, n) if isinstance(dim, int) else it for it, dim in zip(given, dims, strict=True)]
                )
                for n in range(info.batch_size)
            ]
            results = [torch.stack(parts) for parts in zip(*calls, strict=True)]
            return results, [0] * len(results)

        operator.register_vmap(of_batch)
        return operator

    def __call__(self, given: dict[str, Any]) -> Any:
        """Call the operator with the arguments by name."""
        record, backend = self.record, given["backend"] or ""
        for name, argument in record.arguments.items():
            if not argument.schema and name != "return_lse" and given[name]:
                default = given[name].__class__()
                raise ValueError(f"{name} is {given[name]!r}, expected {default!r} under torch.compile and torch.func")
        values = [record.arguments[name].traced(name, given[name]) for name in self.names]
        requires = any(value.requires_grad for value in values if isinstance(value, Tensor))
        returns_lse = given.get("return_lse", False)
        keep = returns_lse or _is_transformed() or (requires and torch.is_grad_enabled())
        output, *kept = self._run(self.forward, self._keep, self._pull_back, *values, backend, keep)
        return (output, kept[0].detach()) if returns_lse else output

    @staticmethod
    def _run(operator: Any, keep: Callable[..., None], pull_back: Callable[..., Any], *values: Any) -> Sequence[Tensor]:
        if _is_transformed():
            return _apply_transformed(*values, (operator, keep, pull_back))
        return operator(*values)

    def _compute(self, *values: Any) -> list[Tensor]:
        record, (*given, backend, keep) = self.record, values
        backend = backend or _kernels.get_backend()
        named = {
            name: value.detach() if isinstance(value, Tensor) else value
            for name, value in zip(self.names, given, strict=True)
        }
        named |= {name: value % (1 << 64) for name, value in named.items() if isinstance(record.arguments[name], Seed)}
        tensors = [value for value in named.values() if isinstance(value, Tensor)]
        with stream_of(tensors):
            result = _call(record, named | {"backend": backend}, save=keep)
            if not keep:
                return [_apart(result, tensors)]
            output, saved = result
            kept = [getattr(saved, name) for name in self._kept_names(named)]
            return [*(_apart(it, tensors) for it in (output, *kept)), torch.tensor(_BACKENDS.index(backend))]

    def _kept_names(self, given: dict[str, Any]) -> list[str]:
        return [name for name, shape in self.record.kept_shapes(SimpleNamespace(**given)).items() if shape is not None]

    def _fake_result(self, *values: Any) -> list[Tensor]:
        *given, _, keep = values
        named = dict(zip(self.names, given, strict=True))
        first = next(value for value in given if isinstance(value, Tensor) and value.is_floating_point())
        kept, output, sizes = {}, self.record.output, dict[Any, Any]()
        for name, value in named.items():
            axes = getattr(self.record.arguments[name], "axes", None)
            if axes and isinstance(value, Tensor):
                check_axes(name, value.shape, axes, sizes)
        for name, shape in self.record.kept_shapes(SimpleNamespace(**named)).items():
            if shape is not None:
                kept[name] = first.new_empty(shape, dtype=_dtype_of(self.record.fields[name], first))
        if isinstance(output, str):
            result = torch.empty_like(first, memory_format=torch.contiguous_format)
        else:
            saved = {"shape": first.shape, "dtype": first.dtype} | named | kept
            shape, dtype = output(SimpleNamespace(**saved))
            shape = [first.shape[-1] if size is None else size for size in shape]  # of embedding, which saves no weight
            result = first.new_empty(shape, dtype=dtype or first.dtype)
        return [result, *kept.values(), torch.empty((), dtype=torch.int64)] if keep else [result]

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        given = dict(zip(self.names, inputs, strict=False))
        result, *kept, backend = output
        saved = given | dict(zip(self._kept_names(given), kept, strict=True)) | {"output": result}
        if "num_embeddings" in self.fields:
            saved["num_embeddings"] = given["weight"].shape[0]
        ctx.fields = [saved.get(name) for name in self.fields]
        ctx.places = [place for place, value in enumerate(ctx.fields) if isinstance(value, Tensor)]
        ctx.save_for_backward(*[ctx.fields[place] for place in ctx.places], backend)
        ctx.fields = [None if isinstance(value, Tensor) else value for value in ctx.fields]
        gradients = {name: given[name] for name in self.record.gradients if given[name] is not None}
        ctx.shapes = {name: tensor.shape for name, tensor in gradients.items()}
        ctx.dtype = next(iter(gradients.values())).dtype
        ctx.mark_non_differentiable(*kept, backend)
        ctx.set_materialize_grads(False)

    def _pull_back(self, ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        grad_output, (*tensors, backend) = grads[0], ctx.saved_tensors
        needed = dict(zip(self.names, ctx.needs_input_grad, strict=False))
        if grad_output is None:
            return (None,) * (len(self.names) + 2)
        fields = list(ctx.fields)
        for place, tensor in zip(ctx.places, tensors, strict=True):
            fields[place] = tensor
        wanted = [name for name in ctx.shapes if name != "weight" or needed[name]]
        sizes = [size for name in wanted for size in ctx.shapes[name]]
        ndims = [len(ctx.shapes[name]) for name in wanted]
        arguments = grad_output, *fields, sizes, ndims, ctx.dtype, wanted, backend
        found = self._run(self.backward, lambda ctx, inputs, output: None, _refuse_second, *arguments)
        gradients = _with_equal(self.record, grad_output, dict(zip(wanted, found, strict=True)))
        return *[gradients.get(name) if is_needed else None for name, is_needed in needed.items()], None, None

    def _compute_gradients(self, grad_output: Tensor, *values: Any) -> list[Tensor]:
        *fields, _, _, _, wanted, backend = values
        dtype = str(grad_output.dtype).removeprefix("torch.")
        saved: dict[str, Any] = {"shape": tuple(grad_output.shape), "dtype": dtype}
        saved |= {
            name: it.detach() if isinstance(it, Tensor) else it for name, it in zip(self.fields, fields, strict=True)
        }
        saved |= {name: it % (1 << 64) for name, it in saved.items() if isinstance(self.record.fields.get(name), Seed)}
        ordered = [saved[name] for name in self.record.fields]
        needs_weight = "weight" in wanted
        found = _gradients(self.record, grad_output.detach(), ordered, _BACKENDS[int(backend)], needs_weight)
        return [_apart(found[name], [grad_output]) for name in wanted]

    def _fake_gradients(self, grad_output: Tensor, *values: Any) -> list[Tensor]:
        *_, sizes, ndims, dtype, _, _ = values
        starts = [sum(ndims[:n]) for n in range(len(ndims))]
        return [
            grad_output.new_empty(sizes[at : at + ndim], dtype=dtype) for at, ndim in zip(starts, ndims, strict=True)
        ]


def _apart(result: Tensor, given: Sequence[Tensor]) -> Tensor:
    """Return the result in the form that an operator must return: contiguous, in its own memory."""
    result = result.contiguous()
    return result.clone() if any(result.data_ptr() == it.data_ptr() for it in given) else result


def _dtype_of(argument: Argument, first: Tensor) -> torch.dtype:
    if isinstance(argument, Integers):
        return torch.int32
    return torch.float32 if isinstance(argument, WideFloats) and first.dtype != torch.float64 else first.dtype


def _differentiable(function: Callable[Arguments, Any]) -> Callable[Arguments, Tensor]:
    """Return the operation with its gradients in PyTorch; it has no `save`."""
    record, signature = OPERATIONS[function.__name__], inspect.signature(function)
    has_gradient = frozenset((*record.gradients, *record.same_gradient))
    operator = _Operator(record)
    parameters = signature.parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    positional = tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)
    names = frozenset(signature.parameters)

    @wraps(function)
    def differentiable(*args: Arguments.args, **options: Arguments.kwargs) -> Tensor:
        given: dict[str, Any] = {**defaults, **dict(zip(positional, args)), **options}  # noqa: B905
        if (
            len(args) > len(positional)
            or given.keys() != names
            or any(name in options for name in positional[: len(args)])
        ):
            signature.bind(*args, **options)  # raises TypeError
        if given.pop("save") or given.get("inplace"):
            raise ValueError("save or inplace is True, expected False with PyTorch's autograd")
        if "relative" in given:
            given |= dict(zip((*OF_RELATIVE, "longest"), terms_of(given.pop("relative")), strict=True))
        gradients = []
        for name, value in given.items():
            if name not in has_gradient:
                if isinstance(value, Tensor) and value.requires_grad:
                    raise ValueError(f"{name} requires a gradient, but the kernel has none: pass {name}.detach()")
            elif value is None or isinstance(value, Tensor):
                gradients.append(name)
            else:
                raise TypeError(f"{name} is of type {type(value).__name__}, expected a PyTorch tensor")
        if torch.compiler.is_compiling() or _is_transformed():
            return operator(given)
        # The `use_backend` block of the call may have ended before the backward.
        given["backend"] = given["backend"] or _kernels.get_backend()
        tensors = [given.pop(name) for name in gradients]
        return _apply(record, given, tuple(gradients), *tensors)

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
lstm = _differentiable(_kernels.lstm)
maxsim = _differentiable(_kernels.maxsim)
attention = _differentiable(_kernels.attention)


@contextmanager
def on_current_stream(device: torch.device | int | None = None) -> Iterator[None]:
    """Make CuPy's current stream that of PyTorch within a block, on this GPU or on `device`, which becomes current.

    Then neither waits for the other, and CuPy's launches are part of a CUDA graph that PyTorch captures.
    """
    cuda, stream = importlib.import_module("cupy").cuda, torch.cuda.current_stream(device)
    # CuPy has a current stream for each GPU, and assumes that an external stream belongs to the current GPU.
    with cuda.Device(stream.device.index), cuda.Stream.from_external(stream):
        yield


def share_memory() -> None:
    """Make CuPy allocate its memory from PyTorch's pool, not from a separate one, from now on.

    Both can then reuse freed memory, on the stream that it was used on. Call it before anything is on the GPU: memory
    in CuPy's own pool stays there. `cupy.cuda.set_allocator` undoes it.
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


def stream_of(tensors: Sequence[Tensor | None]) -> AbstractContextManager:
    """Return a context in which CuPy launches on PyTorch's stream if tensors are on a GPU."""
    device = next((tensor.device for tensor in tensors if tensor is not None and tensor.is_cuda), None)
    return nullcontext() if device is None else on_current_stream(device)
