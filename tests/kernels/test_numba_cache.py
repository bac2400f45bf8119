"""Compiled kernels on disk: their place, validity, damage, read-only folders, concurrent processes."""

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from bertcore.kernels._numba.compile import cache
from tests.processes import finish, run_python, start_python

KERNEL = """
from bertcore.kernels._numba import kernel

@kernel
def f(x):
    return x + 1
"""

# Calls the kernel, and prints where its cache is and which compilations there were.
CALL = """
import importlib.util, sys
import numba
before = numba.config.CACHE_DIR
from bertcore.kernels._numba.compile import cache
assert numba.config.CACHE_DIR == before
spec = importlib.util.spec_from_file_location("bertcore.kernels.pretend", sys.argv[1])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with cache.compilations() as names:
    for value in map(eval, sys.argv[2:]):
        assert module.f(value) == value + 1
print(cache.cache_folder(), len(names))
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "pretend.py").write_text(KERNEL)
    return tmp_path / "source" / "pretend.py"


def call(file, *values, **variables):
    """(cache folder, number of compilations, stderr) of a process that calls f with `values`."""
    out, err = run_python(CALL, str(file), *(values or ["1"]), **variables)
    folder, count = out.rsplit(" ", 1)
    return Path(folder), int(count), err


def in_folder(folder):
    return {"BERTCORE_CACHE_DIR": str(folder)}


def test_compilation_is_announced_once(file, tmp_path):
    _, count, err = call(file, "1", "1.5", **in_folder(tmp_path))
    assert (count, err.count("compiling kernels")) == (2, 1)
    assert call(file, "1", "1.5", **in_folder(tmp_path))[1:] == (0, "")


@pytest.mark.slow
def test_damaged_files_are_compiled_again(file, tmp_path):
    call(file, **in_folder(tmp_path))
    (stored,) = tmp_path.rglob("*.nbc")
    whole = stored.read_bytes()
    for content in (b"", b"no kernel at all" * 10, whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        stored.write_bytes(content)
        assert call(file, **in_folder(tmp_path))[1] == 1
    assert call(file, **in_folder(tmp_path))[1:] == (0, "")


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX users")
@pytest.mark.parametrize("variable", ["BERTCORE_CACHE_DIR", "NUMBA_CACHE_DIR"])
def test_kernels_that_others_can_write_are_not_run(file, tmp_path, variable):
    places = {"BERTCORE_CACHE_DIR": "", variable: str(tmp_path / "cache")}
    call(file, **places)
    (stored,) = tmp_path.rglob("*.nbc")
    assert (stored.stat().st_mode & 0o777, stored.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert call(file, **places)[1:] == (0, "")
    for changed in (stored, stored.parent):
        mode = changed.stat().st_mode
        changed.chmod(mode | 0o020)
        _, count, err = call(file, **places)
        assert count == 1
        if changed == stored.parent:
            assert f"compiled kernels are not kept: {stored.parents[1]}: {changed} has the mode 0720, expected" in err
            changed.chmod(mode)


def test_only_changed_code_is_compiled_again(file, tmp_path):
    call(file, **in_folder(tmp_path))
    text = KERNEL.replace("def f(x):", 'def f(x):\n    """Add one."""')
    file.write_text(f'"""A kernel."""\n\n# One,\n# twice.\n\n{text}')
    assert call(file, **in_folder(tmp_path))[1:] == (0, "")
    file.write_text(f"{KERNEL}\nONE = 1\n")
    assert call(file, **in_folder(tmp_path))[1] == 1


def test_modules_outside_the_package_are_read_anew(file):
    known = cache.Sources()
    before = known.digest_outside(file)
    file.write_text(KERNEL.replace("x + 1", "x + 2"))
    assert known.digest_outside(file) not in (before, known.digest(cache.ROOT / "softmax" / "cpu.py"))
    file.write_text(KERNEL)
    assert known.digest_outside(file) == before


EDITS = [  # file -> (text, another), and what is compiled again of RECOMPILED
    ({"softmax/cpu.py": ("GRAIN = 1 << 1", "GRAIN = 1 << 2")}, {"softmax"}),
    ({"_numba/pointwise.py": ("LINE = 1024", "LINE = 512")}, {"linear", "activation", "program"}),
    ({"_numba/products/__init__.py": ("TASK_ROWS = 128", "TASK_ROWS = 64")}, {"linear", "program"}),
    (
        {"_numba/simd/__init__.py": ("types.intp", "types.int64")},
        {"softmax", "embedding", "linear", "activation", "program"},
    ),
    (
        {
            "linear/cpu/__init__.py": ("Affine map", "Another map"),
            "_numba/rows.py": ("\n\n@helper\n", "\n\n# another\n@helper\n"),
            "_numba/compile/cache.py": ("UNUSED_DAYS = 90", "UNUSED_DAYS = 91"),
            "cache_folder.py": ("0o700", "0o755"),
            "embedding/reference.py": ("import", "import os\nimport"),
        },
        set(),
    ),
]
RECOMPILED = ("softmax", "embedding", "linear", "activation", "program")


def cpu_module(operation):
    folder = operation / "cpu" / "__init__.py"
    return folder if folder.is_file() else operation / "cpu.py"


def test_changed_modules_recompile_their_dependents(tmp_path):
    root = tmp_path / "kernels"
    shutil.copytree(cache.ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))

    def digests():
        found = cache.Sources(root, "bertcore.kernels")
        return {operation: found.digest(cpu_module(root / operation)) for operation in RECOMPILED}

    before = digests()
    for edits, expected in EDITS:
        originals = {name: (root / name).read_text() for name in edits}
        for name, (text, another) in edits.items():
            assert text in originals[name]
            (root / name).write_text(originals[name].replace(text, another))
        after = digests()
        for name, original in originals.items():
            (root / name).write_text(original)
        assert {operation for operation, digest in after.items() if digest != before[operation]} == expected, edits


def test_dependencies_are_the_loaded_modules():
    code = """
