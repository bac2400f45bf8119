"""Replacing files: what is written appears complete or not at all, and files that belong together at once."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .errors import CheckpointError

if os.name == "posix":
    import fcntl

STALE_SECONDS = 3600  # a temporary file that nobody has written to for so long is nobody's

# Stands in the place of a file while what belongs to it is replaced. No reader takes it for a config or a tokenizer.
NOTE = b'{"bertcore_saving": "the files beside this one are being replaced; this one comes last"}\n'


def made_folder(folder: str | os.PathLike) -> Path:
    """The folder of that name, made when it is not there; ValueError for no name, which would be the current folder."""
    if not os.fspath(folder):
        raise ValueError("folder is empty, expected the name of a folder ('.' for the current one)")
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    return path


def replace_files(folder: Path, writers: Mapping[str, Callable[[Path], object]]) -> None:
    """Write files that belong together into `folder`, name -> function that writes the path it is given.

    All are written under temporary names first. Then a note takes the place of the first file (`check_complete` knows
    it), the others are replaced, and the first one last. A process that is killed at any moment leaves the old files,
    the new ones, or the note; an error or an interrupt leaves the old ones. Of several processes and threads that do it
    at once each leaves its own files whole, the last one those that stay. OSError names the file, not a temporary.
    """
    guard, *others = targets = [folder / name for name in writers]
    for target in targets:
        sweep(target)
        if target.is_dir() and not target.is_symlink():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    with contextlib.ExitStack() as cleanup:
        new = {target: _temporary(target, cleanup) for target in targets}
        old = {target: _temporary(target, cleanup) for target in targets}
        note = _temporary(guard, cleanup)
        with naming(guard):
            note.write_bytes(NOTE)
        for target, write in zip(targets, writers.values(), strict=True):
            with naming(target):
                write(new[target])
                shutil.copymode(note, new[target])  # safetensors makes files that only their owner may read
                sync(new[target])
        with _alone_in(folder):
            if os.path.lexists(guard):
                shutil.copy2(guard, old[guard], follow_symlinks=False)
            try:
                _switch(guard, others, new, old, note)
            finally:
                if os.path.lexists(new[guard]):  # it comes last: all of them stay as they were
                    _restore(targets, new, old)
    sync(folder)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """A block that one thread of one process at a time is in for each folder, where the system locks folders."""
    if os.name != "posix":
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a folder that may not be read, file systems without locks (some of NFS)
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)  # which ends the lock, as the end of the process does
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _switch(guard: Path, others: list[Path], new: Mapping[Path, Path], old: Mapping[Path, Path], note: Path) -> None:
    with naming(guard):
        os.replace(note, guard)
    sync(guard.parent)
    for target in others:
        with naming(target):
            if os.path.lexists(target):
                os.replace(target, old[target])
            os.replace(new[target], target)
    sync(guard.parent)
    with naming(guard):
        os.replace(new[guard], guard)


def _restore(targets: list[Path], new: Mapping[Path, Path], old: Mapping[Path, Path]) -> None:
    """Put the files back that were there before a switch that failed, the first one last."""
    for target in reversed(targets):
        if os.path.lexists(old[target]):
            os.replace(old[target], target)
        elif not os.path.lexists(new[target]) or target == targets[0]:
            target.unlink(missing_ok=True)


def check_complete(file: Path) -> None:
    """CheckpointError if in the place of `file` stands the note that `replace_files` leaves when it is killed."""
    if file.is_file() and file.stat().st_size == len(NOTE) and file.read_bytes() == NOTE:
        raise CheckpointError(f"{file.parent}: saving was interrupted before {file.name} was in place; save again")


@contextlib.contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """A fresh name beside `target` (os.replace cannot cross file systems); what stands there is removed at the end.

    What processes that were killed have left beside `target` is removed, too.
    """
    sweep(target)
    with contextlib.ExitStack() as cleanup:
        yield _temporary(target, cleanup)


def _temporary(target: Path, cleanup: contextlib.ExitStack) -> Path:
    file = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    cleanup.callback(_remove, file)
    return file


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):  # where nothing can be written, removing nothing is an error, too
        path.unlink(missing_ok=True)


def sweep(target: Path) -> None:
    """Remove the temporary files beside `target` whose processes are gone, or that are no longer written to."""
    form = re.compile(rf"\.{re.escape(target.name)}\.(\d+)\.[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError):  # of other users, of other processes that sweep: not what was asked for
        for path in target.parent.iterdir():
            match = form.fullmatch(path.name)
            if match and (not _is_alive(int(match[1])) or time.time() - path.lstat().st_mtime > STALE_SECONDS):
                _remove(path)


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # there, a signal of 0 is no question
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def sync(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk, where it can."""
    if path.is_dir() and (os.name != "posix" or not os.access(path, os.R_OK)):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that cannot do it for a folder
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def naming(target: Path) -> Iterator[None]:
    """A block in which an error of the system names `target` and not the temporary file, which no user knows."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error
