"""Tiles are taken unasked only where a process of its own computed on them and was right: children that are right,
wrong, crash or hang, in place of one on AMX."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from bertcore.kernels import _numba, tile_proof
from bertcore.kernels._numba.compile import tile_verdict
from tests.kernels import amx_traps

DIGESTS = dict.fromkeys(tile_verdict._PROVED, "a digest")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tiles are Linux's alone")


@pytest.fixture
def child(monkeypatch, tmp_path):
    """child(program): what is run instead of the proof; kept in a folder of the test's own, which is returned."""

    def stand_in(program):
        monkeypatch.setattr(tile_verdict, "_PROGRAM", program.replace("{", "{{").replace("}", "}}"))
        monkeypatch.setattr(tile_verdict, "cache_folder", lambda: tmp_path)
        monkeypatch.setattr(tile_verdict, "package_digests", lambda folder: DIGESTS)  # half a second each time
        return tmp_path

    return stand_in


def forbid_another(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: pytest.fail("a process was started"))


def test_a_child_that_is_right_is_asked_once(child, monkeypatch, capfd):
    child("pass")
    assert tile_verdict.why_not_trusted("amx") is None
    assert "trying this CPU's tiles (AMX) in a process of its own" in capfd.readouterr().err
    forbid_another(monkeypatch)
    assert tile_verdict.why_not_trusted("amx") is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('int8: 3 of 99 results are wrong')", "said: int8: 3 of 99 results are wrong"),
        ("import sys; sys.exit(3)", "said: nothing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "ended by SIGILL"),
        ("import os; os.write(2, b'LLVM ERROR: Cannot select\\n'); os.abort()", "ended by SIGABRT"),
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("import sys; sys.stdin.read(1) or sys.exit('nobody answers')", "nobody answers"),
    ],
)
def test_whatever_else_a_child_does_is_a_reason_which_is_kept(child, monkeypatch, program, reason):
    folder = child(program)
    found = tile_verdict.why_not_trusted("amx")
    assert reason in found
    assert str(folder) in found  # the file to remove for another try
    forbid_another(monkeypatch)
    assert tile_verdict.why_not_trusted("amx") == found


def test_a_child_that_hangs_is_ended(child, monkeypatch):
    child("import time; time.sleep(600)")
    monkeypatch.setattr(tile_verdict, "MOST_SECONDS", 0.3)
    found = tile_verdict.why_not_trusted("amx")
    assert "took longer than 0 s, so they are tried again in an hour" in found
    with monkeypatch.context() as meanwhile:
        forbid_another(meanwhile)
        assert tile_verdict.why_not_trusted("amx") == found


@pytest.mark.parametrize("minutes", [61, -1])
def test_a_machine_that_was_busy_is_tried_again_after_an_hour(child, monkeypatch, minutes):
    """Also where its clock was set back."""
    child("import time; time.sleep(600)")
    with monkeypatch.context() as busy:
        busy.setattr(tile_verdict, "MOST_SECONDS", 0.3)
        tile_verdict.why_not_trusted("amx")
    child("pass")
    now = tile_verdict.time.time()
    monkeypatch.setattr(tile_verdict.time, "time", lambda: now + 60 * minutes)
    assert tile_verdict.why_not_trusted("amx") is None
    assert json.loads(tile_verdict.verdict_file("amx").read_text())["until"] is None


def test_a_child_that_somebody_ended_says_nothing_of_the_tiles(child):
    folder = child(f"import os; os.kill(os.getpid(), {signal.SIGKILL:d})")
    found = tile_verdict.why_not_trusted("amx")
    assert "ended by SIGKILL" in found
    assert str(folder) not in found  # it is not kept
    child("pass")
    assert tile_verdict.why_not_trusted("amx") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"reas', '{"level": "amx"}'])
def test_a_damaged_file_is_written_anew(child, content):
    child("pass")
    file = tile_verdict.verdict_file("amx")
    file.write_text(content)
    assert tile_verdict.why_not_trusted("amx") is None
    assert json.loads(file.read_text())["reason"] is None


def test_where_nothing_can_be_kept_nothing_is_tried(child, monkeypatch, tmp_path):
    child("pass")
    (tmp_path / "file").touch()
    monkeypatch.setattr(tile_verdict, "cache_folder", lambda: tmp_path / "file" / "folder")
    forbid_another(monkeypatch)
    assert "not tried, for that cannot be kept" in tile_verdict.why_not_trusted("amx")


