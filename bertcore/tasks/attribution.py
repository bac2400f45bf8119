"""Attribution of a classifier's prediction to tokens: attention rollout and integrated gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count
from bertcore.tape import Tape, Tensor, current_tape, value_of
from bertcore.tasks.long_texts import Cutting, Window, windows_of
from bertcore.tasks.pipelines.base import Pipeline
from bertcore.tasks.pipelines.classification import TextClassificationPipeline

if TYPE_CHECKING:
    from bertcore.models.inputs import EncoderInput
    from bertcore.passes import Pass


@dataclass(frozen=True)
class Attribution:
    """A score for each token of a text.

    Attributes:
        tokens: tokens of the model's input, special tokens included.
        offsets: (tokens, 2), their characters in the text; (0, 0) for special tokens.
        scores: (tokens,) float64.
        label: the class that the scores explain; None for attention rollout.
        gap: for integrated gradients, the sum of the scores less its exact value, the class's score minus that of the
            baseline. It shrinks as `steps` grows.
    """

    tokens: list[str]
    offsets: list[tuple[int, int]]
    scores: np.ndarray
    label: str | None = None
    gap: float = 0.0


def attention_rollout(classifier: Pipeline, inputs: str | Mapping[str, str], **options: Any) -> Attribution:
    """Return how much each token contributes, through the attention of all layers, to the state that is classified.

    That state is the first token ([CLS]), the last one (XLNet, GPT-2), or the mean of all. Each layer mixes half of a
    token's own state with half of the states it attends to (mean over the heads); the product of these matrices is the
    rollout (Abnar and Zuidema 2020, arXiv:2005.00928). Values are ignored, so the scores belong to no class. They are
    positive and sum to 1.

    Args:
        classifier: a text-classification pipeline.
        inputs: a text, or {"text", "text_pair"}.
        options: max_length and truncation (True to read the first tokens of a long text only).

    Raises TypeError and ValueError as the pipeline does, and ValueError for truncation "chunk".
    """
    window, arrays = probed_row(classifier, inputs, options)
    out = classifier.model(**arrays, output_attentions=True)
    if not out.attentions or any(layer is None for layer in out.attentions):
        raise ValueError(f"models of type {classifier.model.family.model_type!r} do not return attentions")
    rollout = np.eye(len(window))
    for layer in out.attentions:
        mixed = 0.5 * (kernels.to_host(layer)[0].astype(np.float64).mean(axis=0) + np.eye(len(window)))
        rollout = mixed / mixed.sum(axis=1, keepdims=True) @ rollout
    source = classifier.model.heads[0].source  # of the classified state
    scores = rollout.mean(axis=0) if source.startswith("mean") else rollout[-1 if source.startswith("last") else 0]
    return Attribution(list(window.encoding.tokens), list(window.encoding.offsets), scores)


def integrated_gradients(
    classifier: Pipeline, inputs: str | Mapping[str, str], *, label: str | None = None, steps: int = 50, **options: Any
) -> Attribution:
    """Return how much each token's embedding adds to the score (the logit) of a class.

    The gradient of the score is averaged over `steps` points between a baseline and the text's embeddings, and
    multiplied by their difference (Sundararajan et al. 2017, arXiv:1703.01365). The baseline has the padding token in
    place of each non-special token; positions and token types are unchanged. Apart from `gap`, the scores sum to the
    class's score minus that of the baseline.

    Args:
        classifier, inputs, options: as for `attention_rollout`; the model in float32 or float64.
        label: the class; by default the predicted one.
        steps: number of points: the midpoints of equal parts of the path.

    Raises errors as `attention_rollout` does, and ValueError for an unknown label and invalid steps.
    """
    check_count("steps", steps)
    if current_tape() is not None:
        raise ValueError("integrated_gradients is called while a tape records, expected a call outside of it")
    window, arrays = probed_row(classifier, inputs, options)
    names, padding = classifier.id2label, classifier.tokenizer.pad_token_id
    if padding is None:
        raise ValueError("the tokenizer has no padding token, the baseline of integrated gradients")
    if label is not None and label not in names.values():
        raise ValueError(f"label is {label!r}, expected one of {', '.join(names.values())}")
    probe = Probe(classifier.model)
    here, score = probe.embeddings(arrays)
    column = int(score.argmax()) if label is None else next(i for i, name in names.items() if name == label)
    special = np.array(window.encoding.special_tokens_mask, bool)
    baseline, base_score = probe.embeddings(arrays | {"input_ids": np.where(special, window.ids, padding)[None]})
    points = (np.arange(steps) + 0.5) / steps
    gradient = np.zeros(here.shape, np.float64)
    at_once = max(1, classifier.options.batch_tokens // len(window))
    for first in range(0, steps, at_once):
        share = points[first : first + at_once, None, None]
        gradient += probe.gradients(arrays, baseline + share * (here - baseline), column)
    scores = (gradient / steps * (here - baseline)).sum(axis=1)
    gap = float(scores.sum() - (score[column] - base_score[column]))
    return Attribution(list(window.encoding.tokens), list(window.encoding.offsets), scores, names[column], gap)


def probed_row(
    classifier: Pipeline, inputs: str | Mapping[str, str], options: Mapping[str, Any]
) -> tuple[Window, dict[str, np.ndarray]]:
    """Return the single row of the text and the model's arguments."""
    if not isinstance(classifier, TextClassificationPipeline):
        raise TypeError(f"classifier is {type(classifier).__name__}, expected a text-classification pipeline")
    read = classifier._options(options)
    cutting: Cutting = classifier._cutting(read)
    if cutting.reads_all:
        raise ValueError("truncation is 'chunk', expected True: only a single window's prediction can be attributed")
    found = list(windows_of(classifier.tokenizer, classifier._texts(inputs, "inputs", read), cutting)[0])
    if len(found) > 1 and cutting.truncation is not True:
        raise ValueError(f"inputs has more than {cutting.max_length} tokens: truncation=True reads the first ones")
    return found[0], classifier._arrays(found[:1])


