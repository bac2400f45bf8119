"""Draw a picture of a model or of its training, as a PNG or SVG file (needs matplotlib).

FIGURE and what it is made of:
  attention MODEL TEXT    where the heads of a layer look
  components MODEL TEXT   the three terms of DeBERTa's attention scores
  masking MODEL TEXT      what static and dynamic masking ask in each epoch
  temperature MODEL TEXT  a teacher's probabilities of a masked word at several temperatures
  calibration FILE        how often a classifier is right, of lines {"probabilities": [...], "label": N}
  curves FILE             losses and learning rate of a training run, from its log.jsonl
  embeddings MODEL FILE   texts, one a line, in two dimensions"""

import argparse
from pathlib import Path
from typing import Any

from bertcore.cli.common import MODEL_HELP, CommandError, chosen_backend, model_folder, positive
from bertcore.cli.lines import input_stream, read_lines
from bertcore.cli.outputs import output_stream

HELP = "draw attention, masking, training and embeddings"
EXAMPLES = """\
examples:
  bertcore plot attention bert-base-uncased/ "The cat sat on the mat." -o attention.png --layer 3
  bertcore plot components deberta-base/ "The cat sat on the mat." -o components.svg
  bertcore plot masking demo "The cat sat on the mat." -o masking.png --epochs 5
  bertcore plot temperature bert-base-uncased/ "Paris is the [MASK] of France." -o temperature.png
  bertcore plot calibration held-out.jsonl -o calibration.png
  bertcore plot curves run/log.jsonl -o curves.png
  bertcore plot embeddings demo texts.txt -o embeddings.png"""

SUFFIXES = (".png", ".svg")
EXPECTED_CHANCES = 'expected {"probabilities": [...], "label": N}'
DEFAULTS: dict[str, Any] = {"layer": 1, "epochs": 4, "temperatures": (1.0, 2.0, 4.0, 8.0)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("figure", metavar="FIGURE", choices=list(FIGURES), help="which picture; see above")
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help=f"MODEL, TEXT or FILE; MODEL: {MODEL_HELP}")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write, *.png or *.svg")
    parser.add_argument("--layer", type=positive, metavar="N", help="of attention and components (default: 1)")
    parser.add_argument("--epochs", type=positive, metavar="N", help="of masking (default: 4)")
    parser.add_argument(
        "--temperatures", type=_numbers, metavar="T,T", help="of temperature, with commas between (default: 1,2,4,8)"
    )


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers with commas between them") from None


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError("plot needs matplotlib, which is not installed: pip install matplotlib")
    suffix = Path(args.output).suffix.lower()
    if suffix not in SUFFIXES:
        raise CommandError(f"--output is {args.output}, expected a file named *.png or *.svg")
    draw, names, own = FIGURES[args.figure]
    if len(args.inputs) != len(names):
        expected = " ".join(name.upper() for name in names)
        raise CommandError(f"{args.figure} has {len(args.inputs)} inputs, expected {expected}")
    for name, value in zip(names, args.inputs, strict=True):
        setattr(args, name, value)
    for name, default in DEFAULTS.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif name != own:
            raise CommandError(f"{args.figure} has no use for --{name}: leave it out")
    with chosen_backend(args):
        figure = draw(args)
    with output_stream(args.output, seekable=True) as stream:
        figure.savefig(stream, format=suffix[1:], dpi=150)


def _attention(args: argparse.Namespace) -> Any:
    from bertcore.plots.attention import attention_maps

    return attention_maps(*_loaded(args.model, "AutoModel"), args.text, args.layer)


def _components(args: argparse.Namespace) -> Any:
    from bertcore.plots.attention import attention_components

    return attention_components(*_loaded(args.model, "AutoModel"), args.text, args.layer)


def _masking(args: argparse.Namespace) -> Any:
    from bertcore import AutoTokenizer
    from bertcore.plots.masking import masking

    return masking(AutoTokenizer.from_pretrained(model_folder(args.model)), args.text, epochs=args.epochs)


def _temperature(args: argparse.Namespace) -> Any:
    from bertcore.plots.temperature import distillation_temperature

    parts = _loaded(args.model, "AutoModelForMaskedLM")
    return distillation_temperature(*parts, args.text, temperatures=args.temperatures)


def _calibration(args: argparse.Namespace) -> Any:
    from bertcore.plots.calibration import reliability_diagram

    rows = [_chances(line, f"{args.file}, line {number}") for number, line in enumerate(_lines(args.file), 1)]
    if not rows:
        raise CommandError(f"{args.file} holds no lines")
    if len({len(chances) for chances, _ in rows}) > 1:
        raise CommandError(f"{args.file} has lines of different numbers of probabilities")
    return reliability_diagram([chances for chances, _ in rows], [label for _, label in rows])


def _chances(line: str, where: str) -> tuple[list[float], int]:
    """The probabilities and the right class of a line; CommandError, naming it, if it has none."""
    import json

    try:
        row = json.loads(line)
        chances, label = [float(chance) for chance in row["probabilities"]], row["label"]
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{where}: {line[:60]!r}, {EXPECTED_CHANCES}") from error
    if isinstance(label, bool) or not isinstance(label, int):
        raise CommandError(f"{where}: label is {label!r:.60}, {EXPECTED_CHANCES}")
    return chances, label


def _curves(args: argparse.Namespace) -> Any:
    from bertcore.plots.curves import training_curves

    return training_curves(args.file)


def _embeddings(args: argparse.Namespace) -> Any:
    from bertcore.plots.embeddings import embeddings_in_two_dimensions
    from bertcore.tasks.sentence_encoder import SentenceEncoder

    texts = _lines(args.file)
    return embeddings_in_two_dimensions(texts, SentenceEncoder(model_folder(args.model)).encode(texts))


def _lines(path: str) -> list[str]:
    with input_stream(path) as stream:
        return list(read_lines(*stream))


def _loaded(name: str, model_class: str) -> tuple[Any, Any]:
    import bertcore

    folder = model_folder(name)
    return getattr(bertcore, model_class).from_pretrained(folder), bertcore.AutoTokenizer.from_pretrained(folder)


FIGURES = {  # what draws it, its inputs, the option that is its own
    "attention": (_attention, ("model", "text"), "layer"),
    "components": (_components, ("model", "text"), "layer"),
    "masking": (_masking, ("model", "text"), "epochs"),
    "temperature": (_temperature, ("model", "text"), "temperatures"),
    "calibration": (_calibration, ("file",), None),
    "curves": (_curves, ("file",), None),
    "embeddings": (_embeddings, ("model", "file"), None),
}
