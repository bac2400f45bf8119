"""The operating system: one module knows it, and has alternatives for a pretended Windows and macOS."""

import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from bertcore import SentenceEncoder, system
from bertcore.checkpoint.files import remove_abandoned, temporary_beside
from bertcore.serving import connections
from bertcore.tasks.index import VectorIndex
from tests import windows as pretended
from tests.processes import finish, start_python
from tests.refusals import refuses
from tests.tiny_bert import save_tiny_bert

REPOSITORY = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux pretends to be the others")


@pytest.fixture
def windows(monkeypatch):
    pretended.pretend(monkeypatch.setattr)


def test_locks_exclude_each_other(tmp_path, windows):
    with system.locked(tmp_path, shared=True) as first, system.locked(tmp_path, shared=True) as second:
        assert first and second
        with pytest.raises(BlockingIOError), system.locked(tmp_path, wait=False):
            pass
    with system.locked(tmp_path) as held:
        assert held and [file.name for file in tmp_path.iterdir()] == [system.LOCK_NAME]
        with pytest.raises(BlockingIOError), system.locked(tmp_path, shared=True, wait=False):
            pass
    assert not list(tmp_path.iterdir())


# Each of several processes writes a file of two parts and reads it, many times: a mixture is an error.
WORK = """
import sys, time
from pathlib import Path
from bertcore import system
from tests import windows

windows.pretend(setattr)
folder, own = Path(sys.argv[1]), sys.argv[2]
for _ in range(100):
    with system.locked(folder) as is_held:
        assert is_held
        (folder / "a").write_text(own)
        time.sleep(0.0005)
        (folder / "b").write_text(own)
    with system.locked(folder, shared=True) as is_held:
        assert is_held
        a = (folder / "a").read_text()
        time.sleep(0.0005)
        assert a == (folder / "b").read_text()
print("whole")
"""


def test_locks_hold_between_processes(tmp_path):
    running = [start_python(WORK, str(tmp_path), name) for name in "xyz"]
    assert ["whole" in finish(each)[0] for each in running] == [True] * 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


def test_a_folder_that_cannot_be_locked(tmp_path, windows, monkeypatch):
    with system.locked(tmp_path / "missing") as held:
        assert not held
    monkeypatch.setattr(system, "msvcrt", None)  # neither of the two: a system that locks nothing
    with system.locked(tmp_path) as held:
        assert not held


def test_a_lock_waits_for_its_file_to_be_removed(tmp_path, windows, monkeypatch):
    opened, refusals = os.open, iter([PermissionError()] * 3)

    def open_later(*args):
        for refusal in refusals:
            raise refusal
        return opened(*args)

    monkeypatch.setattr(os, "open", open_later)
    with system.locked(tmp_path) as held:
        assert held


def test_a_model_is_saved_over_itself(tmp_path, windows):
    save_tiny_bert(tmp_path)
    encoder = SentenceEncoder(tmp_path)
    encoder.save_pretrained(tmp_path)
    np.testing.assert_array_equal(SentenceEncoder(tmp_path).encode(["a b"]), encoder.encode(["a b"]))
    assert not [file.name for file in tmp_path.rglob(".*")]


def test_an_index_grows_while_it_is_open(tmp_path, windows):
    rows = np.eye(5, 8, dtype=np.float32)
    index = VectorIndex.build(tmp_path / "index", rows)
    VectorIndex(tmp_path / "index").add(rows)
    assert (len(index), len(VectorIndex(tmp_path / "index"))) == (5, 10)


def test_a_file_in_use_is_replaced_when_it_is_free(tmp_path, windows, monkeypatch):
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_text("new")
    old.write_text("old")
    with old.open() as stream:
        refuses(PermissionError, "cannot access the file", system.replace, new, old)
        monkeypatch.setattr(system.time, "sleep", lambda seconds: stream.close())
        system.replace(new, old)
    assert old.read_text() == "new"


def test_what_killed_processes_left_is_removed(tmp_path, windows):
    left = tmp_path / ".a.0123456789abcdef.tmp"
    left.mkdir()
    (left / "half").write_text("")
    with temporary_beside(tmp_path / "a") as held:
        remove_abandoned(tmp_path / "a")
        assert held.parent.is_dir() and not left.exists()
    assert not list(tmp_path.iterdir())


def test_what_is_written_is_flushed(tmp_path, windows, monkeypatch):
    """Windows refuses to flush a file that is open for reading alone."""
    modes, opened = [], os.open
    monkeypatch.setattr(os, "open", lambda path, flags: modes.append(flags) or opened(path, flags))
    (tmp_path / "file").write_text("a")
    system.sync(tmp_path / "file")
    system.sync(tmp_path)
    assert modes == [os.O_RDWR]


def test_output_is_utf8(windows, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    system.write_utf8()
    print("Ł", flush=True)
    assert written.getvalue().decode() == "Ł\n"


def test_connections_without_limits_of_files(windows):
    assert system.open_files() is None
    assert connections.connection_limits() == (connections.BACKLOG, connections.MOST_CONNECTIONS)


def test_only_linux_has_priorities_of_threads(windows, monkeypatch):
    monkeypatch.delattr(os, "setpriority")
    system.step_back(10)


def test_without_affinities(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1000)
    assert system.is_bound_to_cpus()
    monkeypatch.delattr(os, "sched_getaffinity")
    assert not system.is_bound_to_cpus()


def test_without_proc(monkeypatch):
    monkeypatch.setattr(system, "Path", lambda name: Path("/missing"))
    monkeypatch.setattr(system, "STATUS", Path("/missing"))
    assert system.process_age() > 0 and system.cpu_info("flags") == ""
    refuses(OSError, "the memory of a process is read from /missing", system.check_resident_is_reported)


# kernels/ can be copied alone: it asks by `hasattr`, and these files are about one system's own.
OF_ONE_SYSTEM = re.compile(
    r"\bfcntl\b|\bmsvcrt\b|os\.(name\b|fork|getuid|replace|setpriority|sched_)|sys\.platform|/proc/"
)
THEIR_PLACES = {
    "bertcore/system.py", "kernels/_numba/amx/permission.py", "kernels/_numba/compile/isa.py",
    "kernels/_numba/threads.py", "kernels/cache_folder.py", "kernels/threads.py",
}  # fmt: skip


def test_one_module_knows_the_system():
    files = [file for folder in ("bertcore", "kernels") for file in (REPOSITORY / folder).rglob("*.py")]
    found = {file.relative_to(REPOSITORY).as_posix() for file in files if OF_ONE_SYSTEM.search(file.read_text("utf-8"))}
    assert found == THEIR_PLACES
