"""The folder of the disk cache (compiled kernels, and downloads of bertcore), and files that no other user can change.

Compiled kernels are code: only `read_private` and `write_private` read and write them.
"""

import errno
import getpass
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from .settings import PROJECT, setting, variable


def cache_candidates() -> list[Path]:
    """Return folders that may hold the cache, preferred ones first; BERTCORE_CACHE_DIR, if set, is the only one."""
    if setting("CACHE_DIR"):
        return [Path(setting("CACHE_DIR"))]
    folders = []
    if os.environ.get("XDG_CACHE_HOME"):
        folders.append(Path(os.environ["XDG_CACHE_HOME"]) / PROJECT)
    with suppress(RuntimeError):  # no home folder
        folders.append(Path.home() / ".cache" / PROJECT)
    with suppress(FileNotFoundError):  # no folder for temporary files
        folders.append(Path(tempfile.gettempdir()) / f"{PROJECT}-{_user_name()}")
    return folders


def writable_cache_folder() -> Path:
    """Return the first writable candidate, creating it if necessary. Raises OSError if there is none."""
    refusals = []
    for folder in cache_candidates():
        try:
            _check_writable(folder)
        except OSError as error:
            refusals.append(f"{folder} ({error.strerror or error})")
        else:
            return folder
    raise OSError(f"no writable cache folder; set {variable('CACHE_DIR')} to one. Tried: {', '.join(refusals)}")


def usable_cache_folder(holding: str) -> Path:
    """Return the first candidate that has a folder named `holding` (perhaps read-only, in a container), or is writable.

    Failing both, the first one, to which nothing is written. Raises OSError if there is no candidate, or if
    BERTCORE_CACHE_DIR cannot be created or another user could write to it.
    """
    folders = cache_candidates()
    for folder in folders:
        with suppress(OSError):
            if (folder / holding).is_dir():
                check_private(folder / holding)
            else:
                _check_writable(folder)
            return folder
    if setting("CACHE_DIR") and folders[0].is_dir():
        check_private(folders[0] / holding)
        return folders[0]
    return writable_cache_folder() if setting("CACHE_DIR") or not folders else folders[0]  # or raises the error


def _check_writable(folder: Path) -> None:
    make_private(folder)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user id may have no entry in passwd
        return str(os.getuid()) if hasattr(os, "getuid") else "user"


# --- files that no other user can change --------------------------------------------------------------------------

MOST_LINKS = 40  # on the way to a file, as in Linux


def check_private(path: Path) -> None:
    """Raise PermissionError if another user could change or replace the file or folder at `path`.

    Every level down to `path`, links included, must belong to this user or to root, and only its owner may write to it.
    Folders above `path` may be sticky instead (/tmp): others cannot rename or remove its entries. Levels that do not
    exist pass. On systems without user ids nothing is checked.
    """
    place, links = Path("/"), 0
    pending = list(reversed((Path.cwd() / path).parts)) if hasattr(os, "getuid") else []
    while pending:
        part = pending.pop()
        place = place.parent if part == ".." else place / part
        try:
            status = place.lstat()
        except FileNotFoundError:
            return
        _check_status(place, status, is_above=bool(pending))
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            pending += reversed(Path(os.readlink(place)).parts)
            place = place.parent


@cache
def unmapped_user() -> int:
    """Return the apparent owner of root's folders in a user namespace without root (Apptainer), else 0.

    Other users' folders have the same apparent owner: it is accepted only above a file, which must be the user's own.
    """
    with suppress(OSError):
        if Path("/proc/self/uid_map").read_text().split() != ["0", "0", str(2**32 - 1)]:
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return 0


def _check_status(place: Path, status: os.stat_result, *, is_above: bool = False) -> None:
    if status.st_uid not in (os.getuid(), 0, unmapped_user() if is_above else 0):
        raise PermissionError(errno.EPERM, f"{place} belongs to user {status.st_uid}, expected this user or root")
    is_sticky = is_above and status.st_mode & stat.S_ISVTX
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky and not stat.S_ISLNK(status.st_mode):
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        raise PermissionError(errno.EPERM, f"{place} has the mode {mode}, expected one that lets only its owner write")


def make_private(folder: Path) -> None:
    """Make a folder and its missing parents, with mode 0700. Raises OSError, also as `check_private`."""
    check_private(folder)  # a link of another user's would lead the new folders elsewhere
    for each in (*reversed(folder.parents), folder):
        with suppress(FileExistsError):
            if not each.exists():
                each.mkdir(mode=0o700)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    check_private(folder)


def read_private(file: Path) -> bytes:
    """Return the content of a file. Raises OSError, also as `check_private`, which the opened file must pass, too."""
    check_private(file)
    with open(os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as stream:
        if hasattr(os, "getuid"):
            _check_status(file, os.fstat(stream.fileno()))
        return stream.read()


def write_private(file: Path, content: bytes) -> None:
    """Write a file whole, with mode 0600, into a folder of `make_private`. Raises OSError."""
    make_private(file.parent)
    temporary = file.with_suffix(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(content)
        try:
            os.replace(temporary, file)
        except PermissionError:
            if hasattr(os, "getuid") or not file.exists():  # Windows cannot replace a file that others read now
                raise
    finally:
        temporary.unlink(missing_ok=True)
