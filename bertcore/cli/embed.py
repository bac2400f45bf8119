"""The command embed: lines in, embeddings out; a corpus of files on several workers of Ray."""

import functools
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import bertcore
from bertcore.cli import TERMINATED
from bertcore.cli.inputs import Reading, TextsCommand, model_digest, model_folder, output_stream, write_jsonl, write_npy
from bertcore.cli.options import CommandError, File, Positive, opt

if TYPE_CHECKING:
    from bertcore.plugins.corpus import RowRange

NOTE = "embed.json"  # beside the parts: the model, corpus and options that they were made with
LONG = 2.0  # seconds, after which a line sums up
RETRIES = 2  # of a worker that died: out of memory, or with its machine
ENDINGS = ("", ".npy", ".jsonl", ".json", ".txt")  # of output files in which a reader expects one of the formats


class Embed(TextsCommand, Reading):
    """Embed texts, one a line, into a NumPy array or JSON lines.

    Every line is a text, an empty line an empty text; line n of the output, or row n, is the embedding of line n of the
    input. Input is UTF-8; a byte order mark and carriage returns before line ends are not part of the texts. It is read
    as it comes, in bounded memory. An output file appears only when it is complete; when that took long, a line on
    standard error counts its rows.

    A line of JSON is an array of numbers; they are float32 and read back to the same bits.

    With --ray (pip install "bertcore[ray]") a corpus is embedded by several workers. FILE is a file or a folder of
    files: of text (.txt, .text, .md), of JSON lines (.jsonl, .json), each also with .gz, or Parquet. --output is a
    folder: each part of the corpus becomes a file of it, part-000000.npy and so on, in the order of the corpus, with
    the bits that one process gives. Run the same command again to make only the missing parts. The workers run on the
    cluster of RAY_ADDRESS, or on this machine; every worker must find the files under the same names.

    Examples:
        bertcore embed demo texts.txt -o embeddings.npy
        bertcore embed demo --text "one text" --text another
        zcat texts.gz | bertcore embed demo --format npy > embeddings.npy
        bertcore embed all-MiniLM-L6-v2/ corpus/ --column body --ray 4 -o vectors/
    """

    spellings = ("-o output",)
    needs = ("column ray", "part_rows ray")

    output: File = opt("the file to write, or - for standard output; with --ray a folder", "-")
    format: Annotated[str | None, ("npy", "jsonl")] = opt(
        "format of the output (default: by the ending of --output, else jsonl)"
    )
    normalize: bool = opt("scale embeddings to length 1, even if the published model does not", False)
    prompt: str | None = opt("text to put before every line")
    prompt_name: str | None = opt("name of one of the model's own prompts")
    progress: bool | None = opt("show progress or not (default: on a terminal, if it takes long)")
    ray: Positive | None = opt("embed a corpus of files on this many workers of Ray")
    column: str | None = opt("column of the texts in JSON lines and Parquet, with --ray (default: text)")
    part_rows: Positive | None = opt("rows of a part, with --ray (default: 65536)")

    def __post_init__(self) -> None:
        if self.ray and (self.file in (None, "-", "") or self.text):
            raise CommandError("--ray is given without FILE, expected a file or a folder")
        if self.ray and self.output in ("-", ""):
            raise CommandError("--ray is given without --output, expected a folder")
        super().__post_init__()
        ending = Path(self.output).suffix.lower()
        if not self.ray and self.format is None and ending not in ENDINGS:
            raise CommandError(f"--output is {self.output}, expected a name that ends in .npy or .jsonl, or --format")

    def run(self) -> None:
        if self.ray:
            with self.chosen_backend():
                self.backend = bertcore.get_backend()  # the workers compute on the same
            self.format, self.column = self.format or "npy", self.column or "text"
            self.part_rows = self.part_rows or 65536
            embed_on_ray(model_folder(self.model), self)
            return
        as_npy = self.format == "npy" or (self.format is None and Path(self.output).suffix.lower() == ".npy")
        to_terminal = self.output == "-" and sys.stdout is not None and sys.stdout.isatty()  # None: it is closed
        if as_npy and to_terminal:
            raise CommandError("standard output is a terminal, which npy is not for: give -o FILE, or --format jsonl")
        progress = False if self.progress is None and to_terminal else self.progress  # not among the results
        folder = model_folder(self.model)
        stream = output_stream(self.output, seekable=as_npy)
        with self.texts() as (lines, _), stream as output, self.chosen_backend():
            encoder, counted, started = self.encoder(folder), itertools.count(), time.perf_counter()
            texts = map(lambda line, number: line, lines, counted)
            self.write(output, encoder, texts, as_npy=as_npy, progress=progress)
        count, seconds = next(counted), time.perf_counter() - started
        if self.progress or (self.progress is None and self.output != "-" and seconds > LONG):
            speed = f"{count / seconds:,.0f} texts a second"
            print(f"{self.output}: {count:,} texts, {encoder.embedding_dimension} dimensions, {speed}", file=sys.stderr)

    def encoder(self, folder: Path) -> "bertcore.SentenceEncoder":
        return bertcore.SentenceEncoder(folder, dtype=self.dtype, max_seq_length=self.max_length)

    def encoding_options(self) -> dict[str, Any]:
        names = {"prompt": self.prompt, "prompt_name": self.prompt_name, "normalize_embeddings": self.normalize}
        return names | self.reading_options()

    def write(self, output: BinaryIO, encoder: Any, texts: Iterable[str], as_npy: bool, progress: Any = False) -> None:
        rows = encoder.encode_stream(texts, show_progress_bar=progress, **self.encoding_options())
        if as_npy:
            write_npy(output, rows, encoder.embedding_dimension)
        else:
            write_jsonl(output, rows)


