"""Embed texts, one a line, into a NumPy array or JSON lines.

Every line is a text, an empty line an empty text; the embedding on line n of the output, or in row n, is that of line n
of the input. Input is UTF-8; a byte order mark and carriage returns before line ends are no part of the texts. It is
read as it comes, in bounded memory. An output file appears when it is complete, and not before."""

import argparse
import contextlib
import sys

from bertcore.cli.common import (
    MODEL_HELP,
    CommandError,
    add_dtype_argument,
    add_truncation_argument,
    chosen_backend,
    model_folder,
    positive,
    reading_options,
)
from bertcore.cli.lines import input_stream, read_lines
from bertcore.cli.outputs import output_stream, write_jsonl, write_npy

HELP = "embed lines of text"
EXAMPLES = """\
examples:
  bertcore embed demo texts.txt -o embeddings.npy
  bertcore embed all-MiniLM-L6-v2/ < texts.txt > embeddings.jsonl
  zcat texts.gz | bertcore embed demo - --format npy > embeddings.npy

A line of JSON is an array of numbers; they are float32 and read back to the same bits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("input", metavar="INPUT", nargs="?", default="-", help="file of texts (default: -, stdin)")
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="where to write (default: -, stdout)")
    parser.add_argument("--format", choices=["npy", "jsonl"], help="default: npy for a FILE named *.npy, else jsonl")
    add_dtype_argument(parser)
    parser.add_argument(
        "--max-seq-length", type=positive, metavar="N", help="cut texts to N tokens (default: as published)"
    )
    add_truncation_argument(parser)
    parser.add_argument("--batch-tokens", type=positive, metavar="N", help="tokens computed at once; bounds the memory")
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale embeddings to length 1, or do not (default: as the model was published)",
    )
    parser.add_argument("--prompt", metavar="TEXT", help="text to put before every line")
    parser.add_argument("--prompt-name", metavar="NAME", help="one of the model's own prompts")
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show progress, or do not (default: on a terminal, when it takes long)",
    )


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    as_npy = args.format == "npy" or (args.format is None and args.output.endswith(".npy"))
    if as_npy and args.output == "-" and _stdout_is_a_terminal():
        raise CommandError("a .npy file is not for a terminal: give -o FILE, or --format jsonl")
    folder = model_folder(args.model)
    with contextlib.ExitStack() as stack:
        lines = read_lines(*stack.enter_context(input_stream(args.input)))
        output = stack.enter_context(output_stream(args.output, seekable=as_npy))
        stack.enter_context(chosen_backend(args))
        rows, width = _embeddings(folder, lines, args)
        if as_npy:
            write_npy(output, rows, width)
        else:
            write_jsonl(output, rows)


def _stdout_is_a_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # None: it was closed before the start


def _embeddings(folder, lines, args):
    """An iterator over the lines' embeddings, and their width."""
    from bertcore.tasks.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder(folder, dtype=args.dtype, max_seq_length=args.max_seq_length)
    options = {name: getattr(args, name) for name in ("prompt", "prompt_name", "normalize")} | reading_options(args)
    progress = args.progress
    if progress is None and args.output == "-" and _stdout_is_a_terminal():
        progress = False  # it would stand among the results
    return encoder.encode_stream(lines, show_progress=progress, **options), encoder.embedding_dimension
