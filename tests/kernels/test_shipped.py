"""Kernels that an installed package brings compiled: they are found, checked and never written."""

import ast
import importlib
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import numba
import pytest

from bertcore.kernels._numba import LEVEL
from bertcore.kernels._numba.compile import shipped
from tests.kernels.test_numba_cache import CALL, KERNEL, call, in_folder
from tests.processes import run_python

# As packaging/kernels does: for the level whatever this CPU is.
COMPILE = f"""
import runpy, sys
pretend = runpy.run_path("packaging/kernels/compile_kernels.py")["pretend"]
pretend({LEVEL.name!r}, sys.argv.pop())
{CALL}"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A source file, and a folder for sys.path with its kernel compiled for integers."""
    folder = tmp_path_factory.mktemp("shipped")
    source, package = folder / "source" / "pretend.py", folder / "site" / "bertcore_kernels"
    for each in (source.parent, package):
        each.mkdir(parents=True)
    source.write_text(KERNEL)
    (package / "__init__.py").touch()
    run_python(COMPILE, str(source), "1", str(folder / "cache"))
    shutil.copytree(folder / "cache" / f"numba-{numba.__version__}", package / LEVEL.name)
    shipped.write_list(package)
    return source, folder / "site"


@pytest.fixture
def start(made, tmp_path):
    """start(*values): call the kernel in a new process with an empty cache; start.package is the shipped folder."""
    source, site = made
    shutil.copytree(site, tmp_path / "site")
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])

    def start(*values):
        _, count, err = call(source, *values, **in_folder(tmp_path / "cache"), PYTHONPATH=path)
        return count, err

    start.package, start.cache = tmp_path / "site" / "bertcore_kernels", tmp_path / "cache"
    return start


def refused(start, reason):
    """Check that the kernel is compiled, that one line says why, and that the user's own is used then."""
    count, err = start("1")
    lines = [line for line in err.splitlines() if "bertcore-kernels" in line]
    assert count == 1 and len(lines) == 1 and reason in lines[0], err
    assert start("1") == (0, "")


def test_nothing_is_compiled_or_written(start):
    before = {file: file.read_bytes() for file in start.package.rglob("*.nbc")}
    assert len(before) == 1
    assert start("1", "2") == (0, "")
    assert not list(start.cache.rglob("*.nbc"))
    assert start("1", "1.5")[0] == 1  # which is not shipped
    assert {file: file.read_bytes() for file in start.package.rglob("*.nbc")} == before


def test_altered_files_are_not_run(start):
    (kernel,) = start.package.rglob("*.nbc")
    content = kernel.read_bytes()
    kernel.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused(start, f"{kernel} has another SHA-256 than digests.json says")


def test_other_versions_are_compiled(start):
    names = start.package / shipped.LIST
    listed = json.loads(names.read_text())
    listed["made_for"]["numba"] = "0.1"
    names.write_text(json.dumps(listed))
    refused(start, f"it is made for numba 0.1 (this is {numba.__version__})")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX users")
@pytest.mark.parametrize("pattern", ["*.nbc", shipped.LIST])
def test_files_that_others_can_write_are_not_run(start, pattern):
    (file,) = start.package.rglob(pattern)
    file.chmod(0o664)
    refused(start, f"{file} has the mode 0664, expected one that lets only its owner write")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX users")
def test_writable_like_numba_itself(tmp_path, monkeypatch):
    """With umask 002 the user's own group can write all packages: Numba, too, so that kernels add no risk."""
    code, kernel = tmp_path / "numba" / "__init__.py", tmp_path / "bertcore_kernels" / "avx2" / "f.nbc"
    for file in (code, kernel):
        file.parent.mkdir(parents=True)
        file.touch()
        for each in (file, *file.parents):
            each.chmod(0o775)
            if each.parent == tmp_path:
                break
    monkeypatch.setattr(numba, "__file__", str(code))
    assert shipped._read(kernel) == b""
    for changed, mode in ((kernel, 0o777), (kernel.parent, 0o777), (code, 0o755)):
        before = changed.stat().st_mode
        changed.chmod(mode)
        with pytest.raises(PermissionError):
            shipped._read(kernel)
        changed.chmod(before)
    link = kernel.with_name("link.nbc")
    link.symlink_to(kernel)
    with pytest.raises(PermissionError):
        shipped._read(link)


def test_summary(made, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "find", shipped.find.__wrapped__)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "kernels" not in entry])
    assert shipped.summary() == "none: bertcore-kernels is not installed"
    shutil.copytree(made[1], tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    folder = tmp_path / "site" / "bertcore_kernels"
    assert shipped.summary() == f"{folder}, 1 for {LEVEL.name}"
    for content in ("[]", "{}", "no list"):
        (folder / shipped.LIST).write_text(content)
        assert shipped.summary() == "not used: digests.json is damaged"


def test_the_build_imports_existing_names():
    """The build itself takes minutes: tests/test_installation.py runs it."""
    folder = Path(__file__).parents[2] / "packaging" / "kernels"
    nodes = [node for file in folder.glob("*.py") for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module.startswith("bertcore")]
    assert len(imports) > 4
    for node in imports:
        for alias in node.names:
            module = importlib.import_module(node.module)
            assert hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}"), alias.name
