"""Whether a text is followed by another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.tasks.long_texts import Text, Window, merged
from bertcore.tasks.pipelines.base import Pipeline
from bertcore.tasks.sequence_scores import softmax
from bertcore.tasks.texts import checked_text


class NextSentencePredictionPipeline(Pipeline):
    """The probability that the second text of each pair follows the first: {"is_next", "not_next"} (Devlin et al. 2019,
    arXiv:1810.04805).

    An input is {"text", "text_pair"}. Of a pair that is read in windows ("chunk") the answer is the windows' mean,
    weighted by their tokens. Options: `CallOptions`.
    """

    task = "next-sentence-prediction"
    _model_class = "AutoModelForNextSentencePrediction"
    _head = "next sentence prediction's head"

    def _is_one(self, inputs: Any) -> bool:
        return isinstance(inputs, str | Mapping)

    def _expected(self) -> str:
        return '{"text": ..., "text_pair": ...}'

    def _texts(self, item: Any, name: str, options: Any) -> list[Text]:
        if not isinstance(item, Mapping):
            raise TypeError(f"{name} is {type(item).__name__}, expected {self._expected()}")
        if set(item) != {"text", "text_pair"}:
            raise ValueError(f"{name} has the keys {', '.join(map(repr, item))}, expected 'text' and 'text_pair'")
        return [Text(*(checked_text(f"{name}[{key!r}]", item[key]) for key in ("text", "text_pair")))]

    def _read(self, windows: Sequence[Window], arrays: Mapping[str, np.ndarray], options: Any) -> Sequence[Any]:
        return list(zip(softmax(kernels.to_host(self.model(**arrays).logits)), map(len, windows), strict=True))

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: Any) -> Any:
        is_next, not_next = merged(kept[0], "mean").tolist()
        return {"is_next": is_next, "not_next": not_next}
