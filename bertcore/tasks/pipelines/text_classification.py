"""Classes of texts, or of pairs of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count
from bertcore.kernels import checks
from bertcore.tasks.calibration import Calibration
from bertcore.tasks.long_texts import MERGES, Text, Window, merged
from bertcore.tasks.pipelines.base import CallOptions, Pipeline
from bertcore.tasks.sequence_scores import FUNCTIONS, published_function
from bertcore.tasks.texts import checked_text


class _BestAlone:
    """The default of top_k: the best class, not in a list of its own."""

    def __repr__(self) -> str:
        return "the best class"


BEST_ALONE: Final = _BestAlone()


@dataclass(frozen=True)
class ClassificationOptions(CallOptions):
    """What a call may say, beside `CallOptions`.

    Attributes:
        top_k: how many classes, the best first; None for all. Without it the best class alone.
        function_to_apply: what makes probabilities of scores: "softmax", "sigmoid" or "none"; by default "none" for
            regression, "sigmoid" for one class or several at once, "softmax" for others, as the config has it.
        calibration: what makes probabilities of scores instead, fitted to this model's on held-out texts: a
            `TemperatureScaling` or `IsotonicCalibration` of `bertcore.tasks.calibration`.
        merge: for truncation="chunk", what makes one score of those of a text's windows: their "mean", weighted by
            their tokens, or the "max" of each class.
    """

    top_k: Any = BEST_ALONE
    function_to_apply: str | None = None
    calibration: Calibration | None = None
    merge: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k is not BEST_ALONE and self.top_k is not None:
            check_count("top_k", self.top_k)
        if self.function_to_apply is not None:
            checks.choice("function_to_apply", self.function_to_apply, tuple(FUNCTIONS))
        if self.calibration is not None and not isinstance(self.calibration, Calibration):
            name = type(self.calibration).__name__
            raise TypeError(f"calibration is {name}, expected TemperatureScaling or IsotonicCalibration")
        if self.calibration is not None and self.function_to_apply is not None:
            raise ValueError("calibration and function_to_apply are both given, expected one of them")
        checks.choice("merge", self.merge, MERGES)


class TextClassificationPipeline(Pipeline):
    """The class of each text: {"label", "score"}, or with `top_k` a list of them, the best first.

    An input is a string, or a pair of texts as {"text", "text_pair"}. As in transformers a string that stands alone
    gets a list of its one class. Options: `ClassificationOptions`.
    """

    task = "text-classification"
    options_class = ClassificationOptions
    _model_class = "AutoModelForSequenceClassification"
    _head = "classifier of texts"

    def _is_one(self, inputs: Any) -> bool:
        return isinstance(inputs, str | Mapping)

    def _expected(self) -> str:
        return 'a string or {"text": ..., "text_pair": ...}'

    def _texts(self, item: Any, name: str, options: Any) -> list[Text]:
        if not isinstance(item, Mapping):
            return super()._texts(item, name, options)
        if "text" not in item or set(item) - {"text", "text_pair"}:
            raise ValueError(f"{name} has the keys {', '.join(map(repr, item))}, expected 'text' and 'text_pair'")
        second = item.get("text_pair")
        if second is not None:
            second = checked_text(f"{name}['text_pair']", second)
        return [Text(checked_text(f"{name}['text']", item["text"]), second)]

    def _read(self, windows: Sequence[Window], arrays: Mapping[str, np.ndarray], options: Any) -> Sequence[Any]:
        scores = self._function(options)(kernels.to_host(self.model(**arrays).logits))
        return list(zip(scores, map(len, windows), strict=True))

    def _function(self, options: ClassificationOptions) -> Any:
        calibration = options.calibration
        if calibration is not None:
            return lambda scores: calibration.transform(FUNCTIONS[calibration.takes](scores))
        published = published_function(self.model.config.get("problem_type"), len(self.id2label))
        return FUNCTIONS[options.function_to_apply or published]

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: Any) -> Any:
        scores = merged(kept[0], options.merge)
        names = self.id2label
        order = np.argsort(-scores, kind="stable")
        ranked = [{"label": names[index], "score": float(scores[index])} for index in order.tolist()]
        return ranked[0] if options.top_k is BEST_ALONE else ranked[: options.top_k]

    def _answer_of_one(self, item: Any, answer: Any, options: Any) -> Any:
        return [answer] if isinstance(item, str) and options.top_k is BEST_ALONE else answer
