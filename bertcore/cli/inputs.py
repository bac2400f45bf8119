"""The inputs and outputs of commands: models, texts, files that appear whole or not at all, arrays and tables."""

import errno
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

from bertcore.arguments import DTYPES, printable
from bertcore.cli.options import REQUIRED, UNWRITABLE, Command, CommandError, File, Positive, opt
from bertcore.system import replace

if TYPE_CHECKING:
    import numpy as np

    from bertcore.checkpoint.hub import Wanted

Dtype = Annotated[str | None, DTYPES]
# The files of a model's folder that decide its embeddings.
MODEL_FILES = (".json", ".txt", ".model", ".safetensors", ".bin")
Truncation = Annotated[str, ("warn", "error", "chunk", "cut")]


class Model(Command):
    """A command for a model."""

    positions = ("model",)
    title = "Model"

    model: File = opt(
        "folder of a model (config.json, *.safetensors, a tokenizer), its id on the Hugging Face hub, or demo for "
        "all-MiniLM-L6-v2",
        REQUIRED,
    )


class WithModel(Model):
    """A command that loads a model."""

    dtype: Dtype = opt(
        "dtype of the weights; bfloat16 and int8 are smaller, faster and less exact (see `bertcore precision`) "
        "(default: the dtype of a checkpoint that `bertcore quantize` wrote, else float32)"
    )


class Reading(WithModel):
    """A command that passes texts to a model."""

    spellings = ("--max-seq-length max_length",)

    max_length: Positive | None = opt("tokens of a text, or of a window (default: as published)")
    truncation: Truncation = opt(
        "treatment of texts that are longer than the model accepts: warn cuts them with a warning, error rejects "
        "them, chunk reads them whole in overlapping windows, cut cuts them silently",
        "warn",
    )
    batch_tokens: Positive | None = opt("tokens computed at once; bounds the memory")

    def loading_options(self, is_late: bool) -> dict[str, Any]:
        """Return the arguments of an encoder; a late-interaction encoder has a length of its own for documents."""
        more = {"document_length": self.max_length} if is_late else {}
        return {"dtype": self.dtype, "max_seq_length": self.max_length, **more}

    def reading_options(self) -> dict[str, Any]:
        batches = {"batch_tokens": self.batch_tokens} if self.batch_tokens else {}
        return {"truncation": True if self.truncation == "cut" else self.truncation, **batches}


class TextsCommand(Model):
    """A command that takes texts."""

    positions = ("model", "file")
    spellings = ("--input file",)
    title = "Texts"

    file: File | None = opt(
        "file of texts, one a line, or - for standard input, which is also read if nothing else is given"
    )
    text: tuple[str, ...] = opt("a literal text instead of FILE; may be repeated", ())

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_source(self.file, self.text)

    def texts(self) -> AbstractContextManager[tuple[Iterator[str], str]]:
        """Return a block with the texts as they come and the name of their source for messages."""
        return texts_from(self.file, self.text)

    @contextmanager
    def inputs(self) -> Iterator[Iterable[Any]]:
        with self.texts() as (texts, _):
            yield texts


class PairsCommand(TextsCommand):
    """A command that takes texts or pairs of texts."""

    pairs: bool = opt("each text is a pair, with a tab between its two texts", False)
    text_pair: tuple[str, ...] = opt("the second text of a --text, in the same order; may be repeated", ())

    def __post_init__(self) -> None:
        if self.text_pair and (len(self.text_pair) != len(self.text) or self.pairs):
            expected = f"once for each of {len(self.text)} --text, and no --pairs"
            raise CommandError(f"--text-pair is given {len(self.text_pair)} times, expected {expected}")
        super().__post_init__()

    @contextmanager
    def inputs(self) -> Iterator[Iterable[Any]]:
        """Return a block with texts, or {"text", "text_pair"} of pairs."""
        with self.texts() as (texts, _):
            if self.text_pair:
                texts = (f"{first}\t{second}" for first, second in zip(texts, self.text_pair, strict=True))
            yield map(pair_of, texts) if self.pairs or self.text_pair else texts


