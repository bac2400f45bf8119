"""The folder of the disk cache: compiled kernels, and downloads of bertcore."""

import getpass
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from .own_name import PROJECT, setting, variable


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

    Failing both, the first that exists or would exist, although nothing can be kept there. Raises OSError if there is
    no candidate, or if BERTCORE_CACHE_DIR does not exist and cannot be created.
    """
    for folder in cache_candidates():
        with suppress(OSError):
            if (folder / holding).is_dir():
                _check_owner(folder)
                _check_owner(folder / holding)
                return folder
            _check_writable(folder)
            return folder
    for folder in cache_candidates():
        with suppress(OSError):
            _check_owner(folder)
            if not (folder / holding).is_dir() and (folder.is_dir() or not setting("CACHE_DIR")):
                return folder
    folder = writable_cache_folder()  # raises the error
    _check_owner(folder / holding)
    return folder


def _check_writable(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_owner(folder)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _check_owner(folder: Path) -> None:
    """Raise PermissionError unless the folder belongs to the user or to root, because cached code is run.

    Another user may have created a folder in a shared place first. A folder that does not exist passes.
    """
    if hasattr(os, "getuid") and folder.exists() and _owner(folder) not in (os.getuid(), 0):
        raise PermissionError(1, f"{folder} belongs to another user")


def _owner(folder: Path) -> int:
    return folder.stat().st_uid


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user id without an entry in passwd
        return str(os.getuid()) if hasattr(os, "getuid") else "user"
