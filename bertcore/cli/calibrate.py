"""Make a classifier as sure of its answers as they are right.

DATA is texts with labels that the model has not learnt from, as `bertcore finetune --task sequence` takes them. The
--method is fitted to a part of them; the others, or --eval, tell the expected calibration error before and after: how
far the probability of the best class is from the share of texts where it is right, over 15 bins of texts.

  temperature  divides the scores by a number; the best class stays what it was
  isotonic     a rising function of each class's probability; wants many texts, and may change the best class

`bertcore classify --calibration` uses the file that is written."""

import argparse
import json
from typing import Any

from bertcore.cli.common import CommandError, add_dtype_argument, chosen_backend, model_folder, positive, whole
from bertcore.cli.finetune import add_data_arguments, labelled_rows
from bertcore.cli.outputs import output_stream
from bertcore.cli.training import check_once
from bertcore.tasks.calibration_file import METHODS, calibration_as_json

HELP = "make a classifier's probabilities fit how often it is right"
EXAMPLES = """\
examples:
  bertcore calibrate sentiment/ held-out.csv --text review --out sentiment.json
  bertcore calibrate mnli/ dev.jsonl --text premise --text-pair hypothesis --method isotonic --out mnli.json
  bertcore classify sentiment/ "What a film." --calibration sentiment.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a model with a classifier of texts")
    parser.add_argument("data", metavar="DATA", nargs="+", help="files or folders of labelled texts")
    parser.add_argument("--out", metavar="FILE", required=True, help="where the calibration goes")
    parser.add_argument("--method", choices=list(METHODS), default="temperature", help="default: temperature")
    add_data_arguments(parser, held_out=0.5)
    parser.add_argument("--max-length", type=positive, metavar="N", help="tokens of a text (default: the model's)")
    add_dtype_argument(parser)
    parser.add_argument("--seed", type=whole, default=42, metavar="N", help="of what is held out (default: 42)")
    parser.add_argument("--skip-malformed", action="store_true", help="leave out lines that cannot be read, and tell")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(task="sequence")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    from bertcore.arguments import required
    from bertcore.tasks.probabilities import FUNCTIONS

    required(METHODS[args.method].needs)  # before the work, and not after it
    check_once([*args.data, *(args.eval or [])], "a part of it is held out: give files")
    if args.out == "-":
        raise CommandError("--out is -, expected the name of a file")
    folder = model_folder(args.model)
    rows, held_out = labelled_rows(args)
    if not held_out:
        raise CommandError("no texts are held out, which the calibration is measured with")
    with output_stream(args.out, seekable=False) as stream, chosen_backend(args):
        classifier = _classifier(args, folder)
        fitted, measured = (_scores(classifier, some, args) for some in (rows, held_out))
        calibration = METHODS[args.method]()
        calibration.fit(FUNCTIONS[calibration.takes](fitted[0]), fitted[1])
        held = calibration_as_json(calibration, list(classifier.id2label.values()))
        stream.write(f"{json.dumps(held, ensure_ascii=False)}\n".encode())
    temperature = {"temperature": calibration.temperature} if args.method == "temperature" else {}
    found = {"fitted_to": len(rows), "held_out": len(held_out), **temperature, **_effect(calibration, *measured)}
    print(json.dumps({"method": args.method, **found, "file": args.out}) if args.json else _shown(found, args.out))


def _classifier(args: argparse.Namespace, folder: Any) -> Any:
    """The classifier; CommandError for one that does not choose one of several classes."""
    from bertcore.tasks.pipelines import pipeline
    from bertcore.tasks.probabilities import published_function

    classifier = pipeline("text-classification", folder, dtype=args.dtype, max_length=args.max_length)
    function = published_function(classifier.model.config.get("problem_type"), len(classifier.id2label))
    if function != "softmax" or len(set(classifier.id2label.values())) < len(classifier.id2label):
        raise CommandError(f"{args.model} does not choose one of several named classes, which is what is calibrated")
    return classifier


def _scores(classifier: Any, rows: list[Any], args: argparse.Namespace) -> tuple[Any, Any]:
    """The classifier's scores of labelled texts, float64 (texts, classes), and their right classes, (texts,)."""
    import numpy as np

    from bertcore.training.data import LabelledTexts

    names = tuple(classifier.id2label.values())
    columns = LabelledTexts(args.text or "text", args.text_pair, args.label or "label", names)
    texts, right = zip(*columns.inputs(rows), strict=True)
    answers = classifier(list(texts), top_k=None, function_to_apply="none")
    found = [{each["label"]: each["score"] for each in answer} for answer in answers]
    return np.array([[scores[name] for name in names] for scores in found]), np.array(right)


def _effect(calibration: Any, scores: Any, right: Any) -> dict[str, list[float]]:
    """What the calibration does to probabilities of texts that it was not fitted to: pairs of before and after."""
    from bertcore.tasks.calibration import expected_calibration_error
    from bertcore.tasks.probabilities import FUNCTIONS, softmax

    tables = softmax(scores), calibration.transform(FUNCTIONS[calibration.takes](scores))
    return {
        "calibration_error": [float(expected_calibration_error(table, right)) for table in tables],
        "accuracy": [float((table.argmax(axis=1) == right).mean()) for table in tables],
    }


def _shown(found: dict[str, Any], file: str) -> str:
    lines = [f"texts     {found['fitted_to']:,} fitted to, {found['held_out']:,} held out"]
    if "temperature" in found:
        lines.append(f"scores    divided by {found['temperature']:.4f}")
    (error, new_error), (accuracy, new_accuracy) = found["calibration_error"], found["accuracy"]
    lines.append(f"error     {error:.4f} before, {new_error:.4f} after (expected calibration error)")
    return "\n".join([*lines, f"accuracy  {accuracy:.4f} before, {new_accuracy:.4f} after", f"file      {file}"])
