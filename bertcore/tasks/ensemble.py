"""Ensembles of text classifiers, and measures of their members' disagreement."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bertcore.arguments import check_list, check_numbers
from bertcore.tasks.pipelines import pipeline
from bertcore.tasks.pipelines.base import Pipeline
from bertcore.tasks.pipelines.classification import ClassificationOptions, TextClassificationPipeline

if TYPE_CHECKING:
    from bertcore.kernels.arrays import ArrayLike

VOTES = ("soft", "hard")
TOGETHER = 64  # texts that each member classifies in turn


class Ensemble:
    """Several classifiers with the same classes (different seeds or different models), used as one.

    Args:
        members: at least two text-classification pipelines whose models have the same classes. A member with a
            calibration votes with calibrated probabilities.
        vote: "soft" takes the mean of the members' probabilities, "hard" the share of members that predict a class
            (ties go to the class with the higher mean probability).
        weights: a positive weight for each member; equal by default.

    Call it with a text, a pair {"text", "text_pair"}, or a list or iterator of these. For each it returns:

    - "label", "score": the class and its share.
    - "scores": {label: share} of all classes, which sum to 1.
    - "disagreement": the share of members that predict a different class, in [0, 1).
    - "divergence": the entropy of the mean probabilities less the mean entropy, in nats (the generalised Jensen-Shannon
      divergence, or mutual information; Houlsby et al. 2011, arXiv:1112.5745). It distinguishes texts on which
      members disagree from texts that all members are unsure of.

    Source: Lakshminarayanan et al. 2017, arXiv:1612.01474. Raises ValueError for fewer than two members, different
    classes, an unknown vote, and invalid weights; TypeError for members that are not text-classification pipelines.
    """

    def __init__(self, members: Sequence[Pipeline], *, vote: str = "soft", weights: ArrayLike | None = None):
        self.members = check_list("members", members, "pipelines")
        if len(self.members) < 2:
            raise ValueError(f"members has {len(self.members)}, expected at least two")
        for number, member in enumerate(self.members):
            if not isinstance(member, TextClassificationPipeline):
                raise TypeError(f"members[{number}] is {type(member).__name__}, expected a text classifier")
            names, first = set(member.id2label.values()), set(self.members[0].id2label.values())
            if names != first or len(names) != len(member.id2label):
                raise ValueError(f"members[{number}] has the classes {sorted(names)}, the first has {sorted(first)}")
        if vote not in VOTES:
            raise ValueError(f"vote is {vote!r}, expected 'soft' or 'hard'")
        self.vote, self.weights = vote, _weights(weights, len(self.members))
        self.labels = [self.members[0].id2label[index] for index in sorted(self.members[0].id2label)]

    @classmethod
    def from_pretrained(cls, folders: Sequence[str | os.PathLike[str]], *, vote: str = "soft",
                        weights: ArrayLike | None = None, **options: Any) -> Self:  # fmt: skip
        """Load an ensemble from checkpoints; `options` as for `pipeline`."""
        return cls([pipeline("text-classification", each, **options) for each in folders], vote=vote, weights=weights)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Classify one text or several; `options` as for the members' calls (truncation, batch_tokens, ...)."""
        taken = [name for name in ("top_k", "function_to_apply", "calibration") if name in options]
        if taken:
            raise TypeError(f"{taken[0]} cannot be given to an ensemble, which needs the probabilities of all classes")
        options["top_k"] = None
        first = self.members[0]
        read = first._options(options)
        if isinstance(inputs, str | Mapping):
            first._texts(inputs, "inputs", read)
            return next(self._answers([inputs], options))
        first._check_several(inputs)
        rows = self._checked(inputs, read)
        if isinstance(inputs, Iterator) or not hasattr(inputs, "__len__"):
            return self._answers(rows, options)
        return list(self._answers(rows, options))

    def _checked(self, inputs: Iterable[Any], options: ClassificationOptions) -> Iterator[Any]:
        """Yield the inputs, checked here so that an error names the index among all inputs."""
        for number, row in enumerate(inputs):
            self.members[0]._texts(row, f"inputs[{number}]", options)
            yield row

    def _answers(self, inputs: Iterable[Any], options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        rows = iter(inputs)
        while some := list(islice(rows, TOGETHER)):
            found = np.stack([self._probabilities(member, some, options) for member in self.members])
            yield from (self._answer(found[:, number]) for number in range(len(some)))

    def _probabilities(
        self, member: TextClassificationPipeline, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> np.ndarray:
        """Return the probabilities of one member, (inputs, classes)."""
        function = {} if member.options.calibration else {"function_to_apply": "softmax"}
        answers = member(inputs, **options, **function)
        rows = ({each["label"]: each["score"] for each in answer} for answer in answers)
        return np.array([[row[label] for label in self.labels] for row in rows])

    def _answer(self, probabilities: np.ndarray) -> dict[str, Any]:
        """Return the answer to one text from probabilities (members, classes)."""
        own = probabilities.argmax(axis=1)
        mean = self.weights @ probabilities
        votes = np.bincount(own, self.weights, minlength=len(self.labels))
        shares = mean if self.vote == "soft" else votes
        best = int(np.lexsort((-mean, -shares))[0])
        divergence = _entropy(mean) - float(self.weights @ [_entropy(row) for row in probabilities])
        return {
            "label": self.labels[best],
            "score": float(shares[best]),
            "scores": dict(zip(self.labels, shares.tolist(), strict=True)),
            "disagreement": max(0.0, float(1 - votes[best])),
            "divergence": max(0.0, divergence),
        }


def _weights(weights: ArrayLike | None, count: int) -> np.ndarray:
    if weights is None:
        return np.full(count, 1 / count)
    array = check_numbers("weights", weights).astype(np.float64)
    if array.shape != (count,) or not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"weights is {weights!r}, expected {count} positive numbers")
    return array / array.sum()


def _entropy(probabilities: np.ndarray) -> float:
    there = probabilities[probabilities > 0]
    return float(-(there * np.log(there)).sum())