def test_a_folder_that_can_only_be_read_serves(child, monkeypatch):
    child("pass")
    tile_verdict.why_not_trusted("amx")
    monkeypatch.setattr(tile_verdict, "_alone", lambda file: pytest.fail("written"))
    monkeypatch.setattr(tile_verdict, "_keep", lambda *args: pytest.fail("written"))
    assert tile_verdict.why_not_trusted("amx") is None


@pytest.mark.parametrize("executable", ["", None, "/usr/bin/uwsgi", "/opt/app/my-server"])
def test_a_program_that_is_no_python_is_not_started(child, monkeypatch, executable):
    child("pass")
    monkeypatch.setattr(sys, "executable", executable)
    forbid_another(monkeypatch)
    assert "there is no Python to try them in" in tile_verdict.why_not_trusted("amx")


def test_a_sandbox_without_processes(child, monkeypatch):
    child("pass")

    def refuse(*args, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert "no process could be started" in tile_verdict.why_not_trusted("amx")


def test_who_comes_meanwhile_waits(child, tmp_path):
    started = tmp_path / "started"
    child(f"import time; open({str(started)!r}, 'a').write('once '); time.sleep(0.5)")
    found = []
    threads = [threading.Thread(target=lambda: found.append(tile_verdict.why_not_trusted("amx"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [None] * 4
    assert started.read_text() == "once "


@pytest.mark.parametrize("changed", ["cpu", "code", "Linux", "level"])
def test_another_machine_or_version_is_tried_anew(child, monkeypatch, changed):
    child("pass")
    before, level = tile_verdict.verdict_file("amx"), "amx"
    if changed == "cpu":
        monkeypatch.setattr(tile_verdict, "_cpu", lambda: ["model name: another"])
    elif changed == "code":
        monkeypatch.setattr(
            tile_verdict, "package_digests", lambda folder: DIGESTS | {"attention/cpu/__init__.py": "edited"}
        )
    elif changed == "Linux":
        monkeypatch.setattr(tile_verdict.platform, "release", lambda: "7.0")
    else:
        level = "amx_emulated"
    assert tile_verdict.verdict_file(level) != before


def test_it_depends_on_the_code_of_this_package():
    assert set(tile_verdict._PROVED) <= set(tile_verdict.package_digests(tile_verdict.cache_folder()))


def test_the_child_has_the_parents_modules_and_the_level(child, tmp_path):
    child(f"import os; open({str(tmp_path / 'told')!r}, 'w').write(os.environ['BERTCORE_ISA'])")
    assert tile_verdict.why_not_trusted("avx2") is None
    assert (tmp_path / "told").read_text() == "avx2"


def test_the_proof_wants_the_level_that_it_is_for():
    with pytest.raises(SystemExit, match=f"the level is {_numba.LEVEL.name}, expected another"):
        tile_proof.prove("another")


@pytest.mark.parametrize("name", ["_bfloat16", "_int8", "_attention"])
def test_the_proof_finds_one_wrong_bit(monkeypatch, name):
    for each in ("_bfloat16", "_int8", "_attention"):
        right = np.ones(5, np.float32)
        wrong = np.nextafter(right, 2, where=np.arange(5) == 3, out=right.copy())
        monkeypatch.setattr(tile_proof, each, lambda random, x=wrong if each == name else right: (x, np.ones(5)))
    with pytest.raises(SystemExit, match=f"{name.strip('_')}: 1 of 5 results are wrong"):
        tile_proof.prove(_numba.LEVEL.name)


@pytest.mark.slow
def test_every_bit_is_right_on_the_twin():
    assert tile_verdict.try_level("amx_emulated") == (None, tile_verdict.FOREVER)


@pytest.mark.slow
@pytest.mark.skipif(amx_traps.why_not() is not None, reason="the code for AMX cannot run here")
def test_every_bit_is_right_where_instructions_are_trapped(monkeypatch):
    trapped = "import sys; sys.path[:] = {path!r}; from tests.kernels import amx_traps; amx_traps.begin(); "
    monkeypatch.setattr(tile_verdict, "_PROGRAM", trapped + tile_verdict._PROGRAM)
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])
    reason, kept = tile_verdict.try_level("amx")
    assert (reason, kept) == (None, tile_verdict.FOREVER)


@pytest.mark.slow
def test_the_answers_do_not_come_from_tiles():
    """On any level's vectors the same numbers are exact: they are the definition's, not the twin's."""
    assert tile_verdict.try_level(_numba.LEVEL.name) == (None, tile_verdict.FOREVER)


def test_importing_starts_no_process():
    program = "import subprocess; subprocess.Popen = None; import bertcore, bertcore.kernels; import sys"
    program += "; assert 'bertcore.kernels._numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
