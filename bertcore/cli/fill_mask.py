"""Predict the words that belong in place of the mask in a text: [MASK], or <mask> where a model spells it so."""

import argparse
import contextlib

from bertcore.cli.common import positive
from bertcore.cli.pipelines import add_pipeline_arguments, columns, given, run_pipeline

HELP = "predict masked words"
EXAMPLES = """\
examples:
  bertcore fill-mask bert-base-uncased/ "Paris is the [MASK] of France."
  bertcore fill-mask bert-base-uncased/ "[MASK] is the [MASK] of France." --top-k 3 --json
  bertcore fill-mask bert-base-uncased/ "Paris is the [MASK] of France." --targets capital,centre

Several masks are predicted each on its own, the others staying masked. --json has transformers' form."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a model with a masked LM's head")
    parser.add_argument("text", metavar="TEXT", help="a text with one or several masks")
    parser.add_argument("--top-k", type=positive, default=5, metavar="N", help="words per mask (default: 5)")
    parser.add_argument("--targets", metavar="A,B,...", help="the words to choose from (default: all)")
    add_pipeline_arguments(parser, truncation="error")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    targets = {} if args.targets is None else {"targets": args.targets.split(",")}
    run_pipeline(args, "fill-mask", _inputs, _show, **given(args, "top_k"), **targets)


@contextlib.contextmanager
def _inputs(args):
    yield iter([args.text])


def _show(answer) -> str:
    masks = answer if isinstance(answer[0], list) else [answer]
    tables = [columns((word["token_str"], f"{word['score']:.4f}") for word in words) for words in masks]
    if len(tables) == 1:
        return tables[0]
    return "\n\n".join(f"mask {number}\n  " + table.replace("\n", "\n  ") for number, table in enumerate(tables, 1))
