"""The rules that public signatures keep, and that a backend's functions have the parameters of the definition's.

The implementations are read as source text, so that the CUDA ones are compared where there is no CuPy.
"""

import ast
import inspect
import re
from dataclasses import fields
from pathlib import Path

import pytest

from bertcore import kernels
from bertcore.kernels.dispatch import IMPLEMENTATIONS
from bertcore.kernels.operation import OPERATIONS as RECORDS

KERNELS = Path(kernels.__file__).parent
OPERATIONS = sorted(path.parent.name for path in KERNELS.glob("*/reference.py"))
UPDATES = {"adam_update", "cast", "clip_norm", "muon_update"}  # of their arguments, in place
OF_INTEGERS = {"nearest_codes"}
DIFFERENTIATED = [*(operation for operation in OPERATIONS if operation not in UPDATES | OF_INTEGERS), "gelu"]
NEVER_COMPUTE = {"quantize_weight", "rotary_tables"}  # with a backend of the caller's choice


def functions(path):
    """The functions that a module defines at its top level, by name."""
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


PUBLIC = sorted(
    name
    for operation in OPERATIONS
    for name in functions(KERNELS / operation / "__init__.py")
    if not name.startswith("_") and name in kernels.__all__
)


def parameters(name):
    return inspect.signature(getattr(kernels, name)).parameters


def test_every_operation_is_public_in_both_directions():
    assert {*OPERATIONS, *(f"{operation}_backward" for operation in DIFFERENTIATED)} <= set(PUBLIC)
    assert set(kernels.__all__) <= set(dir(kernels))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function(name):
    """Its backend is the last argument and by keyword alone; its docstring names every argument and the errors."""
    given = parameters(name)
    documentation = inspect.getdoc(getattr(kernels, name))
    if name not in NEVER_COMPUTE:
        assert list(given)[-1] == "backend" and given["backend"].default is None
        assert given["backend"].kind is inspect.Parameter.KEYWORD_ONLY
    arguments = re.search(r"^Args:\n(.*?)^(?:Returns|Raises|\S)", documentation, re.M | re.S).group(1)
    assert not [each for each in given if not re.search(rf"\b{each}\b", arguments)]
    assert "Raises:" in documentation or "; errors are the same." in arguments


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_the_arguments_of_its_function(name):
    record, given = RECORDS[name], {*parameters(name)} - {"save", "backend", "relative"}
    terms = [] if name != "attention" else [field.name for field in fields(kernels.RelativePositions)]
    assert {*record.arguments} == given | {*terms}
    if name in OF_INTEGERS:
        return
    assert "save" in parameters(name)
    back = parameters(f"{name}_backward")
    assert list(back)[:2] == ["grad_output", "saved"] and list(back)[-1] == "backend" and len(back) <= 6
    assert {*record.options} <= {*back}
    assert {*record.gradients, *record.same_gradient} <= {*record.arguments}


def test_every_differentiable_operation_has_a_record():
    assert {*RECORDS} == {*DIFFERENTIATED, *OF_INTEGERS}
    assert all(getattr(kernels, RECORDS[name].saves.__name__) is RECORDS[name].saves for name in DIFFERENTIATED)
    assert all(RECORDS[name].saves is None for name in OF_INTEGERS)


def dispatched(operation):
    """The names that a contract asks an implementation for."""
    tree = ast.parse((KERNELS / operation / "__init__.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    found = {
        call.args[0].value
        for call in calls
        if call.func.attr in ("run", "compute") and call.args and isinstance(call.args[0], ast.Constant)
    }
    if operation in RECORDS:
        found |= {operation} if operation in OF_INTEGERS else {operation, f"{operation}_backward"}
    return found


@pytest.mark.parametrize("backend", IMPLEMENTATIONS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_implementations_agree(operation, backend):
    path = KERNELS / operation / f"{IMPLEMENTATIONS[backend]}.py"
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    if not path.exists():
        pytest.skip(f"{path.name} is not there; test_every_operation_is_complete reports it")
    expected, found = functions(KERNELS / operation / "reference.py"), functions(path)
    for name in sorted(dispatched(operation)):
        if backend == "cupy" and name.endswith("_backward") and name not in found:
            continue  # not there yet, and the dispatcher says so
        assert name in found, f"{operation}/{path.name} does not define {name}"
        arguments = found[name].args
        wanted = [argument.arg for argument in expected[name].args.args]
        assert [argument.arg for argument in arguments.args] == wanted, f"{name} in {operation}/{path.name}"
        assert not (arguments.defaults or arguments.kwonlyargs or arguments.vararg or arguments.kwarg)
