"""The hidden states of texts' tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels import checks
from bertcore.tasks.long_texts import Window, owned
from bertcore.tasks.pipelines.base import CallOptions, Pipeline


@dataclass(frozen=True)
class FeatureOptions(CallOptions):
    """What a call may say, beside `CallOptions`.

    Attributes:
        return_tensors: whether an answer is a float32 array instead of lists.
    """

    return_tensors: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.boolean("return_tensors", self.return_tensors)


class FeatureExtractionPipeline(Pipeline):
    """The last hidden state of each text, (1, tokens, hidden), special tokens included: lists of numbers, or an array.

    Of a text that is read in windows ("chunk") each token is taken from the window in which it has more context.
    Options: `FeatureOptions`.
    """

    task = "feature-extraction"
    options_class = FeatureOptions
    _model_class = "AutoModel"
    _head = "encoder"

    @classmethod
    def _model_options(cls) -> dict[str, Any]:
        return {"add_pooling_layer": False}

    def _read(self, windows: Sequence[Window], arrays: Mapping[str, np.ndarray], options: Any) -> Sequence[Any]:
        hidden = kernels.to_host(self.model(**arrays).last_hidden_state)
        return [
            (hidden[row, : len(window)].copy(), window.content, window.shared) for row, window in enumerate(windows)
        ]

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: Any) -> Any:
        states = _whole(kept[0])[None]
        return states if options.return_tensors else states.tolist()


def _whole(kept: Sequence[tuple[np.ndarray, np.ndarray, int]]) -> np.ndarray:
    """The states of all tokens of a text, (tokens, hidden), special tokens from its first and its last window."""
    if len(kept) == 1:
        return kept[0][0]
    slices = owned([len(content) for _, content, _ in kept], [shared for _, _, shared in kept])
    parts = [hidden[content[part]] for (hidden, content, _), part in zip(kept, slices, strict=True)]
    (first, opening, _), (last, closing, _) = kept[0], kept[-1]
    return np.concatenate([first[: opening[0]], *parts, last[closing[-1] + 1 :]])
