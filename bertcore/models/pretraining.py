"""Models with the heads that a family was pretrained with, including the span boundary objective's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from bertcore import checkpoint
from bertcore.heads import SpanBoundaryHead, find_boundaries
from bertcore.kernels.arrays import ArrayLike
from bertcore.models import losses
from bertcore.models.adapter import Encoded
from bertcore.models.auto import AutoModelForCausalLM, AutoModelForMaskedLM
from bertcore.models.model import Model
from bertcore.models.outputs import LogitsOutput, PreTrainingOutput, SpanBoundaryOutput
from bertcore.models.registry import HeadSpec
from bertcore.models.with_heads import ModelWithHeads, head_specs
from bertcore.nn import functional
from bertcore.nn.parameter import Block
from bertcore.presets import PRESETS, Preset, preset
from bertcore.tape import Tensor

HUB_OPTIONS = ("revision", "token", "cache_dir", "local_files_only")


class AutoModelForPreTraining(ModelWithHeads[Any]):
    """An encoder with the heads that it was pretrained with.

    If the only head is a language model's, the class is AutoModelForMaskedLM or AutoModelForCausalLM.

    BERT and MobileBERT: the masked language model and next sentence prediction; calls take `labels` and
    `next_sentence_label`, (sequences,) of 0 (is next) or 1. ALBERT: the masked language model and sentence order;
    `labels` and `sentence_order_label`. Both return a PreTrainingOutput, with a loss if both labels are given. ELECTRA,
    presets of other families that detect replaced tokens (DeBERTa-v3, CodeBERT) and checkpoints with that head: the
    Discriminator; calls take `labels`, 1 for replaced tokens and 0 for others, (sequences, length), and return a
    LogitsOutput. SpanBERT's preset: AutoModelForSpanBoundary.

    Raises ValueError for a preset, or its id on the hub, that was pretrained with other heads (distilled models).
    """

    _architecture = "ForPreTraining"

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], **options: Any) -> Model[Any]:
        kind = cls
        if cls is AutoModelForPreTraining:
            is_id = isinstance(folder, str) and not os.path.lexists(folder)
            known = next((known for known in PRESETS.values() if is_id and known.hub_id == folder), None)
            if known is None:
                hub = {name: options.pop(name) for name in HUB_OPTIONS if name in options}
                folder = checkpoint.resolve(folder, **hub)
            if _has_boundaries(known):
                return AutoModelForSpanBoundary.from_pretrained(folder, **options)
            kind = Discriminator if _has_discriminator(known, folder) else cls._checked(known)
        return super(AutoModelForPreTraining, kind).from_pretrained(folder, **options)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str, **options: Any) -> Model[Any]:
        known = preset(config) if isinstance(config, str) and cls is AutoModelForPreTraining else None
        if _has_boundaries(known):
            return AutoModelForSpanBoundary.from_config(config, **options)
        kind = Discriminator if known and "replaced_tokens" in known.pretraining_heads else cls._checked(known)
        return super(AutoModelForPreTraining, kind).from_config(config, **options)

    @classmethod
    def _checked(cls, known: Preset | None) -> type[Self]:
        """Return this class. Raises ValueError if a preset was pretrained with other heads."""
        if known is None:
            return cls
        built = cls.class_for_config(known.config).tasks
        here = [task for task in built if task in head_specs(known.config)]
        if set(here) != set(known.pretraining_heads):
            other = "AutoModelForMaskedLM, or AutoModel" if "masked_lm" in here else "AutoModel"
            raise ValueError(
                f"{known.name} was pretrained with {known.objective} (the heads {', '.join(known.pretraining_heads)}); "
                f"bertcore has {', '.join(here) or 'none'} for its family: use {other}"
            )
        return cls

    @classmethod
    def class_for_config(cls, config: Mapping[str, Any]) -> type[Model]:
        own = super().class_for_config(config)
        if own is not AutoModelForPreTraining:  # the family's own class, or one below
            return own
        specs = head_specs(config)
        if "next_sentence" in specs:
            return _NextSentencePreTraining
        if "sentence_order" in specs:
            return _SentenceOrderPreTraining
        return (AutoModelForMaskedLM if "masked_lm" in specs else AutoModelForCausalLM).class_for_config(config)


def _has_discriminator(known: Preset | None, folder: str | os.PathLike[str]) -> bool:
    """Return whether a preset, or the checkpoint in a folder, is a discriminator."""
    if known is not None:
        return "replaced_tokens" in known.pretraining_heads
    with checkpoint.naming_config(folder):
        head = head_specs(checkpoint.read_config(folder)).get("replaced_tokens")
    return head is not None and f"{head.output}.weight" in checkpoint.open_checkpoint(folder)


def _has_boundaries(known: Preset | None) -> bool:
    """Return whether a preset was pretrained with the span boundary objective."""
    return known is not None and "span_boundary" in known.pretraining_heads


class _PairPreTraining(AutoModelForPreTraining):
    """The masked language model beside a classifier of pairs."""

    _label, _logits = "", ""

    def _head(self, task: str, spec: HeadSpec) -> Block:
        return self._language_model(spec) if task == "masked_lm" else super()._head(task, spec)

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None, **pair_labels: Any) -> PreTrainingOutput:
        words, pairs = self.heads[0], self.heads[1](encoded)
        loss, pair_label = None, pair_labels.get(self._label)
        if labels is not None:
            labels = losses.words(encoded.packed, labels, self.spec.vocab_size)
        words_loss, predictions = self._words(words, encoded, None if pair_label is None else labels)
        if words_loss is not None:
            pairs_loss = losses.sequence_loss(encoded.run, pairs, pair_label, self._num_classes(), name=self._label)
            loss = losses.total(encoded.run, words_loss, pairs_loss)
        logits = {self._logits: encoded.packed.pad_sequences(encoded.run, pairs)}
        return PreTrainingOutput(loss=loss, prediction_logits=predictions, traced=encoded.traced, **logits)


class _NextSentencePreTraining(_PairPreTraining):
    tasks = ("masked_lm", "next_sentence")
    _targets = ("labels", "next_sentence_label")
    _label, _logits = "next_sentence_label", "seq_relationship_logits"

    def _num_classes(self) -> int:
        return 2


class _SentenceOrderPreTraining(_PairPreTraining):
    tasks = ("masked_lm", "sentence_order")
    _targets = ("labels", "sentence_order_label")
    _label, _logits = "sentence_order_label", "sop_logits"  # as in transformers, num_labels scores for two orders


class Discriminator(AutoModelForPreTraining):
    """An encoder with a head that detects replaced tokens (Clark et al. 2020, arXiv:2003.10555).

    Calls take `labels`, 1 for replaced tokens and 0 for others, (sequences, length), and return a LogitsOutput with
    logits (sequences, length).
    """

    tasks = ("replaced_tokens",)
    _targets = ("labels",)

    def _num_classes(self) -> int:
        return 1

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None) -> LogitsOutput:
        logits, loss = self.heads[0](encoded), None
        logits = functional.reshape(encoded.run, logits, shape=(-1,))
        if labels is not None:
            flags = losses.label_array("labels", labels)
            if flags.shape != encoded.packed.shape:
                raise ValueError(f"labels has shape {flags.shape}, expected {encoded.packed.shape} as input_ids has")
            loss = losses.binary_loss(encoded.run, logits, encoded.packed.strip(flags))
        return LogitsOutput(loss=loss, logits=encoded.packed.pad(encoded.run, logits), traced=encoded.traced)


class AutoModelForSpanBoundary(AutoModelForMaskedLM):
    """AutoModelForMaskedLM with a second head, which predicts masked spans from the two tokens around them.

    Source: SpanBERT (Joshi et al. 2020, arXiv:1907.10529).

    Calls take `labels`, like AutoModelForMaskedLM, and return a SpanBoundaryOutput. A span is a run of adjacent
    labelled tokens; the loss is the sum of both heads' means, or only the language model's if no labelled token has a
    boundary on both sides. Available for BERT, RoBERTa and families of the same architecture.

    Transformers loads a saved model as a masked language model, as it does not know the second head.
    """

    tasks = ("masked_lm", "span_boundary")

    def _head(self, task: str, spec: HeadSpec) -> Block:
        if task == "masked_lm":
            return super()._head(task, spec)
        return SpanBoundaryHead(spec, self.spec, self.encoder.embeddings.words.table)

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None) -> SpanBoundaryOutput:
        if labels is not None:
            labels = losses.words(encoded.packed, labels, self.spec.vocab_size)
        mlm_loss, logits = self._words(self.heads[0], encoded, labels)
        sbo_loss = None if labels is None else self._boundary_loss(encoded, labels)
        return SpanBoundaryOutput(
            loss=mlm_loss if sbo_loss is None else losses.total(encoded.run, mlm_loss, sbo_loss),
            mlm_loss=mlm_loss,
            sbo_loss=sbo_loss,
            logits=logits,
            traced=encoded.traced,
        )

    def count_boundaries(self, labels: np.ndarray, is_real: np.ndarray) -> float:
        """Return the number of labelled tokens, of (sequences, length), that the second head predicts."""
        cu_seqlens = np.concatenate([[0], np.cumsum(is_real.sum(axis=1))])
        return float(find_boundaries(labels[is_real], cu_seqlens, self.heads[1].most).rows.size)

    def _boundary_loss(self, encoded: Encoded, labels: np.ndarray) -> Tensor:
        """Return the mean cross entropy of the second head; None if there is nothing to predict."""
        head, run = self.heads[1], encoded.run
        found = find_boundaries(labels, encoded.packed.cu_seqlens, head.most)
        if not found.rows.size:
            return None
        rows, *beside = found
        scores = head(run, encoded.hidden, *map(run.to_backend, beside))
        return losses.cross_entropy(run, scores, run.to_backend(labels[rows]))