def pair_of(line: str) -> dict[str, str]:
    """Return the two texts of a line with a tab between them; CommandError for any other number of parts."""
    parts = line.split("\t")
    if len(parts) != 2:
        raise CommandError(f"{line[:60]!r} has {len(parts)} parts, expected two texts with a tab between them")
    return {"text": parts[0], "text_pair": parts[1]}


def check_one_source(file: str | None, texts: tuple[str, ...], name: str = "FILE") -> None:
    """Check that there is a file, standard input or literal texts, and not two of them."""
    if texts and file is not None:
        raise CommandError(f"{name} is {file!r:.80} and --text is given, too; expected one of them")
    if not texts and file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise CommandError(f"{name} is missing, expected a file of texts, - for standard input, or --text with a text")


@contextmanager
def texts_from(
    file: str | None, literal: tuple[str, ...] = (), argument: str = "FILE"
) -> Iterator[tuple[Iterator[str], str]]:
    """Return a block with texts, as they come, and the name of their source for messages.

    They are `literal`, or the lines of `file` ("-" or None: standard input), which the command line calls `argument`.
    """
    if literal:
        yield iter(literal), "--text"
        return
    from bertcore.tasks.texts import read_lines

    with input_stream("-" if file is None else file, argument) as (stream, name):
        yield read_lines(stream, name), name


def some_texts(file: str | None, literal: tuple[str, ...] = (), argument: str = "FILE") -> list[str]:
    """Return the texts of `texts_from`; CommandError if there are none."""
    with texts_from(file, literal, argument) as (texts, name):
        found = list(texts)
    if not found:
        raise CommandError(f"{name} holds no texts")
    return found


@contextmanager
def input_stream(path: str, argument: str = "FILE") -> Iterator[tuple[BinaryIO, str]]:
    """Return a block with the bytes of the file `path`, or of standard input for "-", and its name for messages."""
    if path != "-":
        try:
            stream = open(path, "rb")  # noqa: SIM115
        except IsADirectoryError:
            raise CommandError(f"{argument} is {path!r:.300}, a folder, expected a file") from None
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):
                raise
            hint = "" if argument.startswith("--") else "; literal texts are given by --text"
            raise CommandError(f"{argument} is {path!r:.300}, which does not exist{hint}") from error
        with stream:
            yield stream, path
        return
    if sys.stdin is None:
        raise CommandError(f"standard input is closed, expected texts in it, a file as {argument}, or --text")
    if sys.stdin.isatty():
        print("bertcore: reading texts from the terminal, one a line; Ctrl-D ends them", file=sys.stderr)
    yield sys.stdin.buffer, "stdin"


def model_folder(name: str, wanted: "Wanted" = "sentence_encoder") -> Path:
    """Return the folder of a model, fetched from the hub for an id (`checkpoint.resolve`); CommandError for none."""
    if name == "demo":
        from bertcore.demo_model import demo_model_folder

        return demo_model_folder()
    from bertcore import checkpoint

    folder = checkpoint.resolve(name, wanted)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CommandError(f"{name} {what}, expected the folder of a model, a .gguf file, an id on the hub, or demo")
    return folder


def model_digest(folder: Path) -> str:
    from bertcore.checkpoint.files import digest_of

    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.suffix in MODEL_FILES and file.is_file():
            digest.update(f"{file.relative_to(folder)} {digest_of(file)}\n".encode())
    return digest.hexdigest()


class Output(Command):
    """A command that writes its answers."""

    title = "Output"
    spellings = ("-o output",)

    output: File = opt("the file to write, or - for standard output", "-")
    json: bool = opt("write JSON, a line for each answer", False)


def check_matplotlib(name: str) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(f"{name} needs matplotlib, which is not installed: pip install matplotlib")