# --- workers of Ray: each embeds parts of a corpus, each into a file of its own that appears whole --------------------


class PartEmbedder:
    """A worker that holds the model and writes the embeddings of one part after another."""

    def __init__(self, folder: Path, args: Embed):
        self._folder, self._args = folder, args

    @functools.cached_property
    def _encoder(self) -> "bertcore.SentenceEncoder":
        return self._args.encoder(self._folder)

    def load(self) -> None:
        """Load the model, and check the options by it."""
        self._encoder.encode([], **self._args.encoding_options())

    def embed(self, part: "RowRange", target: Path) -> int:
        from bertcore.plugins.corpus import texts_of

        as_npy = self._args.format == "npy"
        with output_stream(str(target), seekable=as_npy) as output, self._args.chosen_backend():
            self._args.write(output, self._encoder, texts_of(part, self._args.column or "text"), as_npy=as_npy)
        return part.rows


def embed_on_ray(folder: Path, args: Embed) -> None:
    """Embed the corpus FILE into the folder --output; parts that are there already are kept."""
    from bertcore.plugins.corpus import KNOWN, parts_of
    from bertcore.tasks.texts import progress_bar
    from bertcore.training.data.files import files_of

    root, out = Path(args.file or "").absolute(), Path(args.output).absolute()
    files = files_of(root, KNOWN)
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
        pool = ray.util.ActorPool(workers)
        with progress_bar(sum(part.rows for part, _ in missing), args.progress) as advance, _own_errors(ray):
            for count in pool.map_unordered(lambda worker, pair: worker.embed.remote(*pair), missing):
                advance(count)


def _workers(ray: Any, folder: Path, args: Embed) -> list[Any]:
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
    from bertcore.checkpoint.files import read_json_object

    found = read_json_object(note)
    changed = [name for name, value in facts.items() if found.get(name) != value]
    if changed:
        was, now = (str(of.get(changed[0]))[:60] for of in (found, facts))
        advice = "give the options of the first run, or a new folder"
        raise CommandError(f"{out} has parts of another {changed[0]} ({was}, now {now}): {advice}")


def _facts(files: list[Path], root: Path, folder: Path, args: Embed) -> dict[str, Any]:
    """Return everything that the parts depend on, by name."""
    names = ("dtype", "max_length", "truncation", "normalize", "prompt", "prompt_name", "format", "part_rows")
    options = {name: getattr(args, name) for name in (*names, "column", "backend")}
    corpus = {os.path.relpath(file, root.parent): [(found := file.stat()).st_size, found.st_mtime_ns] for file in files}
    return {"model": model_digest(folder), "corpus": corpus, **options}
