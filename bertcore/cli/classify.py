"""Tell the class of each text, or of each pair of texts; with --labels of classes that are given here, by a model of
natural language inference (zero-shot classification).

With --ensemble several models of the same classes vote: soft by the mean of their probabilities, hard by the share of
the models whose best class it is. Disagreement is the share of the models whose own best class is another one."""

import argparse
import contextlib
import functools
from typing import Any

from bertcore.cli.common import CommandError, model_folder, positive
from bertcore.cli.pipelines import (
    add_pipeline_arguments,
    add_texts_arguments,
    checked_pair,
    given,
    loaded,
    run_pipeline,
    texts_of,
    write_answers,
)
from bertcore.cli.tables import printable

HELP = "classify texts"
EXAMPLES = """\
examples:
  bertcore classify sentiment/ "What a film." "Not again."
  bertcore classify sentiment/ --top-k 3 --json < reviews.txt > classes.jsonl
  bertcore classify mnli/ "Paris is in spring bloom." --labels "travel, cooking, politics"
  bertcore classify mnli/ --pairs --input pairs.tsv --truncation chunk
  bertcore classify sentiment/ "What a film." --calibration sentiment.json
  bertcore classify seed-1/ --ensemble seed-2/ --ensemble seed-3/ --vote hard < reviews.txt

A line of output is a text's class and its probability; --json has transformers' form, and of an ensemble the shares of
all classes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a model with a classifier of texts")
    add_texts_arguments(parser)
    parser.add_argument("--pairs", action="store_true", help="each text is a pair, with a tab between the two")
    parser.add_argument("--top-k", type=positive, metavar="N", help="classes a text, the best first (default: 1)")
    parser.add_argument("--labels", metavar="A,B,...", help="the classes, for a model of natural language inference")
    parser.add_argument("--template", metavar="TEXT", help='with --labels (default: "This example is {}.")')
    parser.add_argument("--multi-label", action="store_true", help="with --labels: several may be right")
    parser.add_argument("--calibration", metavar="FILE", help="probabilities as `bertcore calibrate` corrects them")
    parser.add_argument("--ensemble", metavar="MODEL", action="append", help="another model that votes; several times")
    parser.add_argument("--vote", choices=["soft", "hard"], help="with --ensemble (default: soft)")
    parser.add_argument("--merge", choices=["mean", "max"], help="of windows (--truncation chunk; default: mean)")
    add_pipeline_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    if args.vote is not None and not args.ensemble:
        raise CommandError("--vote is for --ensemble")
    if args.labels is not None:
        _judge(args)
        return
    if args.template is not None or args.multi_label:
        raise CommandError("--template and --multi-label are for --labels")
    if args.ensemble:
        _vote(args)
        return
    folder = model_folder(args.model)
    options = given(args, "merge") | {"top_k": args.top_k or 1}
    write_answers(args, lambda: _classifier(args, folder), _inputs, _show, **options)


def _classifier(args: argparse.Namespace, folder: Any) -> Any:
    """The classifier, with its calibration."""
    classifier = loaded(args, "text-classification", folder)
    if args.calibration is None:
        return classifier
    from bertcore.tasks.calibration_file import read_calibration

    calibration = read_calibration(args.calibration, list(classifier.id2label.values()))
    return functools.partial(classifier, calibration=calibration)


def _vote(args: argparse.Namespace) -> None:
    if args.top_k or args.calibration is not None:
        raise CommandError("--top-k and --calibration are not for --ensemble")
    folders = [model_folder(name) for name in (args.model, *args.ensemble)]

    def load() -> Any:
        from bertcore.tasks.ensemble import Ensemble

        return Ensemble([loaded(args, "text-classification", folder) for folder in folders], vote=args.vote or "soft")

    write_answers(args, load, _inputs, _show_vote, **given(args, "merge"))


def _judge(args: argparse.Namespace) -> None:
    if args.pairs or args.top_k or args.ensemble or args.calibration is not None:
        raise CommandError("--pairs, --top-k, --ensemble and --calibration are not for --labels")
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


def _show_vote(answer) -> str:
    return f"{_show([answer])}\tdisagreement {answer['disagreement']:.2f}"


def _show_judged(answer) -> str:
    pairs = zip(answer["labels"], answer["scores"], strict=True)
    return _show([{"label": label, "score": score} for label, score in pairs])