class Probe:
    """A copy of a model whose embeddings can be read and replaced; weights are shared with the original."""

    def __init__(self, model: Any):
        self._model = copy.copy(model)
        self._encoder = self._model.encoder = copy.copy(model.encoder)
        self._embed = model.encoder.embeddings

    def embeddings(self, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the embeddings of one row, (tokens, hidden), and the scores, (classes,), float64."""
        seen = []

        def read(run: Pass, inputs: EncoderInput) -> Tensor:
            seen.append(self._embed(run, inputs))
            return seen[-1]

        scores = self.scores(read, arrays)
        return kernels.to_host(value_of(seen[0])).astype(np.float64), kernels.to_host(scores)[0].astype(np.float64)

    def gradients(self, arrays: Mapping[str, np.ndarray], points: np.ndarray, column: int) -> np.ndarray:
        """Return the gradient of a class's score at embeddings `points` (rows, tokens, hidden), summed over rows."""
        rows = {name: np.repeat(array, len(points), axis=0) for name, array in arrays.items()}
        with Tape() as tape:

            def leaf(run: Pass, inputs: EncoderInput) -> Tensor:
                like = value_of(self._embed(run, inputs))
                made = np.ascontiguousarray(points.reshape(like.shape), kernels.to_host(like).dtype)
                return tape.leaf("points", run.to_backend(made))

            scores = self.scores(leaf, rows)
        seed = np.zeros(scores.value.shape, kernels.to_host(scores.value).dtype)
        seed[:, column] = 1
        found = tape.gradients(scores, kernels.to_backend(seed))["points"]
        return kernels.to_host(found).astype(np.float64).reshape(points.shape).sum(axis=0)

    def scores(self, embeddings: Callable[[Pass, EncoderInput], Tensor], arrays: Mapping[str, np.ndarray]) -> Tensor:
        self._encoder.embeddings = embeddings
        return self._model(**arrays).logits
