"""Files of a checkpoint: the error that names them, JSON, arrays, and replacing files that belong together.

A written file appears complete or not at all, and files that belong together appear at once. Saving holds a lock on the
folder while files take their places; loading shares this lock, and so waits (`bertcore.system`). The lock works between
containers, on file systems that support locks.
"""

import contextlib
import errno
import hashlib
import json
import mmap
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bertcore import system
from bertcore.arguments import check_path, printable
from bertcore.file_readers import naming_files
from bertcore.system import locked, replace, sync

CONFIG_NAME = "config.json"
HEAD_NAME = "head.safetensors"  # the head of static embeddings
WEIGHTS_ENDINGS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth")
MOST_DEPTH = 64  # of nested objects and lists: an error that showed a value 990 deep would fail itself
MOST_BYTES = 1 << 28  # of an index, a vocabulary or a config, which takes ten times as much memory once read
STALE_SECONDS = 3600  # where folders cannot be locked, a temporary one not written to for this long is abandoned

# Takes the place of a file while the files beside it are replaced. No reader takes it for a config or a tokenizer.
NOTE = b'{"bertcore_saving": "the files beside this one are being replaced; this one comes last"}\n'


_copies: ContextVar[bool] = ContextVar("copies", default=False)


@contextlib.contextmanager
def copied() -> Iterator[None]:
    """Copy weights opened in the block into memory: a process that maps a file crashes when others shorten it."""
    token = _copies.set(True)
    try:
        yield
    finally:
        _copies.reset(token)


def content_of(stream: BinaryIO) -> mmap.mmap | bytes:
    """Return the bytes of an open file, mapped or copied; copied also where a mapped file could not be replaced."""
    if system.REPLACES_OPEN_FILES and not _copies.get():
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    stream.seek(0)
    return stream.read()


MESSAGE = 1000  # characters of a long message that are kept at each end


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not fit the model; the message names the file and every problem.

    Control characters that the message quotes from a file or library are escaped: they may control a terminal. The
    middle of a long message is left out.
    """

    def __init__(self, message: str):
        message = naming_files(message)
        if len(message) > 2 * MESSAGE:
            message = f"{message[:MESSAGE]} ... {message[-MESSAGE:]}"
        super().__init__("\n".join(map(printable, message.split("\n"))))


def listed(items: list[str]) -> str:
    """Join `items` by commas; after ten, only their number is given."""
    rest = f", and {len(items) - 10} more" if len(items) > 10 else ""
    return ", ".join(items[:10]) + rest


def checkpoint_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of the checkpoint at `path`: the folder itself, or the folder of a file of weights.

    Raises CheckpointError if `path` is neither.
    """
    path = Path(path)
    if path.is_dir():
        return path
    if path.is_file() and path.name.endswith(WEIGHTS_ENDINGS):
        return path.parent
    what, endings = "is a file" if path.exists() else "does not exist", ", ".join(WEIGHTS_ENDINGS)
    expected = f"the folder of a checkpoint ({CONFIG_NAME} and weights), weights in it ({endings}), or a .gguf file"
    raise CheckpointError(f"{path} {what}, expected {expected}")


def missing_file(file: Path, otherwise: str) -> CheckpointError:
    """Return the error for a missing file; it says `otherwise` if nothing else is in the file's place."""
    if file.is_symlink() and not file.exists():
        advice = "copy a folder of the Hugging Face cache together with the files its links point to (cp -rL)"
        target = os.readlink(file)
        return CheckpointError(f"{file} is a link to {target}, which does not exist, expected a file: {advice}")
    if file.exists():
        return CheckpointError(f"{file} is {'a folder' if file.is_dir() else 'a device or a pipe'}, expected a file")
    here = sorted(entry.name for entry in file.parent.iterdir() if entry.name != system.LOCK_NAME)
    return CheckpointError(f"{file.parent} {otherwise}; it holds {listed(here) or 'nothing'}")


def model_type_of(config: Mapping[str, Any]) -> object:
    """Return the model_type of a config.json; "model2vec" where that library saved a table that it did not distil."""
    return config.get("model_type", "model2vec" if "normalize" in config else None)


