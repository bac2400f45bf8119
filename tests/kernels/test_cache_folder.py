"""The folder of compiled kernels, and kernels that a wheel ships."""

import ast
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest

from bertcore.kernels import cache_folder
from bertcore.kernels._numba import LEVEL
from bertcore.kernels._numba.compile import shipped
from bertcore.kernels.cache_folder import (
    cache_candidates,
    check_private,
    make_private,
    read_private,
    usable_cache_folder,
    writable_cache_folder,
    write_private,
)
from tests.kernels.test_numba_cache import CALL, KERNEL, call, in_folder
from tests.processes import run_python
from tests.refusals import refuses


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.delenv("BERTCORE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_order(monkeypatch, tmp_path):
    user = [tmp_path / "home" / ".cache" / "bertcore"]
    assert cache_candidates()[:-1] == user
    assert cache_candidates()[-1].parent == tmp_path / "temporary"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_candidates()[0] == tmp_path / "xdg" / "bertcore"


def test_explicit_folder_is_created(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTCORE_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert writable_cache_folder() == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_explicit_folder_never_falls_back(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTCORE_CACHE_DIR", str(tmp_path / "file" / "sub"))
    refuses(OSError, r"set BERTCORE_CACHE_DIR to one\. Tried: .*/file/sub \(Not a directory\)", writable_cache_folder)


def test_unwritable_home(monkeypatch, tmp_path):
    (tmp_path / "home").write_text("not a folder")
    assert writable_cache_folder() == cache_candidates()[-1]


# --- other users --------------------------------------------------------------------------------------------------

posix = pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX users")


@pytest.fixture
def users(monkeypatch):
    """Paths -> the user that lstat and fstat report as their owner."""
    owners, lstat = {}, Path.lstat

    def owned(path):
        found = lstat(path)
        return os.stat_result([*found[:4], owners.get(path, found.st_uid), *found[5:10]])

    monkeypatch.setattr(Path, "lstat", owned)
    return owners


@posix
@pytest.mark.parametrize("explicit", [False, True])
def test_folder_of_another_user_is_rejected(monkeypatch, tmp_path, users, explicit):
    (tmp_path / "home").write_text("not a folder")
    folder = Path(cache_candidates()[-1])
    if explicit:
        folder = tmp_path / "mine"
        monkeypatch.setenv("BERTCORE_CACHE_DIR", str(folder))
    (folder / "kernels").mkdir(parents=True)
    users |= {folder: 4242, folder / "kernels": 4242}
    refuses(OSError, "belongs to user 4242, expected this user or root", writable_cache_folder)
    for owner in (4242, 0):
        users[folder] = owner
        if explicit:
            refuses(OSError, "belongs to user 4242, expected this user or root", usable_cache_folder, "kernels")
        else:  # the home's, where nothing can be kept
            assert usable_cache_folder("kernels") == cache_candidates()[0]
    users[folder / "kernels"] = os.getuid()
    assert usable_cache_folder("kernels") == folder


WRITABLE = [  # level of a/b/file -> its mode, and whether the file is private
    ("a", 0o775, False),
    ("a", 0o757, False),
    ("a", 0o1777, True),  # as /tmp
    ("a/b", 0o770, False),
    ("a/b/file", 0o620, False),
    ("a/b/file", 0o644, True),
]


@posix
@pytest.mark.parametrize("level, mode, is_private", WRITABLE)
def test_what_others_can_write_is_not_read(tmp_path, level, mode, is_private):
    file = tmp_path / "a" / "b" / "file"
    write_private(file, b"content")
    assert [oct(path.stat().st_mode & 0o777) for path in (file, *file.parents[:2])] == ["0o600", "0o700", "0o700"]
    (tmp_path / level).chmod(mode)
    if is_private:
        assert read_private(file) == b"content"
        return
    with pytest.raises(
        PermissionError, match=f"{tmp_path / level} has the mode 0{mode:o}, expected one that lets only"
    ):
        read_private(file)


@posix
def test_a_sticky_folder_holds_nothing_itself(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o1777)
    refuses(PermissionError, "has the mode 1777", write_private, tmp_path / "a" / "file", b"")


@posix
def test_links_are_looked_at_like_folders(tmp_path, users):
    write_private(tmp_path / "real" / "folder" / "file", b"content")
    (tmp_path / "link").symlink_to("real/../real/folder")
    assert read_private(tmp_path / "link" / "file") == b"content"
    users[tmp_path / "link"] = 4242
    refuses(PermissionError, f"{tmp_path / 'link'} belongs to user 4242", read_private, tmp_path / "link" / "file")
    del users[tmp_path / "link"]
    (tmp_path / "real").chmod(0o777)
    refuses(PermissionError, f"{tmp_path / 'real'} has the mode 0777", check_private, tmp_path / "link" / "file")
    (tmp_path / "circle").symlink_to("circle")
    refuses(OSError, "Too many levels", check_private, tmp_path / "circle")
    refuses(PermissionError, f"{tmp_path / 'real'} has the mode 0777", make_private, tmp_path / "link" / "a")
    assert not (tmp_path / "real" / "folder" / "a").exists()
    (tmp_path / "real").chmod(0o700)
    (tmp_path / "file").symlink_to("link/file")  # a file is never a link
    refuses(OSError, "Too many levels", read_private, tmp_path / "file")


@posix
def test_root_may_be_unmapped_above_a_file(monkeypatch, tmp_path, users):
    file = tmp_path / "a" / "file"
    write_private(file, b"content")
    users[tmp_path] = 65534
    monkeypatch.setattr(cache_folder, "unmapped_user", lambda: 65534)
    assert read_private(file) == b"content"
    users[file] = 65534
    refuses(PermissionError, f"{file} belongs to user 65534", read_private, file)


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root, to be two users")
def test_another_user_in_a_shared_folder():
    """The other user makes each level before this one does: as a folder, and as a link to its own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chmod(shared, 0o1777)
        theirs, links = Path(shared, "theirs"), Path(shared, "links")
        command = f"mkdir {theirs} && touch {theirs}/file && ln -s {theirs} {links}"
        subprocess.run(["/bin/sh", "-c", command], user=4242, check=True)
        for folder in (theirs, links):
            refuses(PermissionError, f"{folder} belongs to user 4242", read_private, folder / "file")
            refuses(PermissionError, f"{folder} belongs to user 4242", write_private, folder / "new", b"")
        assert [path.name for path in theirs.iterdir()] == ["file"]
        write_private(Path(shared, "mine", "file"), b"content")
        assert read_private(Path(shared, "mine", "file")) == b"content"


def test_a_system_without_numbers_of_users(monkeypatch, tmp_path):
    """Nothing is checked on Windows, where a file that others read cannot be replaced."""
    monkeypatch.delattr(os, "getuid", raising=False)
    file = tmp_path / "a" / "file"
    write_private(file, b"old")
    file.parent.chmod(0o777)
    assert read_private(file) == b"old"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(PermissionError("in use")))
        write_private(file, b"new")
        refuses(PermissionError, "in use", write_private, tmp_path / "a" / "another", b"new")
    assert [(each.name, each.read_bytes()) for each in file.parent.iterdir()] == [("file", b"old")]


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
    refused(start, f"{kernel} has a SHA-256 other than that in digests.json")


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
    assert shipped.read_file(kernel) == b""
    for changed, mode in ((kernel, 0o777), (kernel.parent, 0o777), (code, 0o755)):
        before = changed.stat().st_mode
        changed.chmod(mode)
        refuses(PermissionError, None, shipped.read_file, kernel)
        changed.chmod(before)
    link = kernel.with_name("link.nbc")
    link.symlink_to(kernel)
    refuses(PermissionError, None, shipped.read_file, link)


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
