"""Scores of labelled spans of words, and of answers to questions."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from bertcore.training.masking import IGNORED

OUTSIDE = "O"
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

Span = tuple[str, int, int]


def spans(tags: Sequence[str]) -> set[Span]:
    """(kind, first, last + 1) of each span of tags in the IOB2 scheme.

    "B-KIND" begins a span, "I-KIND" goes on with one of its kind that ends just before, and begins one where there is
    none (as conlleval has it); "O" is outside.

    Raises:
        ValueError: for a tag of another form.
    """
    found: set[Span] = set()
    kind, start = "", 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        mark, _, this = tag.partition("-")
        if tag != OUTSIDE and (mark not in ("B", "I") or not this):
            raise ValueError(f"tags[{place}] is {tag!r}, expected O, B-KIND or I-KIND")
        if kind and (mark != "I" or this != kind):
            found.add((kind, start, place))
            kind = ""
        if this and not kind:
            kind, start = this, place
    return found


def span_f1(names: Sequence[str]) -> Callable[[tuple[Any, Any]], dict[str, float]]:
    """A metric of tagged words: precision, recall and F1 of whole spans, and the accuracy of tags.

    A predicted span counts if its kind and both its ends are right; precision and recall are over the spans of all
    kinds, and 0 where there are none (as seqeval has it).

    Args:
        names: the tags of the classes, in the IOB2 scheme.

    The function takes (predictions, label_ids): logits (texts, length, classes) or classes, and labels (texts, length),
    -100 where there is none.
    """
    spans(names)  # they have the right form

    def compute(prediction: tuple[Any, Any]) -> dict[str, float]:
        found, labels = prediction
        found = found.argmax(-1) if found.ndim == labels.ndim + 1 else found
        right = predicted = expected = same = words = 0
        for row, truth in zip(found, labels, strict=True):
            counted = truth != IGNORED
            guesses, wanted = (spans([names[index] for index in part[counted]]) for part in (row, truth))
            right, predicted, expected = right + len(guesses & wanted), predicted + len(guesses), expected + len(wanted)
            same, words = same + int((row == truth)[counted].sum()), words + int(counted.sum())
        precision, recall = right / max(1, predicted), right / max(1, expected)
        return {
            "precision": precision,
            "recall": recall,
            "f1": 2 * right / max(1, predicted + expected),
            "accuracy": same / words if words else float("nan"),
        }

    return compute


def normalized_answer(text: str) -> str:
    """An answer without case, punctuation, articles and further white space (Rajpurkar et al. 2016,
    arXiv:1606.05250)."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def answer_scores(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """{"exact_match", "f1"}: percentages over questions, as SQuAD's own script has them.

    Args:
        answers: one for each question; "" for none.
        references: all right answers of each question; none where it has no answer.

    F1 is that of words, of the best right answer.

    Raises:
        ValueError: for other numbers of answers and references, or none.
    """
    if len(answers) != len(references) or not len(answers):
        raise ValueError(f"there are {len(answers)} answers and references of {len(references)} questions")
    exact = overlap = 0.0
    for answer, right in zip(answers, references, strict=True):
        wanted = [normalized_answer(one) for one in right] or [""]
        exact += normalized_answer(answer) in wanted
        overlap += max(_word_f1(normalized_answer(answer), one) for one in wanted)
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * overlap / len(answers)}


def _word_f1(answer: str, right: str) -> float:
    found, wanted = Counter(answer.split()), Counter(right.split())
    if not found or not wanted:
        return float(found == wanted)
    return 2 * (found & wanted).total() / (found.total() + wanted.total())
