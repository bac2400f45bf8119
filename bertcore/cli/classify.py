"""Tell the class of each text, or of each pair of texts; with --labels of classes that are given here, by a model of
natural language inference (zero-shot classification)."""

import argparse
import contextlib

from bertcore.cli.common import CommandError, positive
from bertcore.cli.pipelines import (
    add_pipeline_arguments,
    add_texts_arguments,
    checked_pair,
    given,
    run_pipeline,
    texts_of,
)
from bertcore.cli.tables import printable

HELP = "classify texts"
EXAMPLES = """\
examples:
  bertcore classify sentiment/ "What a film." "Not again."
  bertcore classify sentiment/ --top-k 3 --json < reviews.txt > classes.jsonl
  bertcore classify mnli/ "Paris is in spring bloom." --labels "travel, cooking, politics"
  bertcore classify mnli/ --pairs --input pairs.tsv --truncation chunk

A line of output is a text's class and its probability; --json has transformers' form."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a model with a classifier of texts")
    add_texts_arguments(parser)
    parser.add_argument("--pairs", action="store_true", help="each text is a pair, with a tab between the two")
    parser.add_argument("--top-k", type=positive, metavar="N", help="classes a text, the best first (default: 1)")
    parser.add_argument("--labels", metavar="A,B,...", help="the classes, for a model of natural language inference")
    parser.add_argument("--template", metavar="TEXT", help='with --labels (default: "This example is {}.")')
    parser.add_argument("--multi-label", action="store_true", help="with --labels: several may be right")
    parser.add_argument("--merge", choices=["mean", "max"], help="of windows (--truncation chunk; default: mean)")
    add_pipeline_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    if args.labels is not None:
        _judge(args)
        return
    if args.template is not None or args.multi_label:
        raise CommandError("--template and --multi-label are for --labels")
    options = given(args, "merge") | {"top_k": args.top_k or 1}
    run_pipeline(args, "text-classification", _inputs, _show, **options)


def _judge(args: argparse.Namespace) -> None:
    if args.pairs or args.top_k:
        raise CommandError("--pairs and --top-k are not for --labels")
    options = given(args, "merge") | {"candidate_labels": args.labels, "multi_label": args.multi_label}
    if args.template is not None:
        options["hypothesis_template"] = args.template
    run_pipeline(args, "zero-shot-classification", texts_of, _show_judged, **options)


@contextlib.contextmanager
def _inputs(args):
    with texts_of(args) as texts:
        yield map(checked_pair, texts) if args.pairs else texts


def _show(answers) -> str:
    return "\t".join(f"{printable(answer['label'])} {answer['score']:.4f}" for answer in answers)


def _show_judged(answer) -> str:
    pairs = zip(answer["labels"], answer["scores"], strict=True)
    return _show([{"label": label, "score": score} for label, score in pairs])
