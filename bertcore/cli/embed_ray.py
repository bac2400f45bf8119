"""`bertcore embed --ray`: workers embed the parts of a corpus, each into a file of its own that appears whole."""

import functools
import hashlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcore.checkpoint.files import read_json_object
from bertcore.cli import TERMINATED
from bertcore.cli.options import CommandError
from bertcore.cli.outputs import output_stream
from bertcore.plugins.corpus import Part, corpus_files, parts_of, texts_of

if TYPE_CHECKING:
    from bertcore.cli.embed import Embed

NOTE = "embed.json"  # beside the parts: the model, corpus and options that they were made with
RETRIES = 2  # of a worker that died: out of memory, or with its machine
# The files of a model's folder that decide its embeddings.
MODEL_FILES = (".json", ".txt", ".model", ".safetensors", ".bin")


class PartEmbedder:
    """A worker that holds the model and writes the embeddings of one part after another."""

    def __init__(self, folder: Path, args: "Embed"):
        self._folder, self._args = folder, args

    @functools.cached_property
    def _encoder(self) -> Any:
        return self._args.encoder(self._folder)

    def load(self) -> None:
        """Load the model, and check the options by it."""
        self._encoder.encode([], **self._args.encoding_options())

    def embed(self, part: Part, target: Path) -> int:
        """Write a part's embeddings and return the number of its rows."""
        as_npy = self._args.format == "npy"
        with output_stream(str(target), seekable=as_npy) as output, self._args.chosen_backend():
            self._args.write(output, self._encoder, texts_of(part, self._args.column or "text"), as_npy=as_npy)
        return part.rows


def embed_on_ray(folder: Path, args: "Embed") -> None:
    """Embed the corpus FILE into the folder --output; parts that are there already are kept."""
    root, out = Path(args.file or "").absolute(), Path(args.output).absolute()
    files = corpus_files(root)
    parts = [part for file in files for part in parts_of(file, args.part_rows, args.column)]
    targets = [out / f"part-{number:06}.{args.format}" for number in range(len(parts))]
    facts = _facts(files, root, folder, args)
    _check_folder(out, facts)
    missing = [(part, target) for part, target in zip(parts, targets, strict=True) if not target.exists()]
    if not missing:
        return
    with _ray() as ray:
        workers = _workers(ray, folder.absolute(), args)  # its own working directory is another
        out.mkdir(parents=True, exist_ok=True)
        with output_stream(str(out / NOTE), seekable=False) as stream:
            stream.write(json.dumps(facts, indent=1).encode())
        _embed_all(ray, workers, missing, args.progress)


def _embed_all(ray: Any, workers: list[Any], missing: list[tuple[Part, Path]], progress: bool | None) -> None:
    from bertcore.tasks.texts import progress_bar

    pool = ray.util.ActorPool(workers)
    with progress_bar(sum(part.rows for part, _ in missing), progress) as advance, _own_errors(ray):
        for count in pool.map_unordered(lambda worker, pair: worker.embed.remote(*pair), missing):
            advance(count)


def _workers(ray: Any, folder: Path, args: "Embed") -> list[Any]:
    """Return the workers of --ray, each with the same number of CPUs, and so of threads."""
    nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    fitting = (share for share in range(max(nodes), 0, -1) if sum(cpus // share for cpus in nodes) >= args.ray)
    share = next(fitting, None)
    if share is None:
        raise CommandError(f"--ray is {args.ray}, expected at most the {sum(nodes)} CPUs of Ray")
    worker = ray.remote(num_cpus=share, max_restarts=RETRIES, max_task_retries=RETRIES)(PartEmbedder)
    workers = [worker.remote(folder, args) for _ in range(args.ray)]
    with _own_errors(ray):
        ray.get([each.load.remote() for each in workers])
    return workers


@contextmanager
def _ray() -> Iterator[Any]:
    """Return a block with Ray: the cluster that runs (RAY_ADDRESS, `ray start`), else one of this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends no statistics to its makers
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise CommandError('--ray needs Ray: pip install "bertcore[ray]"') from error
    if ray.is_initialized():
        yield ray
        return
    before = signal.getsignal(signal.SIGTERM)
    ray.init(include_dashboard=False, logging_level="ERROR")
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own handler does not clean up
        yield ray
    except SystemExit as exit:  # Ray has changed its code to 1
        raise SystemExit(TERMINATED) from exit
    finally:
        ray.shutdown()


@contextmanager
def _own_errors(ray: Any) -> Iterator[None]:
    """Return a block in which a worker's error is raised as its own, without Ray's frames."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _check_folder(out: Path, facts: Mapping[str, Any]) -> None:
    """Check that a folder holds nothing but parts of the same model, corpus and options."""
    if out.exists() and not out.is_dir():
        raise CommandError(f"{out} is a file, expected a folder: --ray writes a file for each part")
    note = out / NOTE
    held = [file.name for file in (out.iterdir() if out.exists() else ()) if not file.name.startswith(".")]
    if held and not note.is_file():
        raise CommandError(f"{out} holds files and no {NOTE}, expected a new or empty folder")
    if not any(name.startswith("part-") for name in held):
        return
    found = read_json_object(note)
    changed = [name for name, value in facts.items() if found.get(name) != value]
    if changed:
        was, now = (str(of.get(changed[0]))[:60] for of in (found, facts))
        raise CommandError(
            f"{out} has parts of another {changed[0]} ({was}, now {now}): give the options of the first run, or a new "
            "folder"
        )


def _facts(files: list[Path], root: Path, folder: Path, args: "Embed") -> dict[str, Any]:
    """Return everything that the parts depend on, by name."""
    names = ("dtype", "max_length", "truncation", "normalize", "prompt", "prompt_name", "format", "part_rows")
    options = {name: getattr(args, name) for name in (*names, "column", "backend")}
    corpus = {os.path.relpath(file, root.parent): [(found := file.stat()).st_size, found.st_mtime_ns] for file in files}
    return {"model": _fingerprint(folder), "corpus": corpus, **options}


def _fingerprint(folder: Path) -> str:
    """Return a digest of a model's files."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.suffix in MODEL_FILES and file.is_file():
            with file.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{file.relative_to(folder)} {found}\n".encode())
    return digest.hexdigest()
