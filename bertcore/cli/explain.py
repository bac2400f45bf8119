"""Tell what each token of a text had to do with the class that a classifier gives it.

  gradients  how much a token adds to the score of a class, by integrated gradients (Sundararajan et al. 2017): the
             scores add up to what the text adds to the class's score over a text of padding alone, but for the error
             that is told, which shrinks as --steps grow
  rollout    how much of a token reaches the state that is classified, through the attention of all layers (Abnar and
             Zuidema 2020): it is about no class, and the scores add up to 1

The model computes in float32, whatever the dtype of its file."""

import argparse
import json
from typing import Any

from bertcore.cli.common import CommandError, chosen_backend, model_folder, positive
from bertcore.cli.tables import aligned, printable

HELP = "tell what a classifier's answer is made of"
EXAMPLES = """\
examples:
  bertcore explain sentiment/ "What a film."
  bertcore explain mnli/ "A cat sleeps on the mat." "An animal is awake." --label contradiction
  bertcore explain sentiment/ "What a film." --method rollout --json"""

STEPS = 50
WIDEST = 24  # characters of a bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a model with a classifier of texts")
    parser.add_argument("text", metavar="TEXT", help="the text")
    parser.add_argument("text_pair", metavar="SECOND", nargs="?", help="the second text, for a classifier of pairs")
    parser.add_argument("--method", choices=["gradients", "rollout"], default="gradients", help="default: gradients")
    parser.add_argument("--label", metavar="CLASS", help="of gradients: the class (default: the one that is predicted)")
    parser.add_argument("--steps", type=positive, metavar="N", help=f"of gradients (default: {STEPS})")
    parser.add_argument("--max-length", type=positive, metavar="N", help="tokens that are read (default: the model's)")
    parser.add_argument(
        "--truncation", choices=["error", "cut"], default="error", help="of a text that is longer (default: error)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    if args.method == "rollout" and (args.label is not None or args.steps):
        raise CommandError("--label and --steps are for --method gradients")
    folder = model_folder(args.model)
    with chosen_backend(args):
        found = explained(folder, args)
    print(json.dumps(found, ensure_ascii=False) if args.json else shown(found))


def explained(folder: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The probabilities of all classes, the best first, and what each token had to do with the class."""
    from bertcore.tasks.attribution import attention_rollout, integrated_gradients
    from bertcore.tasks.pipelines import pipeline

    options = {"max_length": args.max_length, "truncation": True if args.truncation == "cut" else "error"}
    classifier = pipeline("text-classification", folder, dtype="float32", **options)
    inputs = args.text if args.text_pair is None else {"text": args.text, "text_pair": args.text_pair}
    classes = classifier(inputs, top_k=None)
    if args.method == "rollout":
        found = attention_rollout(classifier, inputs)
    else:
        found = integrated_gradients(classifier, inputs, label=args.label, steps=args.steps or STEPS)
    rows = zip(found.tokens, found.offsets, found.scores.tolist(), strict=True)
    tokens = [{"token": token, "start": start, "end": end, "score": score} for token, (start, end), score in rows]
    about = {"label": found.label, "gap": found.gap} if found.label is not None else {}
    return {"method": args.method, "classes": classes, **about, "tokens": tokens}


def shown(found: dict[str, Any]) -> str:
    """The classes, and the tokens with their scores as numbers and as bars of + and -."""
    classes = "  ".join(f"{printable(each['label'])} {each['score']:.4f}" for each in found["classes"])
    scores = [each["score"] for each in found["tokens"]]
    widest = max(map(abs, scores)) or 1.0
    bars = [("+" if score > 0 else "-") * round(WIDEST * abs(score) / widest) for score in scores]
    tokens = [each["token"] for each in found["tokens"]]
    rows = [[token, f"{score:.4f}", bar] for token, score, bar in zip(tokens, scores, bars, strict=True)]
    table = aligned(rows, ["token", "score", ""], right=[False, True, False])
    if "label" not in found:
        return f"{classes}\n\n{table}"
    label = printable(found["label"])
    total = f"together {sum(scores):.4f}, what the text adds to the score of {label}; error {found['gap']:.4f}"
    return f"{classes}\n\n{table}\n\n{total}"
