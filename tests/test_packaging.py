"""The contents of an installation, and the direction of imports."""

import ast
from pathlib import Path

import pytest

import bertcore
from bertcore import kernels

PACKAGE = Path(bertcore.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Imports point down: what each part of bertcore may import of the others (and of itself).
MAY_IMPORT = {
    "kernels": set(),
    "tape": {"kernels"},
    "arguments": set(),
    # a pass needs kernels and the tape alone; the executors run the blocks, and name an encoder's type
    "execution": {"arguments", "kernels", "models", "nn", "tape"},
    "nn": {"arguments", "checkpoint", "execution", "kernels", "tape"},
    "heads": {"execution", "kernels", "nn", "tape"},
    "checkpoint": set(),
    # the registry finds families
    "models": {"arguments", "checkpoint", "execution", "families", "heads", "kernels", "nn", "presets", "tape"},
    "families": {"checkpoint", "execution", "heads", "kernels", "models", "nn", "tape"},
    "presets": set(),
    "gradients": {"kernels", "nn", "tape"},
    "training": {"arguments", "checkpoint", "execution", "gradients", "kernels", "models", "nn", "tape"},
    "lora": {"arguments", "checkpoint", "kernels", "models", "nn"},
    "tokenization": {"arguments", "checkpoint", "kernels"},
    "demo_model": {"kernels"},
    "plots": {"kernels", "tasks", "training"},
    "plugins": {"arguments", "checkpoint", "kernels", "models", "tasks", "tokenization", "training"},
    "serving": {"checkpoint", "demo_model", "kernels", "tasks"},
    "tasks": {"arguments", "checkpoint", "execution", "gradients", "kernels", "models", "nn", "tape", "tokenization"},
}
ON_TOP = {"__init__", "__main__", "cli"}


@pytest.mark.parametrize("root", [PACKAGE, Path(kernels.__file__).parent], ids=["bertcore", "kernels"])
def test_every_folder_is_a_package(root):
    """setup.py finds packages by their __init__.py: a folder without one would be missing from a wheel."""
    missing = {file.parent for file in root.rglob("*.py") if not (file.parent / "__init__.py").is_file()}
    assert not missing


def part_of(file):
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(file):
    """The parts of bertcore that a file names in import statements."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("bertcore."))
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "bertcore":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module.startswith("bertcore."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.ImportFrom):
            assert node.level < 2, f"{file}: a relative import that leaves its folder"


def test_every_part_has_its_place():
    assert {part_of(file) for file in FILES} - ON_TOP == set(MAY_IMPORT) - {"kernels"}


def test_imports_point_down():
    for file in FILES:
        part = part_of(file)
        if part not in ON_TOP:
            assert set(imported_parts(file)) <= MAY_IMPORT[part] | {part}, file
