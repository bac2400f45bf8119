"""Classify texts and pairs of texts, with the model's classes or given ones (zero-shot)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from bertcore import kernels
from bertcore.arguments import DType, check_count
from bertcore.checkpoint import resolve
from bertcore.kernels import checks
from bertcore.models import auto
from bertcore.models.gliner import GLiNERModel
from bertcore.models.gliner2 import GLiNER2Model
from bertcore.tasks.calibration import Calibration
from bertcore.tasks.gliner import GLiNER, Labels, is_gliner2
from bertcore.tasks.gliner2 import GLiNER2
from bertcore.tasks.long_texts import MERGES, Text, Window, merged
from bertcore.tasks.pipelines.base import Answers, Arrays, CallOptions, Pipeline, listed_names
from bertcore.tasks.sequence_scores import FUNCTIONS, best_labels, published_function, softmax
from bertcore.tasks.texts import BATCH_TOKENS, check_words, checked_text
from bertcore.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertcore.models.model import Model

BEST_ALONE = "the best class"  # the default of top_k: the best class, without a list


@dataclass(frozen=True)
class ClassificationOptions(CallOptions):
    """Options of a call, in addition to `CallOptions`.

    Attributes:
        top_k: number of classes to return, best first; None for all. By default the best class, without a list.
        function_to_apply: maps scores to probabilities: "softmax", "sigmoid" or "none", in either case; by default as
            the config says: "none" for regression, "sigmoid" for one class or several at once, otherwise "softmax".
        calibration: maps scores to probabilities instead: a `TemperatureScaling` or `IsotonicCalibration` of
            `bertcore.tasks.calibration`, fitted to this model's scores on held-out texts.
        merge: for truncation="chunk", how to merge the scores of a text's windows: "mean", weighted by tokens, or the
            "max" of each class.
    """

    top_k: Any = BEST_ALONE
    function_to_apply: str | None = None
    calibration: Calibration | None = None
    merge: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_k not in (BEST_ALONE, None):
            check_count("top_k", self.top_k)
        if self.function_to_apply is not None:
            if isinstance(self.function_to_apply, str) and self.function_to_apply.lower() in FUNCTIONS:
                object.__setattr__(self, "function_to_apply", self.function_to_apply.lower())
            checks.choice("function_to_apply", self.function_to_apply, tuple(FUNCTIONS))
        if self.calibration is not None and not isinstance(self.calibration, Calibration):
            name = type(self.calibration).__name__
            raise TypeError(f"calibration is {name}, expected TemperatureScaling or IsotonicCalibration")
        if self.calibration is not None and self.function_to_apply is not None:
            raise ValueError("calibration and function_to_apply are both given, expected one of them")
        checks.choice("merge", self.merge, MERGES)


class TextClassificationPipeline(Pipeline):
    """Predict the class of each text: {"label", "score"}, or with `top_k` a list of them, best first.

    An input is a string, or a pair of texts as {"text", "text_pair"}. As in transformers, a call without `top_k` puts
    the answer to a single string into a list. Options: `ClassificationOptions`.
    """

    task = "text-classification"
    options_class = ClassificationOptions
    _keys = "text", "text_pair"
    model_classes = (auto.AutoModelForSequenceClassification,)
    _head = "classifier of texts"

    def _expected(self) -> str:
        return f"a string or {super()._expected()}"

    def _texts(self, item: object, name: str, options: ClassificationOptions) -> list[Text]:
        if not isinstance(item, Mapping):
            return super()._texts(item, name, options)
        if "text" not in item or set(item) - {"text", "text_pair"}:
            raise ValueError(f"{name} has the keys {listed_names(item)}, expected 'text' and 'text_pair'")
        second = item.get("text_pair")
        if second is not None:
            second = checked_text(f"{name}['text_pair']", second)
        return [Text(checked_text(f"{name}['text']", item["text"]), second)]

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: ClassificationOptions) -> Sequence[Any]:
        scores = self._function(options)(kernels.to_host(self.model(**arrays).logits))
        return list(zip(scores, map(len, windows), strict=True))

    def _function(self, options: ClassificationOptions) -> Callable[[np.ndarray], np.ndarray]:
        calibration = options.calibration
        if calibration is not None:
            return lambda scores: calibration.transform(FUNCTIONS[calibration.takes](scores))
        published = published_function(self.model.config.get("problem_type"), len(self.id2label))
        return FUNCTIONS[options.function_to_apply or published]

    def _answer(self, item: object, name: str, kept: list[list[Any]], options: ClassificationOptions) -> Answers:
        scores = merged(kept[0], options.merge)
        ranked = best_labels(scores, self.id2label)
        return ranked[0] if options.top_k == BEST_ALONE else ranked[: options.top_k]

    def _options(self, given: Mapping[str, Any]) -> ClassificationOptions:
        kept = self.options.function_to_apply if given.get("function_to_apply") is None else given["function_to_apply"]
        return super()._options(dict(given) | {"function_to_apply": kept})

    def __call__(self, inputs: Any, **options: Any) -> Any:
        answer = super().__call__(inputs, **options)
        return [answer] if isinstance(inputs, str) and "top_k" not in options else answer


TEMPLATE = "This example is {}."


@dataclass(frozen=True)
class ZeroShotOptions(CallOptions):
    """Options of a call, in addition to `CallOptions`.

    Attributes:
        candidate_labels: the classes: a list, or a comma-separated string.
        hypothesis_template: the sentence that assigns a class to a text, with {} in place of the class.
        multi_label: whether several classes may apply: each is then scored separately, as entailed or contradicted;
            otherwise the scores of all classes sum to 1.
        merge: for truncation="chunk", how to merge the scores of a text's windows: "mean", weighted by tokens, or
            "max"; of probabilities with multi_label, otherwise of entailment scores.
    """

    candidate_labels: str | Sequence[str] = ()
    hypothesis_template: str = TEMPLATE
    multi_label: bool = False
    merge: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.boolean("multi_label", self.multi_label)
        checks.choice("merge", self.merge, MERGES)
        checked_text("hypothesis_template", _with_place(self.hypothesis_template))
        if not isinstance(self.candidate_labels, str):
            check_words("candidate_labels", self.candidate_labels)

    @property
    def labels(self) -> list[str]:
        if isinstance(self.candidate_labels, str):
            return [label.strip() for label in self.candidate_labels.split(",") if label.strip()]
        return list(self.candidate_labels)


def _with_place(template: object) -> str:
    with suppress(IndexError, KeyError, ValueError, AttributeError):  # not a template with one placeholder
        if isinstance(template, str) and template.format("x") != template:
            return template
    raise ValueError(f"hypothesis_template is {template!r}, expected a text with {{}} in place of the class")


class ZeroShotClassificationPipeline(Pipeline):
    """Score given classes for each text: {"sequence", "labels", "scores"}, best first.

    The score of a class is how strongly the text entails "This example is CLASS." (Yin et al. 2019, arXiv:1909.00161),
    according to a model for natural language inference: one class of its config must be called entailment. Options:
    `ZeroShotOptions`.
    """

    task = "zero-shot-classification"
    options_class = ZeroShotOptions
    model_classes = (auto.AutoModelForSequenceClassification,)
    _head = "classifier of texts"

    def __init__(self, model: Model, tokenizer: Tokenizer, **options: Any):
        super().__init__(model, tokenizer, **options)
        names = self.id2label
        found = [index for index, name in names.items() if name.lower().startswith("entail")]
        if not found:
            expected = f"a class called entailment: {self.task} needs a model of natural language inference"
            raise ValueError(f"id2label has {', '.join(names.values())}, expected {expected}")
        self._entailment = found[0]
        self._contradiction = len(names) - 1 if found[0] == 0 else 0

    def __call__(self, inputs: Any, candidate_labels: str | Sequence[str] | None = None, **options: Any) -> Any:
        if candidate_labels is not None:
            options["candidate_labels"] = candidate_labels
        read = self._options(options)
        if not read.labels:
            raise ValueError("candidate_labels is empty, expected classes")
        return self._call(inputs, read)

    def _texts(self, item: object, name: str, options: ZeroShotOptions) -> list[Text]:
        text = checked_text(name, item)
        return [Text(text, options.hypothesis_template.format(label), "only_first") for label in options.labels]

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: ZeroShotOptions) -> Sequence[Any]:
        logits = kernels.to_host(self.model(**arrays).logits)
        if options.multi_label or len(options.labels) == 1:
            scores = softmax(logits[:, [self._contradiction, self._entailment]])[:, 1:]
        else:
            scores = logits[:, [self._entailment]].astype(np.float64)
        return list(zip(scores, map(len, windows), strict=True))

    def _answer(self, item: object, name: str, kept: list[list[Any]], options: ZeroShotOptions) -> dict[str, Any]:
        scores = np.concatenate([merged(each, options.merge) for each in kept])
        if not options.multi_label and len(kept) > 1:
            scores = softmax(scores)
        order = np.argsort(-scores, kind="stable").tolist()
        labels = options.labels
        return {"sequence": item, "labels": [labels[i] for i in order], "scores": scores[order].tolist()}


@dataclass(frozen=True)
class ZeroShotNerOptions:
    """Options of a call, as documented by `GLiNER.inference`.

    Attributes:
        labels: the kinds of entities: a list, or a comma-separated string.
        flat_ner, threshold, multi_label, batch_size, batch_tokens, truncation: as in `GLiNER.inference`.
        show_progress_bar: whether to show a bar; by default on a terminal, if the work takes long.
    """

    labels: Labels | None = None
    flat_ner: bool = True
    threshold: float = 0.5
    multi_label: bool = False
    batch_size: int = 8
    batch_tokens: int = BATCH_TOKENS
    truncation: bool | str = "warn"
    show_progress_bar: bool | None = None


class ZeroShotNerPipeline(Pipeline):
    """Find entities of given kinds with a GLiNER or GLiNER2 model; answers are as in `GLiNER.inference`.

    Options: `ZeroShotNerOptions`.

    Attributes:
        gliner: the `GLiNER` or `GLiNER2` that answers.
    """

    task = "zero-shot-ner"
    options_class: ClassVar[Any] = ZeroShotNerOptions
    model_classes = GLiNERModel, GLiNER2Model

    def __init__(self, model: Any, tokenizer: Tokenizer, **options: Any):
        super().__init__(model, tokenizer, **options)
        self.gliner = (GLiNER2 if isinstance(model, GLiNER2Model) else GLiNER)(model, tokenizer)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None,
                        dtype: DType | None = None, hub: Mapping[str, Any] | None = None,
                        **options: Any) -> Self:  # fmt: skip
        found = resolve(folder, "gliner", **(hub or {}))
        loaded = (GLiNER2 if is_gliner2(found) else GLiNER).from_pretrained(found, dtype=dtype, **(hub or {}))
        return cls(loaded.model, loaded.tokenizer if tokenizer is None else tokenizer, **options)

    def __call__(self, inputs: Any, labels: Labels | None = None, **options: Any) -> Any:
        return super().__call__(inputs, **({} if labels is None else {"labels": labels}), **options)

    def _answers(self, items: Iterable[Any], options: Any, total: int | None, one: bool = False) -> Iterator[Any]:
        given = dict(vars(options))
        if given["labels"] is None:
            raise TypeError("labels is None, expected a list of strings, or one with commas between them")
        if isinstance(given["labels"], str):
            given["labels"] = [label.strip() for label in given["labels"].split(",")]
        texts = (checked_text("inputs" if one else f"inputs[{at}]", text) for at, text in enumerate(items))
        return self.gliner.inference_stream(texts, **given)