import ast, sys
from pathlib import Path
from bertcore.kernels._numba.compile.cache import ROOT, Sources
import bertcore.kernels.linear.cpu
loaded = {module.__file__ for name, module in sys.modules.items() if name.startswith("bertcore.kernels._numba.")}
sources = Sources()
sources.digest(ROOT / "linear" / "cpu" / "__init__.py")
other = loaded - {str(file) for file in sources._modules}
print(*sorted(Path(file).name for file in other if len(ast.parse(Path(file).read_text()).body) > 1))
"""
    assert set(run_python(code)[0].split()) == {Path(file).name for file in cache.AROUND_KERNELS} | {"shipped.py"}


def test_digests_are_cached_by_source_text(tmp_path):
    digests = cache.package_digests.__wrapped__
    before = digests(tmp_path)
    (kept,) = tmp_path.glob("sources-*.json")
    kept.write_text(kept.read_text().replace(before["linear/cpu/__init__.py"], "another"))
    assert digests(tmp_path) == before | {"linear/cpu/__init__.py": "another"}
    kept.write_text("damaged")
    assert digests(tmp_path) == before


OTHER_CPUS = [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_FEATURES": ""}, {"BERTCORE_ISA": "generic"}]


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHER_CPUS, ids=lambda other: next(iter(other)))
def test_cpus_do_not_share_kernels(file, tmp_path, other):
    assert call(file, **in_folder(tmp_path))[1] == 1
    assert call(file, **in_folder(tmp_path), **other)[1] == 1
    assert call(file, **in_folder(tmp_path), **other)[1] == 0
    assert call(file, **in_folder(tmp_path))[1] == 0


def test_concurrent_processes_with_an_empty_cache(file, tmp_path):
    values = ["1", "1.5", "True"]
    processes = [start_python(CALL, str(file), *values[i:], *values[:i], **in_folder(tmp_path)) for i in range(2)]
    for process in processes:
        finish(process)
    assert call(file, *values, **in_folder(tmp_path))[1:] == (0, "")
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.fixture
def read_only(tmp_path):
    """read_only(folder): take away the right to write in it, until the test ends."""
    (tmp_path / "locked").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    if os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("nothing is read-only for this user")
    locked = []

    def lock(folder):
        for path in [folder, *folder.rglob("*")]:
            locked.append((path, path.stat().st_mode))
            path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))

    yield lock
    for path, mode in reversed(locked):
        path.chmod(mode)


def test_read_only_cache(file, tmp_path, read_only):
    kernels = tmp_path / "kernels"
    call(file, "1", **in_folder(kernels))
    read_only(kernels)
    assert call(file, "1", **in_folder(kernels))[1:] == (0, "")
    _, count, err = call(file, "1", "1.5", "1j", **in_folder(kernels))
    assert count == 2
    assert err.count("compiled kernels are not kept: ") == 1 and "Permission denied" in err


def test_no_writable_folder(file, tmp_path, read_only):
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    read_only(nowhere)
    # As in a container with a read-only file system: there is no folder for temporary files, either.
    code = f"import tempfile; tempfile.tempdir = {str(nowhere)!r}\n{CALL}"
    out, err = run_python(code, str(file), "1", BERTCORE_CACHE_DIR="", HOME=str(nowhere))
    assert out.endswith(" 1") and err.count("compiled kernels are not kept: ") == 1


def age(path, days):
    then = time.time() - days * 24 * 3600
    os.utime(path, (then, then))


@pytest.mark.slow
def test_removal_of_unused_files(file, tmp_path):
    old, stale = tmp_path / "numba-0123456789ab" / "linear_1", tmp_path / "numba-ba9876543210" / "linear_1"
    for folder in (old, stale, tmp_path / "downloads"):
        folder.mkdir(parents=True)
        for name in ("f.nbc", "f.nbi", "f.12.tmp"):
            (folder / name).write_text("")
            age(folder / name, cache.UNUSED_DAYS + 1)
    age(stale / "f.nbc", cache.UNUSED_DAYS - 1)
    call(file, **in_folder(tmp_path))
    assert not old.parent.exists()
    assert [path.name for path in stale.iterdir()] == ["f.nbc"]
    assert len(list((tmp_path / "downloads").iterdir())) == 3