def check_picture(option: str, file: str) -> None:
    """Check that a file is named *.png or *.svg; matplotlib need not be installed."""
    if Path(file).suffix.lower() not in (".png", ".svg"):
        raise CommandError(f"{option} is {file}, expected a file named *.png or *.svg")


def write_picture(file: str, figure: Any) -> None:
    from bertcore.drawing import save_figure

    with output_stream(file, seekable=True) as stream:
        save_figure(figure, stream, Path(file).suffix)


@contextmanager
def output_stream(path: str, *, seekable: bool) -> Iterator[BinaryIO]:
    """Return a block with a stream to the file `path`, or to stdout for "-".

    A file takes the place of `path` in one step when the block ends well; otherwise nothing is left. Pipes and devices
    are written as they are, through a temporary file if `seekable`.
    """
    if not path:
        raise CommandError("--output is empty, expected the name of a file, or - for stdout")
    if path == "-" and sys.stdout is None:
        raise CommandError("stdout is closed: there is nowhere to write to")
    from bertcore.checkpoint.files import temporary_beside

    target = Path(os.path.realpath(path))  # what a link points to is replaced, not the link
    with _naming("stdout" if path == "-" else path, while_open=True), ExitStack() as stack:
        if path == "-":
            yield stack.enter_context(_spooled(sys.stdout.buffer, seekable))
        elif target.is_file() or not target.exists():
            with _naming(target):
                temporary = stack.enter_context(temporary_beside(target))
                stream = temporary.open("xb")
            with stream:
                yield cast(BinaryIO, stream)
            replace(temporary, target)
        else:
            with _naming(target):
                stream = stack.enter_context(target.open("wb"))
            yield stack.enter_context(_spooled(cast(BinaryIO, stream), seekable))


@contextmanager
def _naming(name: object, *, while_open: bool = False) -> Iterator[None]:
    """Return a block in which errors name what cannot be written.

    With `while_open`, only errors of writes to an open file, which carry no file name.
    """
    try:
        yield
    except OSError as error:
        if while_open and (error.errno not in UNWRITABLE or error.filename is not None):
            raise
        raise CommandError(f"{name} cannot be written: {error.strerror or error}") from error


@contextmanager
def _spooled(stream: BinaryIO, needed: bool) -> Iterator[BinaryIO]:
    if not needed:
        yield stream
        return
    with tempfile.TemporaryFile() as temporary:
        yield temporary
        temporary.seek(0)
        shutil.copyfileobj(temporary, stream)


def write_npy(stream: BinaryIO, rows: "Iterable[np.ndarray]", width: int) -> None:
    """Write float32 rows (width,) as one (rows, width) array in NumPy's format."""
    from bertcore.checkpoint.files import NpyStream

    made = NpyStream(stream, "<f4", (width,))
    for row in rows:
        made.write(row[None])
    made.finish()


def write_jsonl(stream: BinaryIO, rows: "Iterable[np.ndarray]") -> None:
    """Write float32 rows (width,) as JSON arrays, one a line, in the shortest digits that give the same float32."""
    import numpy as np

    for number, row in enumerate(rows, 1):
        if not np.isfinite(row).all():
            raise CommandError(f"the embedding of line {number} is not finite, which JSON cannot hold (npy can)")
        stream.write(f"[{', '.join(row.astype(str).tolist())}]\n".encode("ascii"))


def aligned(rows: Sequence[Sequence[str]], titles: Sequence[str] = (), *, right: Sequence[bool] = ()) -> str:
    """Return rows under their titles, each column as wide as its widest cell; `right` ones are aligned to the right."""
    cells = [*([titles] if titles else []), *(list(map(printable, row)) for row in rows)]
    sides = [str.rjust if is_number else str.ljust for is_number in right] or repeat(str.ljust)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ([side(cell, width) for side, cell, width in zip(sides, row, widths, strict=False)] for row in cells)
    return "\n".join("  ".join(line).rstrip() for line in lines)
