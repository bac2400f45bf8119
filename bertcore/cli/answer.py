"""Answer a question with a span of a text of any length, which is read in overlapping windows."""

import argparse
import contextlib

from bertcore.cli.common import CommandError, positive
from bertcore.cli.lines import input_stream
from bertcore.cli.pipelines import add_pipeline_arguments, columns, given, run_pipeline

HELP = "answer a question with a span of a text"
EXAMPLES = """\
examples:
  bertcore answer squad/ "Who wrote the notes?" "Ada Lovelace wrote the notes in 1843."
  bertcore answer squad/ "Who wrote the notes?" --input book.txt --top-k 3
  bertcore answer squad2/ "Who wrote the notes?" --input book.txt --no-answer

Each answer is a line: its probability, its first and last + 1 character, and its text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a model with question answering's head")
    parser.add_argument("question", metavar="QUESTION", help="the question")
    parser.add_argument("context", metavar="TEXT", nargs="?", help="the text; without it, all of --input")
    parser.add_argument("--input", metavar="FILE", default="-", help="file that holds the text (default: -, stdin)")
    parser.add_argument("--top-k", type=positive, default=1, metavar="N", help="how many answers (default: 1)")
    parser.add_argument("--max-answer-len", type=positive, metavar="N", help="tokens of an answer (default: 15)")
    parser.add_argument("--no-answer", action="store_true", help="there may be no answer: then it is empty")
    add_pipeline_arguments(parser, truncation="chunk")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    options = given(args, "top_k", "max_answer_len") | {"handle_impossible_answer": args.no_answer}
    run_pipeline(args, "question-answering", _inputs, _show, **options)


@contextlib.contextmanager
def _inputs(args):
    yield iter([{"question": args.question, "context": _read(args.input) if args.context is None else args.context}])


def _read(path: str) -> str:
    with input_stream(path) as (stream, name):
        try:
            text = stream.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise CommandError(f"{name} is not UTF-8 at byte {error.start + 1}") from error
    if not text:
        raise CommandError(f"{name} is empty, expected a text")
    return text


def _show(answers) -> str:
    found = answers if isinstance(answers, list) else [answers]
    return columns((f"{each['score']:.4f}", f"{each['start']}-{each['end']}", each["answer"]) for each in found)
