"""The public signatures, written down, and those of the implementations, held equal.

The implementations are read as source text, so that the CUDA ones are compared where there is no CuPy.
"""

import ast
import inspect
from pathlib import Path

import pytest

from bertcore import kernels
from bertcore.kernels.dispatch import IMPLEMENTATIONS

KERNELS = Path(kernels.__file__).parent
OPERATIONS = sorted(path.parent.name for path in KERNELS.glob("*/reference.py"))

ATTENTION = (
    "cu_seqlens=None, cu_seqlens_k=None, attn_mask=None, bias=None, is_causal=False, window=None, relative=None, "
    "scale=None"
)
PUBLIC = {
    "softmax": "input, dim=-1, *, backend=None",
    "softmax_backward": "grad_output, output, dim=-1, *, backend=None",
    "layer_norm": "input, weight=None, bias=None, eps=1e-05, *, residual=None, backend=None",
    "layer_norm_backward": "grad_output, input, weight=None, eps=1e-05, *, residual=None, backend=None",
    "gelu": "input, approximate='none', *, bias=None, backend=None",
    "gelu_backward": "grad_output, input, approximate='none', *, bias=None, backend=None",
    "activation": "input, activation, *, backend=None",
    "activation_backward": "grad_output, input, activation, *, backend=None",
    "prepare_weight": "weight, scale=None, *, dtype=None, backend=None",
    "quantize_weight": "weight",
    "linear": "input, weight, bias=None, *, activation=None, residual=None, backend=None",
    "linear_backward": "grad_output, input, weight, bias=None, *, backend=None",
    "attention": (
        f"query, key, value, *, {ATTENTION}, compute_dtype=None, return_lse=False, return_probs=False, "
        "return_components=False, backend=None"
    ),
    "attention_backward": f"grad_output, query, key, value, output, lse, *, {ATTENTION}, backend=None",
    "embedding": "input, weight, *, backend=None",
    "embedding_backward": "grad_output, input, num_embeddings, *, backend=None",
    "cross_entropy": "input, target, *, ignore_index=-100, reduction='mean', backend=None",
    "cross_entropy_backward": "grad_output, input, target, *, ignore_index=-100, reduction='mean', backend=None",
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_signature(name):
    parameters = inspect.signature(getattr(kernels, name)).parameters.values()
    bare = inspect.Signature([parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters])
    assert str(bare) == f"({PUBLIC[name]})"


def test_every_public_function_is_exported_documented_and_written_down_here():
    defined = {
        function.name
        for operation in OPERATIONS
        for function in functions(KERNELS / operation / "__init__.py").values()
        if not function.name.startswith("_")
    }
    assert defined == set(PUBLIC) <= set(kernels.__all__)
    assert set(kernels.__all__) <= set(dir(kernels))
    for name in PUBLIC:
        documentation = inspect.getdoc(getattr(kernels, name))
        for section in ("Args:", "Raises:"):
            assert section in documentation, f"{name} lacks {section}"


def functions(path):
    """The functions that a module defines at its top level, by name."""
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def names(arguments):
    return [argument.arg for argument in arguments.args]


def dispatched(operation):
    """The names that a contract asks an implementation for."""
    tree = ast.parse((KERNELS / operation / "__init__.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    return {call.args[0].value for call in calls if call.func.attr in ("run", "compute")}


def test_every_operation_dispatches_both_directions():
    for operation in OPERATIONS:
        assert {operation, f"{operation}_backward"} <= dispatched(operation)


@pytest.mark.parametrize("backend", IMPLEMENTATIONS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_implementations_agree(operation, backend):
    path = KERNELS / operation / f"{IMPLEMENTATIONS[backend]}.py"
    if not path.exists():
        pytest.skip(f"{path.name} is not there; test_every_operation_is_complete reports it")
    expected, found = functions(KERNELS / operation / "reference.py"), functions(path)
    for name in sorted(dispatched(operation)):
        if backend == "cupy" and name.endswith("_backward") and name not in found:
            continue  # not there yet, and the dispatcher says so
        assert name in found, f"{operation}/{path.name} does not define {name}"
        arguments = found[name].args
        assert names(arguments) == names(expected[name].args), f"{name} in {operation}/{path.name}"
        assert not (arguments.defaults or arguments.kwonlyargs or arguments.vararg or arguments.kwarg)
