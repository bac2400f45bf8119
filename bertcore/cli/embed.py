"""Embed texts, one a line, into a NumPy array or JSON lines.

Every line is a text, an empty line an empty text; the embedding on line n of the output, or in row n, is that of line n
of the input. Input is UTF-8; a byte order mark and carriage returns before line ends are no part of the texts. It is
read as it comes, in bounded memory. An output file appears when it is complete, and not before.

With --ray (pip install "bertcore[ray]") a corpus is embedded by several workers. INPUT is a file or a folder of
files: of text (.txt, .text, .md), of JSON lines (.jsonl, .json), each also with .gz, or Parquet. --output is a
folder: each part of the corpus becomes a file of it, part-000000.npy and so on, in the order of the corpus, with the
bits that one process gives. The same command again makes only what is missing. The workers run on the cluster of
RAY_ADDRESS, or on this machine; every worker must find the files under the same names."""

import argparse
import contextlib
import sys
from pathlib import Path

from bertcore.cli.common import (
    MODEL_HELP,
    CommandError,
    add_reading_arguments,
    chosen_backend,
    model_folder,
    positive,
)
from bertcore.cli.embed_ray import embed_on_ray
from bertcore.cli.embeddings import encoder_of, write_embeddings
from bertcore.cli.lines import input_stream, read_lines
from bertcore.cli.outputs import output_stream
from bertcore.kernels import get_backend

HELP = "embed lines of text"
EXAMPLES = """\
examples:
  bertcore embed demo texts.txt -o embeddings.npy
  bertcore embed all-MiniLM-L6-v2/ < texts.txt > embeddings.jsonl
  zcat texts.gz | bertcore embed demo - --format npy > embeddings.npy
  bertcore embed all-MiniLM-L6-v2/ corpus/ --column body --ray 4 -o vectors/

A line of JSON is an array of numbers; they are float32 and read back to the same bits."""
PART_ROWS = 65536
ENDINGS = ("", ".npy", ".jsonl", ".json", ".txt")  # in which a reader expects one of the formats


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("input", metavar="INPUT", nargs="?", default="-", help="file of texts (default: -, stdin)")
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="where to write (default: -, stdout)")
    parser.add_argument("--format", choices=["npy", "jsonl"], help="default: by the ending of FILE, else jsonl")
    add_reading_arguments(parser, length="--max-seq-length")
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
    many = parser.add_argument_group("a corpus, on several workers")
    many.add_argument("--ray", type=positive, metavar="WORKERS", help="embed a corpus of files on workers of Ray")
    many.add_argument("--column", metavar="NAME", help="of the texts in JSON lines and Parquet (default: text)")
    many.add_argument("--part-rows", type=positive, metavar="N", help=f"rows of a part (default: {PART_ROWS})")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    if args.ray:
        _run_on_ray(args)
        return
    for name, value in (("--column", args.column), ("--part-rows", args.part_rows)):
        if value is not None:
            raise CommandError(f"{name} is for --ray")
    ending = Path(args.output).suffix.lower()
    if args.format is None and ending not in ENDINGS:
        raise CommandError(f"--output is {args.output}, expected a name that ends in .npy or .jsonl; or give --format")
    as_npy = args.format == "npy" or (args.format is None and ending == ".npy")
    if as_npy and args.output == "-" and _stdout_is_a_terminal():
        raise CommandError("a .npy file is not for a terminal: give -o FILE, or --format jsonl")
    folder = model_folder(args.model)
    with contextlib.ExitStack() as stack:
        lines = read_lines(*stack.enter_context(input_stream(args.input)))
        output = stack.enter_context(output_stream(args.output, seekable=as_npy))
        stack.enter_context(chosen_backend(args))
        write_embeddings(output, encoder_of(folder, args), lines, args, as_npy=as_npy, progress=_progress(args))


def _run_on_ray(args: argparse.Namespace) -> None:
    for name, value in (("INPUT", args.input), ("--output", args.output)):
        if value in ("-", ""):
            raise CommandError(f"--ray needs {name}, the name of a {'file or folder' if name == 'INPUT' else 'folder'}")
    with chosen_backend(args):
        args.backend = get_backend()  # the workers compute on the same
    args.format, args.column, args.part_rows = args.format or "npy", args.column or "text", args.part_rows or PART_ROWS
    embed_on_ray(model_folder(args.model), args)


def _stdout_is_a_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # None: it was closed before the start


def _progress(args: argparse.Namespace) -> bool | None:
    if args.progress is None and args.output == "-" and _stdout_is_a_terminal():
        return False  # it would stand among the results
    return args.progress
