"""Importing the kernels: the modules it loads, names that stay functions, the folder under another name."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertcore import kernels
from bertcore.kernels._numba import LEVEL
from tests.processes import run_python

KERNELS = Path(kernels.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(KERNELS).with_suffix("").parts).removesuffix(".__init__")
    for path in KERNELS.glob("[a-z]*/**/*.py")
)
HEAVY = ("numba", "cupy", "tokenizers", "torch", "llvmlite", "ml_dtypes")
# Beyond the standard library; only modules of a backend may load more than NumPy.
ALLOWED = {"numpy", "numba", "llvmlite", "cupy", "cuda", "ml_dtypes"}  # cuda.pathfinder comes with CuPy


def run(code, folder=None):
    result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("module", ["bertcore", "bertcore.kernels"])
def test_import_loads_no_backend(module):
    loaded = run(f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))").split()
    assert not loaded


def test_the_numpy_backend_loads_no_other():
    loaded = run(
        "import sys, numpy as np\nfrom bertcore import kernels\n"
        "kernels.linear(np.ones((2, 3)), np.ones((4, 3)), activation='gelu', backend='numpy')\n"
        f"print(*(name for name in {HEAVY} if name in sys.modules))"
    ).split()
    assert not loaded


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


def inner_imports(path):
    """The files of the folder that a file imports, also within its functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = path.parents[node.level - 1].joinpath(*filter(None, (node.module or "").split(".")))
        for place in (base, *(base / alias.name for alias in node.names)):
            yield from (file for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists())


def test_arrows_point_down():
    """program -> operations -> dispatch -> deferred, and no circle."""
    arrows = {path: set(inner_imports(path)) for path in KERNELS.rglob("*.py")}
    operations = {path.parent for path in KERNELS.glob("*/reference.py")}
    program = KERNELS / "program"
    for path, imported in arrows.items():
        if path.parent != program:
            assert not {file for file in imported if file.parent == program}, f"{path} imports the program"
    for name in ("dispatch", "deferred", "checks"):
        assert not {file for file in arrows[KERNELS / f"{name}.py"] if file.parent in operations}, name
    left = {path: imported - {path} for path, imported in arrows.items() if path != KERNELS / "__init__.py"}
    while done := {path for path, imported in left.items() if not imported & left.keys()}:
        left = {path: imported for path, imported in left.items() if path not in done}
    assert not left, f"a circle in {sorted(map(str, left))}"


@pytest.mark.slow
def test_vendored_under_another_name(tmp_path):
    shutil.copytree(KERNELS, tmp_path / "numerics", ignore=shutil.ignore_patterns("__pycache__"))
    code = f"""
import importlib, sys
import numpy as np
import numerics
from numerics import use_backend

assert numerics.__file__.startswith({str(tmp_path)!r})
x = np.arange(12, dtype=np.float32).reshape(3, 4)
with use_backend("numpy"):
    assert np.allclose(numerics.softmax(x).sum(-1), 1)
    assert numerics.linear(x, numerics.prepare_weight(x), activation="gelu").shape == (3, 3)
    numerics.attention(x[:, None], x[:, None], x[:, None], cu_seqlens=np.array([0, 1, 3]))
for module in {MODULES}:
    importlib.import_module(f"numerics.{{module}}")
assert "bertcore" not in sys.modules and "cupy" not in sys.modules
"""
    run(code, tmp_path)


def test_a_copy_goes_by_its_own_name(tmp_path):
    shutil.copytree(KERNELS, tmp_path / "numerics", ignore=shutil.ignore_patterns("__pycache__"))
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import numerics, numpy as np
assert numerics.get_backend() == "numba"
numerics.embedding(np.array([1]), np.ones((2, 3), np.float32))
from numerics._numba import LEVEL, cache_folder
print(LEVEL.name, cache_folder())
"""
    ours = {"BERTCORE_BACKEND": "numpy", "BERTCORE_ISA": "generic", "BERTCORE_CACHE_DIR": str(tmp_path / "ours")}
    theirs = {"NUMERICS_BACKEND": "numba", "NUMERICS_CACHE_DIR": str(tmp_path / "theirs")}
    out, err = run_python(code, **ours, **theirs)
    level, folder = out.split(" ")
    assert level == LEVEL.name and folder.startswith(str(tmp_path / "theirs")) and not (tmp_path / "ours").exists()
    assert err.startswith("numerics: compiling kernels") and "  embedding.cpu." in err and "bertcore" not in err
