"""The contents of an installation, and the direction of imports."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bertcore
from bertcore import kernels

PACKAGE = Path(bertcore.__file__).parent
KERNELS = Path(kernels.__file__).parent
REPOSITORY = Path(__file__).parent.parent
FILES = sorted(PACKAGE.rglob("*.py"))

# Imports point down: what each part of bertcore may import of the others (and of itself).
MAY_IMPORT = {
    "kernels": set(),
    "tape": {"kernels"},
    "arguments": set(),
    "execution": {"arguments", "kernels", "models", "nn", "passes", "tape"},
    "passes": {"kernels", "tape"},
    "nn": {"arguments", "checkpoint", "kernels", "passes", "tape"},
    "heads": {"kernels", "nn", "passes", "tape"},
    "checkpoint": {"arguments", "file_readers", "system"},
    # the registry finds families
    "models": {"arguments", "checkpoint", "execution", "families", "heads", "kernels", "nn", "passes"}
    | {"presets", "system", "tape"},
    "families": {"checkpoint", "execution", "heads", "kernels", "models", "nn", "passes", "tape"},
    "presets": set(),
    "gradients": {"kernels", "nn", "tape"},
    "file_readers": set(),
    "formats": {"arguments", "checkpoint", "kernels", "models", "nn", "passes", "system", "tasks", "tokenization"},
    "training": {"arguments", "checkpoint", "drawing", "gradients", "kernels", "models", "nn", "passes", "tape"}
    | {"evaluation", "system", "tasks", "tokenization"},  # tasks for the trainers of encoders
    "evaluation": {"arguments", "kernels", "tasks"},
    "losses": {"training"},
    "lora": {"arguments", "checkpoint", "kernels", "models", "nn", "passes", "tape"},
    "tokenization": {"arguments", "checkpoint", "kernels"},
    "demo_model": {"checkpoint", "kernels"},
    "drawing": {"arguments"},
    "plots": {"arguments", "drawing", "kernels", "models", "tasks", "tokenization", "training"},
    "plugins": {"arguments", "checkpoint", "kernels", "models", "tasks", "tokenization", "training"},
    "serving": {"arguments", "checkpoint", "demo_model", "kernels", "system", "tasks"},
    "tasks": {"arguments", "checkpoint", "gradients", "kernels", "models", "nn", "passes", "system", "tape"}
    | {"tokenization"},
    "system": set(),
    "util": {"tasks"},
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


def imports_by_module():
    """The modules of bertcore and kernels, and the modules that each imports, wherever the statement or call stands."""
    found = {}
    for file in {*FILES, *KERNELS.rglob("*.py")}:
        root, name = (KERNELS, "bertcore.kernels") if KERNELS in file.parents else (PACKAGE, "bertcore")
        inner = file.relative_to(root).with_suffix("").parts
        found[".".join((name, *inner)).removesuffix(".__init__")] = file
    for module, file in found.items():
        package, targets = module if file.name == "__init__.py" else module.rpartition(".")[0], set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                start = package.rsplit(".", node.level - 1)[0] if node.level else ""
                base = ".".join(filter(None, (start, node.module)))
                for alias in node.names:
                    submodule = f"{base}.{alias.name}"
                    targets.add(submodule if submodule in found else base)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                name = getattr(node.args[0], "value", None)  # None for a name that is computed
                targets.add(package + name if str(name).startswith(".") else name)
        yield module, targets & set(found) - {module}


def test_reading_gguf_needs_no_tasks():
    """Tasks open checkpoints, and a GGUF file becomes one."""
    imports, reached = dict(imports_by_module()), {"bertcore.formats.gguf_model"}
    while new := {target for module in reached for target in imports[module]} - reached:
        reached |= new
    assert "bertcore.models.auto" in reached and not [name for name in reached if name.startswith("bertcore.tasks")]


def test_no_modules_import_each_other():
    """Take away, again and again, modules that import none of those left: a circle is what stays."""
    left = dict(imports_by_module())
    assert len(left) > 300
    while free := [module for module, targets in left.items() if not targets & set(left)]:
        for module in free:
            del left[module]
    assert not {module: targets & set(left) for module, targets in left.items()}


def versions(text):
    """Requirements in quotes, by name: the versions that they allow."""
    found = re.findall(r'["\']([A-Za-z][\w.-]*)((?:[<>=]=?[\d.]+,?)+)', text)
    return {re.sub("[-.]", "_", name.lower()): limits.split(",") for name, limits in found}


def test_numba_has_an_upper_bound():
    """Its private functions are patched: a new release may change them."""
    limits = versions((REPOSITORY / "setup.py").read_text())["numba"]
    assert [limit[0] for limit in limits] == [">", "<"]


def test_the_image_is_pinned():
    """Each requirement of setup.py that the image has is one version in constraints.txt, and the base one release."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()[1:]
    pinned = {name.lower(): version for name, version in (line.split("==") for line in lines)}
    required = versions((REPOSITORY / "setup.py").read_text())
    image = {"click", "numpy", "numba", "ml_dtypes", "safetensors", "tokenizers", "tbb", "starlette", "uvicorn"}
    assert image | {"orjson", "prometheus_client", "huggingface_hub"} <= pinned.keys() and image <= required.keys()
    for name in image:
        for limit in required[name]:
            sign, bound = re.match(r"([<>]=?)(.*)", limit).groups()
            found, wanted = ([int(part) for part in version.split(".")] for version in (pinned[name], bound))
            assert {">=": found >= wanted, "<": found < wanted}[sign], (name, pinned[name], limit)
    containerfile = (REPOSITORY / "Containerfile").read_text()
    assert re.search(r"^ARG PYTHON=\S+:\d+\.\d+\.\d+-slim-[a-z]+$", containerfile, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", containerfile, re.MULTILINE)) == {"$PYTHON"}


def test_a_checkout_without_links_is_refused(tmp_path):
    """Git on Windows writes the name of the target into a file; an empty wheel would follow."""
    for name in ("setup.py", "README.md"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "bertcore").write_text("../bertcore")
    found = subprocess.run([sys.executable, "setup.py", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, "") and "expected a link to ../bertcore" in found.stderr
