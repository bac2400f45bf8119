"""Pipelines: from texts to answers, one class per task, with transformers' names and results."""

import importlib
import os
from typing import Any

from bertcore.arguments import DType
from bertcore.models.model import Model
from bertcore.tasks.pipelines.base import Pipeline
from bertcore.tokenization.tokenizer import Tokenizer

# Task -> module and class; each is loaded when it is first asked for.
TASKS = {
    "entity-classification": ("entities", "EntityClassificationPipeline"),
    "feature-extraction": ("pretrained", "FeatureExtractionPipeline"),
    "fill-mask": ("pretrained", "FillMaskPipeline"),
    "next-sentence-prediction": ("pretrained", "NextSentencePredictionPipeline"),
    "question-answering": ("spans", "QuestionAnsweringPipeline"),
    "relation-extraction": ("entities", "RelationExtractionPipeline"),
    "span-ner": ("entities", "SpanNerPipeline"),
    "text-classification": ("classification", "TextClassificationPipeline"),
    "text-generation": ("pretrained", "TextGenerationPipeline"),
    "token-classification": ("spans", "TokenClassificationPipeline"),
    "zero-shot-classification": ("classification", "ZeroShotClassificationPipeline"),
    "zero-shot-ner": ("classification", "ZeroShotNerPipeline"),
}
ALIASES = {"ner": "token-classification", "sentiment-analysis": "text-classification"}


def pipeline(
    task: str, model: str | os.PathLike[str] | Model[Any], tokenizer: Tokenizer | None = None, *,
    dtype: DType | None = None, revision: str | None = None, token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None, local_files_only: bool = False, **options: Any,
) -> Pipeline:  # fmt: skip
    """Return a pipeline for a task; call it with texts for answers in the form of transformers' pipelines.

    Args:
        task: one of TASKS, or one of transformers' other names "ner" and "sentiment-analysis".
        model: the folder of a checkpoint, its id on the hub, or a loaded model.
        tokenizer: a loaded tokenizer; by default the checkpoint's. Required with a loaded model.
        dtype, revision, token, cache_dir, local_files_only: as for `AutoModel.from_pretrained`; only for a checkpoint.
        options: defaults of a call's options, documented by the class of the task (top_k, truncation, ...).

    Raises:
        ValueError: the task is unknown, the checkpoint has no head for it, or an option is invalid.
        TypeError: an option is unknown, or a loaded model has no tokenizer or belongs to another task.
        CheckpointError: a file of the checkpoint is invalid.
    """
    kind = pipeline_class(task)
    if not isinstance(model, str | os.PathLike | Model):
        raise TypeError(f"model is {type(model).__name__}, expected the folder or the id of a checkpoint, or a model")
    if tokenizer is not None and not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"tokenizer is {type(tokenizer).__name__}, expected what AutoTokenizer.from_pretrained returns")
    hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
    if not isinstance(model, Model):
        return kind.from_pretrained(model, tokenizer=tokenizer, dtype=dtype, hub=hub, **options)
    loading = {"dtype": dtype, **hub, "local_files_only": local_files_only or None}
    if wrong := [name for name, value in loading.items() if value is not None]:
        raise TypeError(f"{wrong[0]} is for a model that is not loaded yet, and model is a {type(model).__name__}")
    if tokenizer is None:
        raise TypeError(f"tokenizer is None, expected the tokenizer of the {type(model).__name__}")
    if not isinstance(model, kind.model_classes):
        needs = " or ".join(each.__name__ for each in kind.model_classes)
        raise TypeError(f"model is a {type(model).__name__}, {kind.task} needs {needs}")
    return kind(model, tokenizer, **options)


def pipeline_class(task: str) -> type[Pipeline]:
    """Return the class of a task. Raises ValueError, which lists the known tasks, for an unknown one."""
    name = ALIASES.get(task, task) if isinstance(task, str) else task
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task is {task!r}, expected one of {', '.join(sorted([*TASKS, *ALIASES]))}")
    module, kind = TASKS[name]
    return getattr(importlib.import_module(f"bertcore.tasks.pipelines.{module}"), kind)


__all__ = ["ALIASES", "TASKS", "Pipeline", "pipeline", "pipeline_class"]
