"""Show what the objectives of pretraining make of a text: masks static and dynamic, whole words, spans, orders and
replaced tokens."""

import argparse

from bertcore.cli.common import model_folder, positive, whole
from bertcore.cli.tables import printable

HELP = "show what pretraining asks about a text"
EXAMPLES = """\
examples:
  bertcore preview bert-base-uncased/ "The cat sat on the mat and looked at the embeddings."
  bertcore preview demo "The cat sat on the mat." --epochs 5"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a tokenizer, with or without a model")
    parser.add_argument("text", metavar="TEXT", help="any text")
    parser.add_argument("--epochs", type=positive, default=3, metavar="N", help="of each objective (default: 3)")
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="of the random choices (default: 0)")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    from bertcore import AutoTokenizer
    from bertcore.training.objectives import preview

    tokenizer = AutoTokenizer.from_pretrained(model_folder(args.model, "tokenizer"))
    for line in preview(args.text, tokenizer, epochs=args.epochs, seed=args.seed).splitlines():
        print(printable(line))