def read_json_object(file: Path) -> dict[str, Any]:
    """Read the JSON object in `file`. Raises CheckpointError if it is not readable, not JSON or not an object."""
    content = read_complete(file)
    try:
        value = json.loads(content.decode("utf-8"))
        if _is_too_deep(value):
            raise RecursionError
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    except RecursionError as error:
        raise CheckpointError(f"{file} cannot be read: its JSON is nested too deeply") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a JSON {type(value).__name__}, expected an object")
    return value


def write_json(file: Path, value: object) -> None:
    """Write `value` as indented JSON; the file's folder is made if it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _is_too_deep(value: object) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_DEPTH):
        found = (inner.values() if isinstance(inner, dict) else inner for inner in level)
        level = [inner for values in found for inner in values if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def read_complete(file: Path) -> bytes:
    """Return the content of one of several files that belong together; wait for a process that replaces them.

    Raises CheckpointError if the file cannot be read, is a device, exceeds MOST_BYTES, or is the note that `replacing`
    leaves when it is killed.
    """
    try:
        if (size := file.stat().st_size) > MOST_BYTES:
            raise CheckpointError(f"{file} has {size} bytes, expected at most {MOST_BYTES}")
        if file.is_char_device():  # which may never end
            raise CheckpointError(f"{file} is a device, expected a file")
        content = file.read_bytes()
        if content == NOTE:
            with locked(file.parent, shared=True):
                content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error
    if content == NOTE:
        raise CheckpointError(f"{file.parent}: saving was interrupted before {file.name} was in place; save again")
    return content


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def made_folder(folder: str | os.PathLike[str]) -> Path:
    """Make a folder unless it exists. Raises ValueError for an empty name, which would be the current folder."""
    path = check_path("folder", folder)
    if not os.fspath(folder):
        raise ValueError("folder is empty, expected the name of a folder ('.' for the current one)")
    path.mkdir(parents=True, exist_ok=True)
    return path


def replace_files(folder: Path, writers: Mapping[str, Callable[[Path], object]]) -> None:
    """Write files that belong together into `folder`, name -> function that writes the path it is given.

    See `replacing`; the first file is the guard.
    """
    with replacing(folder, next(iter(writers))) as new:
        for name, write in writers.items():
            if (target := folder / name).is_dir() and not target.is_symlink():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
            with naming(target):
                write(new / name)


@contextlib.contextmanager
def replacing(folder: Path, guard_name: str) -> Iterator[Path]:
    """Yield a temporary folder whose files, at any depth, take their places in `folder` together when the block ends.

    A note takes the place of the guard first (`read_complete` detects it), the others are replaced, and the guard
    last. A process that is killed at any moment leaves the old files, the new ones, or the note; an error or an
    interrupt leaves the old ones. Processes and threads that save at the same time each leave a consistent set; the
    last one stays. OSError names the file, not the temporary one.
    """
    guard = folder / guard_name
    with temporary_beside(folder / guard.name) as work:
        made, note = work / "new", work / "note"
        with naming(guard):
            for path in (work, made, work / "old"):
                path.mkdir()
            note.write_bytes(NOTE)
        try:
            yield made
        except OSError as error:
            if error.errno is None or not str(error.filename).startswith(f"{made}{os.sep}"):
                raise
            raise OSError(error.errno, error.strerror, str(folder / Path(error.filename).relative_to(made))) from error
        files = [file for file in sorted(made.rglob("*")) if file.is_file()]
        new = {folder / file.relative_to(made): file for file in files}
        guard = guard if guard in new else next(iter(new))  # static embeddings have no config.json
        others = [target for target in new if target != guard]
        old = {target: work / "old" / str(number) for number, target in enumerate(new)}
        for target, file in new.items():
            with naming(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copymode(note, file)  # safetensors makes files that only their owner may read
                sync(file)
        with locked(folder):
            if os.path.lexists(guard):
                shutil.copy2(guard, old[guard], follow_symlinks=False)
            try:
                _switch(guard, others, new, old, note)
            finally:
                if os.path.lexists(new[guard]):  # the guard comes last: none of them was replaced for good
                    _restore([guard, *others], new, old)
    sync(folder)


def _switch(guard: Path, others: list[Path], new: Mapping[Path, Path], old: Mapping[Path, Path], note: Path) -> None:
    if others:
        with naming(guard):
            replace(note, guard)
        sync(guard.parent)
    for target in others:
        with naming(target):
            if os.path.lexists(target):
                replace(target, old[target])
            replace(new[target], target)
    sync(guard.parent)
    with naming(guard):
        replace(new[guard], guard)


def _restore(targets: list[Path], new: Mapping[Path, Path], old: Mapping[Path, Path]) -> None:
    """Put back the files from before a switch that failed, the first one last."""
    for target in reversed(targets):
        if os.path.lexists(old[target]):
            replace(old[target], target)
        elif not os.path.lexists(new[target]) or target == targets[0]:
            target.unlink(missing_ok=True)


@contextlib.contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Yield a fresh path in a temporary folder beside `target`, as a rename cannot cross file systems.

    The folder is removed with all that is left in it, as are folders that killed processes have left. It stays locked
    while its process lives: `remove_abandoned` cannot rely on a process number, which another container may use, too.
    """
    remove_abandoned(target)
    with contextlib.ExitStack() as cleanup:
        folder = target
        while folder == target or not folder.is_dir():  # removed between its making and its lock
            folder = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            with naming(target):
                folder.mkdir()
            cleanup.enter_context(locked(folder))
        yield folder / target.name


