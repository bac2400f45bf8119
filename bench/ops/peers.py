"""The same cases in PyTorch (torch.nn.functional) on the CPU, for comparison: --peers."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.ops.calls import split_qkv
from bench.ops.cases import FORWARD, Case
from bench.ops.torch_operations import in_torch
from bertcore.kernels.operation import OPERATIONS

DIFFERENTIATED = (  # arguments that have gradients
    *("input", "weight", "bias", "residual", "query", "key", "value", "document"),
    *("position_key", "position_query"),
)


def torch_unavailable_reason(case: Case) -> str | None:
    """Why PyTorch cannot run the case, or None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed: pip install torch"
    if case.op.startswith("dropout"):
        return "PyTorch drops other elements: its results cannot be checked"
    offsets = case.inputs.get("cu_seqlens")
    if offsets is not None and len(set(np.diff(offsets))) > 1:
        return "torch.nn.functional has no attention over packed texts of different lengths"
    return None


def bind_torch(case: Case, inputs: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """The call to time, on as many threads as our kernels use; its results are those of the case."""
    from bertcore.kernels import _numba

    torch = importlib.import_module("torch")
    torch.set_num_threads(_numba.num_threads())
    tensors = {name: torch.from_numpy(it) if isinstance(it, np.ndarray) else it for name, it in inputs.items()}
    arguments = split_qkv(tensors)
    grad_output = arguments.pop("grad_output", None)
    same = OPERATIONS[case.op].same_gradient  # a backward does not return what equals the output's gradient
    names = [name for name in DIFFERENTIATED if same.get(name) != "grad_output"]
    leaves = {name: arguments[name] for name in names if _is_floating(arguments.get(name))}

    def forward() -> dict[str, Any]:
        with torch.inference_mode():
            return {"output": in_torch(case.op, arguments)}

    def training() -> dict[str, Any]:
        output = in_torch(case.op, arguments)
        gradients = torch.autograd.grad(output, list(leaves.values()), grad_output)
        return {"output": output} | {f"grad_{name}": it for name, it in zip(leaves, gradients, strict=True)}

    if case.direction == FORWARD:
        return forward
    for leaf in leaves.values():
        leaf.requires_grad_()
    return training


def _is_floating(tensor: Any) -> bool:
    return tensor is not None and tensor.is_floating_point()
