"""Find the entities in texts (names of people, places, ...), or the class of each token, by a classifier of tokens."""

import argparse

from bertcore.cli.pipelines import add_pipeline_arguments, add_texts_arguments, columns, given, run_pipeline, texts_of

HELP = "find entities in texts"
EXAMPLES = """\
examples:
  bertcore tag ner/ "Ada Lovelace was born in London."
  bertcore tag ner/ --json --truncation chunk < articles.txt > entities.jsonl

Each entity is a line: its class, its probability, its first and last + 1 character, and its text; an empty line ends a
text. --json has transformers' form, a text a line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a model with a classifier of tokens")
    add_texts_arguments(parser)
    parser.add_argument(
        "--aggregation",
        choices=["none", "simple", "first", "average", "max"],
        default="simple",
        help="how tokens make entities; none tells the class of each token (default: simple)",
    )
    add_pipeline_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    options = given(args) | {"aggregation_strategy": args.aggregation}
    run_pipeline(args, "token-classification", texts_of, _show, **options)


def _show(entities) -> str:
    rows = (
        (each.get("entity_group") or each["entity"], f"{each['score']:.4f}", f"{each['start']}-{each['end']}",
         each["word"])
        for each in entities
    )  # fmt: skip
    return columns(rows) + "\n"