def remove_abandoned(target: Path) -> None:
    """Remove temporary folders beside `target` whose processes are gone; without locks, those not written to lately."""
    form = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{16}}\.tmp")
    with contextlib.suppress(OSError):  # there is no folder
        for path in [path for path in target.parent.iterdir() if form.fullmatch(path.name)]:
            with contextlib.suppress(OSError):  # another's, or removed by another
                with locked(path, wait=False) as is_held:
                    last = max(each.lstat().st_mtime for each in (path, *path.rglob("*")))
                    if is_held or time.time() - last > STALE_SECONDS:
                        shutil.rmtree(path, ignore_errors=True)
                if not system.OPENS_FOLDERS:
                    path.rmdir()  # the lock was in it


@contextlib.contextmanager
def naming(target: Path, *, nameless_alone: bool = False) -> Iterator[None]:
    """Make system errors in the block (on request, only those without a file) name `target`, not a temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (nameless_alone and error.filename is not None):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


class NpyStream:
    """An array that is written some rows at a time; `finish` completes it.

    The header is written again when the number of rows is known; NumPy pads it, so that its length stays the same.
    """

    def __init__(self, stream: BinaryIO, dtype: str, row: tuple[int, ...] = ()):
        self._stream, self._dtype, self._row, self.rows = stream, np.dtype(dtype), row, 0
        self._start = stream.tell()
        self._write_header()
        self._body = stream.tell()

    def _write_header(self) -> None:
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.rows, *self._row)}
        np.lib.format.write_array_header_1_0(self._stream, header)

    def write(self, rows: np.ndarray) -> None:
        self._stream.write(np.ascontiguousarray(rows, self._dtype).tobytes())
        self.rows += len(rows)

    def finish(self) -> None:
        self._stream.seek(self._start)
        self._write_header()
        if self._stream.tell() != self._body:
            raise RuntimeError(f"the header for {self.rows} rows ends at {self._stream.tell()}, expected {self._body}")
        self._stream.seek(0, os.SEEK_END)


def map_npy(file: Path, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Map an array of this dtype and shape, read-only. Raises CheckpointError for any other file; never unpickles."""
    if not file.is_file():
        raise missing_file(file, f"has no {file.name}")
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{file} is not an intact array: {error}") from error
    found = (array.dtype, array.shape) if isinstance(array, np.ndarray) else (type(array).__name__, None)
    if found != (np.dtype(dtype), shape) or not array.flags.c_contiguous:
        raise CheckpointError(f"{file} holds {found[0]} {found[1]}, expected {np.dtype(dtype)} {shape}")
    return np.asarray(array)
