"""Predict the words that belong in place of the mask in a text: [MASK], or <mask> where a model spells it so."""

import argparse
import json
import warnings
from dataclasses import asdict, dataclass
from typing import Any

from bertcore.cli.common import CommandError, add_dtype_argument, chosen_backend, model_folder, positive
from bertcore.cli.tables import printable

HELP = "predict masked words"
EXAMPLES = """\
examples:
  bertcore fill-mask bert-base-uncased/ "Paris is the [MASK] of France."
  bertcore fill-mask bert-base-uncased/ "[MASK] is the [MASK] of France." --top-k 3 --json

Several masks are predicted each on its own, the others staying masked."""


@dataclass(frozen=True)
class Prediction:
    """A word of the vocabulary, its id, and its probability at the mask."""

    token: str
    id: int
    probability: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="folder or id of a model with a masked LM's head")
    parser.add_argument("text", metavar="TEXT", help="a text with one or several masks")
    parser.add_argument("--top-k", type=positive, default=5, metavar="N", help="words per mask (default: 5)")
    add_dtype_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    folder = model_folder(args.model)
    with chosen_backend(args):
        masks = fill_mask(*_load(folder, args.dtype), args.text, args.top_k)
    if args.json:
        answer = {"text": args.text, "masks": [[asdict(word) for word in words] for words in masks]}
        print(json.dumps(answer, ensure_ascii=False))
    else:
        print("\n\n".join(_table(index, words, of=len(masks)) for index, words in enumerate(masks, 1)))


def _load(folder, dtype: str | None) -> tuple[Any, Any]:
    from bertcore import AutoModelForMaskedLM, AutoTokenizer
    from bertcore.models.model import NewlyInitialisedWarning

    with warnings.catch_warnings():  # a missing head is an error here, and told below
        warnings.simplefilter("ignore", NewlyInitialisedWarning)
        model = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype)
    if model.newly_initialised:
        raise CommandError(f"{folder} has no masked language model's head, so it cannot predict words")
    return model, AutoTokenizer.from_pretrained(folder)


def fill_mask(model: Any, tokenizer: Any, text: str, top_k: int) -> list[list[Prediction]]:
    """For each mask in `text`, from left to right, the `top_k` most probable words, the best first."""
    import numpy as np

    mask = tokenizer.mask_token
    if mask is None:
        raise CommandError("this model's tokenizer has no mask token")
    ids = np.array(tokenizer([text])["input_ids"])
    where = np.flatnonzero(ids[0] == tokenizer.mask_token_id)
    if not where.size:
        raise CommandError(f"the text has no {mask}: put {mask} where a word is to be predicted")
    longest = model.spec.longest_sequence
    if longest is not None and ids.shape[1] > longest:
        raise CommandError(f"the text has {ids.shape[1]} tokens, this model takes {longest}")
    logits = model(ids).logits[0]
    logits = logits if isinstance(logits, np.ndarray) else logits.get()
    return [_best(logits[position], tokenizer, top_k) for position in where]


def _best(logits: Any, tokenizer: Any, top_k: int) -> list[Prediction]:
    import numpy as np

    weights = np.exp(logits.astype(np.float64) - logits.max())
    probabilities = weights / weights.sum()
    # A vocabulary is often rounded up in the model: what lies beyond the tokenizer's stands for no word.
    best = np.argsort(-probabilities[: len(tokenizer)], kind="stable")[:top_k].tolist()
    return [Prediction(tokenizer.decode([word]), word, float(probabilities[word])) for word in best]


def _table(index: int, words: list[Prediction], of: int) -> str:
    tokens = [printable(word.token) for word in words]
    width = max(map(len, tokens))
    lines = [f"{token:<{width}}  {word.probability:.4f}" for token, word in zip(tokens, words, strict=True)]
    return "\n".join(lines if of == 1 else [f"mask {index}", *(f"  {line}" for line in lines)])
