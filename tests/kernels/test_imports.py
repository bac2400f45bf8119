"""Importing the kernels: the modules it loads, names that stay functions, the folder under another name."""

import ast
import shutil
import sys
from pathlib import Path

import pytest

from bertcore import kernels
from bertcore.kernels._numba import LEVEL
from tests.processes import run_python
from tests.test_packaging import imports_by_module

KERNELS = Path(kernels.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(KERNELS).with_suffix("").parts).removesuffix(".__init__")
    for path in KERNELS.glob("[a-z]*/**/*.py")
)
HEAVY = ("numba", "cupy", "tokenizers", "torch", "llvmlite", "ml_dtypes")
# Beyond the standard library; only modules of a backend may load more than NumPy.
ALLOWED = {"numpy", "numba", "llvmlite", "cupy", "cuda", "ml_dtypes"}  # cuda.pathfinder comes with CuPy


def run(code):
    return run_python(code)[0]


ON_NUMPY = """
import numpy as np
from bertcore import kernels
kernels.linear(np.ones((2, 3)), np.ones((4, 3)), activation="gelu", backend="numpy")
"""
THREADS = "import bertcore; bertcore.set_num_threads(bertcore.get_num_threads())"


@pytest.mark.parametrize("code", ["import bertcore", "import bertcore.kernels", THREADS, ON_NUMPY])
def test_no_other_backend_is_loaded(code):
    assert not run(f"{code}\nimport sys; print(*(name for name in {HEAVY} if name in sys.modules))").split()


def test_functions_stay_functions_when_submodules_are_imported():
    names = [name for name in kernels.__all__ if name != "PreparedWeight"]
    imports = "\n".join(f"import bertcore.kernels.{module}" for module in MODULES)
    assert "bertcore.kernels.softmax.reference" in imports and "bertcore.kernels.softmax.cpu" in imports
    output = run(
        f"{imports}\nimport types, bertcore.kernels as kernels\n"
        f"print(*(name for name in {names} if isinstance(getattr(kernels, name), types.ModuleType)))"
    )
    assert not output.split()


def is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(path):
    """(level, module) of every import statement of a file, but for those that type checkers alone read."""
    tree = ast.parse(path.read_text())
    unread = {id(node) for block in tree.body if is_for_types(block) for node in ast.walk(block)}
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)


def test_the_folder_imports_itself_relatively_and_little_else():
    for path in sorted(KERNELS.rglob("*.py")):
        for level, module in imports(path):
            top = module.partition(".")[0]
            is_host = path == KERNELS / f"{top}.py"  # torch.py needs PyTorch; nothing here imports it
            assert level or is_host or top in ALLOWED or top in sys.stdlib_module_names, f"{path}: import {module}"


def test_arrows_point_down():
    """program -> operations -> dispatch -> deferred; tests/test_packaging.py finds circles."""
    program = "bertcore.kernels.program"
    operations = tuple(f"bertcore.kernels.{path.parent.name}." for path in KERNELS.glob("*/reference.py"))
    for module, targets in imports_by_module():
        if module.startswith("bertcore.kernels") and not module.startswith(program):
            assert not [name for name in targets if name.startswith(program)], f"{module} imports the program"
        if module.rpartition(".")[2] in ("dispatch", "deferred", "checks"):
            assert not [name for name in targets if f"{name}.".startswith(operations)], module


def test_a_copy_goes_by_its_own_name(tmp_path):
    """The folder, vendored under another name, needs nothing of the package."""
    shutil.copytree(KERNELS, tmp_path / "numerics", ignore=shutil.ignore_patterns("__pycache__"))
    code = f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
import numerics, numpy as np
assert numerics.get_backend() == "numba" and numerics.__file__.startswith({str(tmp_path)!r})
numerics.embedding(np.array([1]), np.ones((2, 3), np.float32))
from numerics._numba import LEVEL, cache_folder
for module in {MODULES}:
    importlib.import_module(f"numerics.{{module}}")
assert "bertcore" not in sys.modules and "cupy" not in sys.modules
print(LEVEL.name, cache_folder())
"""
    ours = {"BERTCORE_BACKEND": "numpy", "BERTCORE_ISA": "generic", "BERTCORE_CACHE_DIR": str(tmp_path / "ours")}
    theirs = {"NUMERICS_BACKEND": "numba", "NUMERICS_CACHE_DIR": str(tmp_path / "theirs")}
    out, err = run_python(code, **ours, **theirs)
    level, folder = out.split(" ")
    assert level == LEVEL.name and folder.startswith(str(tmp_path / "theirs")) and not (tmp_path / "ours").exists()
    assert err.startswith("numerics: compiling kernels") and "  embedding.cpu." in err and "bertcore" not in err
