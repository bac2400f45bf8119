"""What the commands that run a pipeline share: texts on the command line or from a file, answers as lines or JSON."""

import argparse
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bertcore.cli.common import (
    CommandError,
    add_reading_arguments,
    chosen_backend,
    model_folder,
    reading_options,
    whole,
)
from bertcore.cli.lines import input_stream, read_lines
from bertcore.cli.outputs import output_stream
from bertcore.cli.tables import aligned


def add_pipeline_arguments(parser: argparse.ArgumentParser, *, truncation: str = "warn") -> None:
    """Declare what all commands with pipelines take, beside their texts."""
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="where to write (default: -, stdout)")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each answer")
    add_reading_arguments(parser, length="--max-length", truncation=truncation)
    parser.add_argument("--stride", type=whole, metavar="N", help="tokens that neighbouring windows share")


def add_texts_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the texts: arguments, or lines of a file."""
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="texts; without any, lines of --input")
    parser.add_argument("--input", metavar="FILE", default="-", help="file of texts, one a line (default: -, stdin)")


@contextlib.contextmanager
def texts_of(args: argparse.Namespace) -> Iterator[Iterable[str]]:
    """The texts of the command line, or the lines of --input as they come."""
    if args.texts:
        yield iter(args.texts)
        return
    with input_stream(args.input) as stream:
        yield read_lines(*stream)


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options of a pipeline's calls that the command line states."""
    found = {name: getattr(args, name) for name in (*names, "max_length", "stride")}
    options = {name: value for name, value in found.items() if value is not None}
    return options | reading_options(args)


def run_pipeline(
    args: argparse.Namespace,
    task: str,
    inputs: Callable[[argparse.Namespace], Any],
    show: Callable[[Any], str],
    **options: Any,
) -> None:
    """Answer the inputs of the command line by a pipeline; the rest is as for `write_answers`."""
    folder = model_folder(args.model)
    write_answers(args, lambda: loaded(args, task, folder), inputs, show, **options)


def loaded(args: argparse.Namespace, task: str, folder: Path) -> Any:
    """The pipeline of a model."""
    from bertcore.tasks.pipelines import pipeline

    return pipeline(task, folder, dtype=args.dtype, show_progress=False)


def write_answers(
    args: argparse.Namespace,
    load: Callable[[], Any],
    inputs: Callable[[argparse.Namespace], Any],
    show: Callable[[Any], str],
    **options: Any,
) -> None:
    """Answer the inputs of the command line by what is loaded, and write each answer as it comes: JSON, or what `show`
    makes of it."""
    with contextlib.ExitStack() as stack:
        items = stack.enter_context(inputs(args))
        output = stack.enter_context(output_stream(args.output, seekable=False))
        stack.enter_context(chosen_backend(args))
        for answer in load()(items, **options):
            line = json.dumps(answer, ensure_ascii=False) if args.json else show(answer)
            output.write((line + "\n").encode("utf-8"))


def columns(rows: Iterable[tuple[str, ...]]) -> str:
    """Rows of words, their columns below one another."""
    return aligned(list(rows)) or "-"


def checked_pair(line: str) -> dict[str, str]:
    """The pair of texts of a line, with a tab between them; CommandError for another number."""
    parts = line.split("\t")
    if len(parts) != 2:
        raise CommandError(f"{line[:60]!r} has {len(parts)} parts, expected two texts with a tab between them")
    return {"text": parts[0], "text_pair": parts[1]}
