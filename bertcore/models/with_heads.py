"""Models with heads: the base of the classes of all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count
from bertcore.heads import Classifier, LanguageModelHead
from bertcore.kernels.arrays import NativeArray
from bertcore.models import losses
from bertcore.models.adapter import Encoded
from bertcore.models.model import Model
from bertcore.models.outputs import Later, OutputT
from bertcore.models.registry import HeadSpec, family_of
from bertcore.models.spec import MOST_LABELS, ConfigReader
from bertcore.nn import functional
from bertcore.nn.parameter import Block
from bertcore.tape import Tensor, current_tape, value_of


def head_specs(config: Mapping[str, Any]) -> Mapping[str, HeadSpec]:
    """Return the heads of the family of `config`, by task."""
    return family_of(config).heads(ConfigReader(config))


def with_labels(config: Mapping[str, Any], num_labels: int | None) -> dict[str, Any]:
    """Return the config with this number of labels, named as in transformers; None leaves it unchanged."""
    family_of(config)  # raises for anything but a config
    if num_labels is None:
        return dict(config)
    count = check_count("num_labels", num_labels, most=MOST_LABELS)
    names = {str(index): f"LABEL_{index}" for index in range(count)}
    others = {key: value for key, value in config.items() if key != "num_labels"}
    return others | {"id2label": names, "label2id": {name: int(index) for index, name in names.items()}}


class ModelWithHeads(Model[OutputT]):
    """A model with the heads of the tasks in `tasks`."""

    tasks: tuple[str, ...] = ()

    def __init__(self, config: Mapping[str, Any]):
        specs = head_specs(config)
        missing = [task for task in self.tasks if task not in specs]
        if missing:
            raise ValueError(
                f"config: models of type {config.get('model_type')!r} have no head for {missing[0]}; "
                f"they have {', '.join(specs)}"
            )
        wanted = [specs[task] for task in self.tasks]
        super().__init__(config, add_pooling_layer=any(getattr(spec, "source", None) == "pooler" for spec in wanted))
        self.heads = [self._head(task, spec) for task, spec in zip(self.tasks, wanted, strict=True)]

    def _head(self, task: str, spec: HeadSpec) -> Block:
        return Classifier(spec, self.spec, self._num_classes())

    def _num_classes(self) -> int:
        return self.config.num_labels

    def _language_model(self, spec: HeadSpec) -> LanguageModelHead:
        return LanguageModelHead(spec, self.spec, self.encoder.embeddings.words.table)

    def _words(self, head: LanguageModelHead, encoded: Encoded, labels: np.ndarray | None) -> tuple[Any, Any]:
        """Return (loss, logits as users see them) of a language model's head; `labels` are packed on the host, or None.

        With labels, only labelled tokens are scored: vocabulary scores are most of a small model's work, and a seventh
        of the tokens have a label. The logits of all tokens are computed when they are read, with gradients if the tape
        is still recording.
        """
        if labels is None:
            return None, encoded.packed.pad(encoded.run, head(encoded.run, self._read(encoded)))
        loss = self._loss_of_words(head, encoded, labels)
        version, run = self.version, encoded.run

        def all_logits() -> Tensor:
            if self.version != version:
                raise RuntimeError("logits: the parameters have changed since; read them before the optimiser's step")
            if current_tape() is run.tape:
                return encoded.packed.pad(run, head(run, self._read(encoded)))
            read = replace(encoded, run=replace(run, tape=None), hidden=value_of(encoded.hidden))
            return encoded.packed.pad(read.run, head(read.run, self._read(read)))

        return loss, Later(all_logits)

    def _loss_of_words(self, head: LanguageModelHead, encoded: Encoded, labels: np.ndarray) -> Tensor:
        """Compute the loss; on a GPU in chunks if the scores of all labels would take much memory and are not kept."""
        run, rows = encoded.run, np.flatnonzero(labels != losses.IGNORED)
        is_on_host = kernels.array_module(value_of(encoded.hidden)) is np
        is_plain = run.trace.scores is None and run.class_options is None
        is_plain = is_plain and head.rest is None and head.decoder.adapter is None
        if not is_on_host and is_plain and len(rows) > functional.losses.CHUNK:
            read = self._read(encoded, run.to_backend(rows))
            return head.loss_in_chunks(run, read, run.to_backend(labels[rows]))
        scores, known = self._scores_of_labels(head, encoded, labels)
        if run.trace.scores is not None:
            run.trace.scores.append(scores)
        return losses.cross_entropy(run, scores, known)

    def _scores_of_labels(self, head: LanguageModelHead, encoded: Encoded, labels: np.ndarray) -> tuple[Any, Any]:
        """Return the scores of the labelled tokens, (labels, words), and their labels, in the backend's memory."""
        run, rows = encoded.run, np.flatnonzero(labels != losses.IGNORED)
        return head(run, self._read(encoded, run.to_backend(rows))), run.to_backend(labels[rows])

    def _read(self, encoded: Encoded, rows: NativeArray | None = None) -> Tensor:
        """Return the input of a language model's head, (tokens, hidden), of the tokens `rows` or of all."""
        return encoded.hidden if rows is None else functional.take_rows(encoded.run, encoded.hidden, rows=rows)
