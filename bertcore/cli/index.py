"""The command index: embed a corpus, and store its vectors and texts in a folder for search."""

import contextlib
import functools
import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import bertcore
from bertcore.cli.inputs import Reading, check_one_source, model_digest, model_folder, texts_from
from bertcore.cli.options import CommandError, File

DIGEST = "model_sha256"  # of the metadata of an index


class Corpus(Reading):
    """A command that embeds a corpus.

    Attributes:
        corpus: file of texts, one a line, or - for standard input; left out with --text.
        text: a literal text instead of CORPUS; may be repeated.
    """

    title = Reading.title

    corpus: File | None = None
    text: tuple[str, ...] = ()

    def lines(self, stack: contextlib.ExitStack) -> Iterator[str]:
        """Return the texts of the corpus as they come, while `stack` is open; CommandError if there are none."""
        lines, name = stack.enter_context(texts_from(self.corpus, self.text, "CORPUS"))
        first = next(lines, None)
        if first is None:
            raise CommandError(f"{name} holds no texts")
        return itertools.chain([first], lines)


class Index(Corpus):
    """Embed a corpus with a sentence encoder, and store its vectors and texts in a folder for search --index.

    The corpus is UTF-8, one text a line, and is embedded as it is read, in bounded memory. The folder appears whole or
    not at all. With --add the texts are added to an index made by the same model.

    float32 takes 4 bytes per number, float16 2, int8 1; binary an eighth, plus the form for rescoring the best. The
    page "Search and evaluation" of the documentation has the recall of each.

    Examples:
        bertcore index demo corpus.txt -o notes/
        bertcore search demo --index notes/ "how do cats sleep"
        bertcore index demo more.txt -o notes/ --add
        bertcore index all-MiniLM-L6-v2/ corpus.txt --precision binary --rescore-precision float16 -o small/

    Attributes:
        output: the folder.
        precision: form of the vectors that are searched (default: float32).
        rescore_precision: form of the vectors that rescore the best (default: int8 for binary, else none).
        add: add to the index in the folder.
    """

    positions = ("model", "corpus")
    spellings = ("-o output",)
    apart = ("add precision rescore_precision",)

    output: File
    precision: Annotated[str | None, ("float32", "float16", "int8", "binary")] = None
    rescore_precision: Annotated[str | None, ("float32", "float16", "int8", "none")] = None
    add: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_source(self.corpus, self.text, name="CORPUS")

    def run(self) -> None:
        folder = model_folder(self.model)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.chosen_backend())
            index = opened_index(self.output, folder) if self.add else None
            lines, encoder = self.lines(stack), dense_encoder(folder, self)
            before, started = 0 if index is None else len(index), time.perf_counter()
            rows, texts = in_step(functools.partial(encoder.encode_document_stream, **self.reading_options()), lines)
            if index is not None:
                index.add(rows, texts=texts)
            else:
                options: dict[str, Any] = {"precision": self.precision or "float32"}
                if self.rescore_precision:
                    options["rescore_precision"] = None if self.rescore_precision == "none" else self.rescore_precision
                options["metadata"] = {"model": Path(folder).name, DIGEST: model_digest(folder)}
                options["similarity"] = encoder.similarity_fn_name
                index = bertcore.VectorIndex.build(self.output, rows, texts=texts, **options)
        speed = f"{(len(index) - before) / (time.perf_counter() - started):,.0f} texts a second"
        said = f"{len(index):,} texts, {index.dimension} dimensions, {index.precision}, {speed}"
        print(f"{self.output}: {said}", file=sys.stderr)


def dense_encoder(folder: Path, command: Reading) -> Any:
    """Return the sentence encoder of a folder; CommandError for other kinds and similarities."""
    from bertcore.tasks.loading import kind_of

    if (kind := kind_of(folder)) != "dense":
        raise CommandError(f"{command.model} is a {kind} encoder, expected a sentence encoder: an index keeps vectors")
    encoder = bertcore.SentenceEncoder(folder, **command.loading_options(False))
    if encoder.similarity_fn_name not in ("cosine", "dot"):
        raise CommandError(f"{command.model} compares by {encoder.similarity_fn_name}, expected cosine or dot")
    return encoder


def opened_index(path: str, model: Path) -> Any:
    """Return the index in a folder; CommandError if another model has made it."""
    index = bertcore.VectorIndex(path)
    if index.metadata.get(DIGEST) not in (None, model_digest(model)):
        made_by = index.metadata.get("model", "another")
        raise CommandError(f"{path} was made by the model {made_by}, whose files are others, expected the same model")
    return index


def in_step(read_rows: Callable[[Iterator[str]], Iterable[Any]], lines: Iterable[str]) -> tuple[Any, Iterator[str]]:
    """Return what `read_rows` makes of lines, and the lines for a reader that takes as many of each."""
    waiting: deque[str] = deque()  # lines on their way through the model

    def read() -> Iterator[str]:
        for text in lines:
            waiting.append(text)
            yield text

    return read_rows(read()), (waiting.popleft() for _ in iter(lambda: len(waiting), 0))
