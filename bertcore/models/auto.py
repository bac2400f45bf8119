"""The models that users load: an encoder of any family, with or without the head of a task.

Names, arguments and outputs follow transformers. All classes inherit `from_pretrained` and `from_config` from Model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertcore import checkpoint
from bertcore.kernels import checks
from bertcore.kernels.arrays import ArrayLike
from bertcore.models import losses
from bertcore.models.adapter import Encoded
from bertcore.models.generation import generate
from bertcore.models.model import Model
from bertcore.models.outputs import EncoderOutput, LogitsOutput, QuestionAnsweringOutput
from bertcore.models.registry import HeadSpec
from bertcore.models.spec import Config, ConfigReader
from bertcore.models.with_heads import ModelWithHeads, head_specs, with_labels
from bertcore.nn import functional
from bertcore.nn.parameter import Block
from bertcore.passes import Pass, Trace
from bertcore.tape import Tensor


class AutoConfig:
    """Read a model's config without its weights; see `from_pretrained`."""

    @staticmethod
    def from_pretrained(name: str | os.PathLike[str], **hub: Any) -> Config:
        """Return the config of the model in a folder, of a preset, or of an id on the Hugging Face hub.

        A preset's name means the preset unless a folder of that name exists or a hub option (revision, token,
        cache_dir, local_files_only) is given. Errors are the same as for `AutoModel.from_pretrained`.
        """
        from bertcore.presets import PRESETS, preset_config

        if name in PRESETS and not hub and not os.path.exists(name):
            return Config(preset_config(str(name)))
        folder = checkpoint.resolve(name, "tokenizer", **hub)
        return Config(checkpoint.split_dtype(folder, checkpoint.read_config(folder))[0])


class AutoModel(Model[EncoderOutput]):
    """An encoder without a head: hidden states and, with add_pooling_layer, one vector per text.

    Calls return an EncoderOutput.
    """

    _architecture = "Model"
    _has_head = False

    def __init__(self, config: Mapping[str, Any], *, add_pooling_layer: bool = True):
        super().__init__(config, add_pooling_layer=add_pooling_layer)

    def _output(self, encoded: Encoded) -> EncoderOutput:
        pooled = None if encoded.pooler is None else encoded.packed.pad_sequences(encoded.run, encoded.pooled)
        hidden = encoded.packed.pad(encoded.run, encoded.hidden)
        return EncoderOutput(last_hidden_state=hidden, pooler_output=pooled, traced=encoded.traced)


class _WordsModel(ModelWithHeads[LogitsOutput]):
    """A model that scores words."""

    _targets = ("labels",)

    def _head(self, task: str, spec: HeadSpec) -> Block:
        return self._language_model(spec)

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None) -> LogitsOutput:
        if labels is not None:
            of_tokens = losses.next_words if self.predicts_next_words else losses.words
            labels = of_tokens(encoded.packed, labels, self.spec.vocab_size)
        loss, logits = self._words(self.heads[0], encoded, labels)
        return LogitsOutput(loss=loss, logits=logits, traced=encoded.traced)


class AutoModelForMaskedLM(_WordsModel):
    """An encoder with a masked language modeling head: a score for every word of the vocabulary at every token.

    Calls take `labels`, the correct token ids, (sequences, length), -100 where there is no label, and return a
    LogitsOutput.
    """

    _architecture = "ForMaskedLM"
    tasks = ("masked_lm",)

    def label_scores(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        position_ids: ArrayLike | None = None,
        *,
        labels: ArrayLike,
    ) -> tuple[Any, Any]:
        """Return the scores of the labelled tokens, (labels, words), and their labels, in the order of the batch.

        The loss is computed from them (under a tape the scores are a Variable). Arguments and errors are those of a
        call.
        """

        def read(encoded: Encoded) -> tuple[Any, Any]:
            packed = losses.words(encoded.packed, labels, self.spec.vocab_size)
            return self._scores_of_labels(self.heads[0], encoded, packed)

        return self._pass(input_ids, attention_mask, token_type_ids, position_ids, read=read, trace=Trace())


class _SequenceModel(ModelWithHeads[LogitsOutput]):
    """A model that classifies whole sequences."""

    _targets = ("labels",)

    def _output(self, encoded: Encoded, **targets: ArrayLike | None) -> LogitsOutput:
        logits, loss = self.heads[0](encoded), None
        given = {name: value for name, value in targets.items() if value is not None}
        if given:
            _check_tokens(encoded)
            ((name, labels),) = given.items()
            loss = self._loss(encoded.run, logits, labels, name)
        return LogitsOutput(loss=loss, logits=encoded.packed.pad_sequences(encoded.run, logits), traced=encoded.traced)

    def _loss(self, run: Pass, logits: Tensor, labels: ArrayLike, name: str) -> Tensor:
        return losses.sequence_loss(run, logits, labels, self._num_classes(), name=name)


class AutoModelForNextSentencePrediction(_SequenceModel):
    """An encoder with BERT's next sentence prediction head: scores for "is next" and "is not next", (sequences, 2).

    Calls take `labels`, (sequences,) of 0 (it is the next one) or 1, and return a LogitsOutput.
    """

    _architecture = "ForNextSentencePrediction"
    tasks = ("next_sentence",)

    def _num_classes(self) -> int:
        return 2


class AutoModelForSequenceClassification(_SequenceModel):
    """An encoder with a sequence classification head: scores, (sequences, num_labels).

    The options `num_labels` and `problem_type` override the config, to start a new task.

    Calls take `labels`, whose form depends on the config's problem_type (`losses.classification_loss`), and return a
    LogitsOutput.
    """

    _architecture = "ForSequenceClassification"
    tasks = ("sequence_classification",)

    def __init__(self, config: Mapping[str, Any], *, num_labels: int | None = None, problem_type: str | None = None):
        if problem_type is not None:
            checks.choice("problem_type", problem_type, losses.PROBLEM_TYPES)
        task = {} if problem_type is None else {"problem_type": problem_type}
        super().__init__(with_labels(config, num_labels) | task)

    def _loss(self, run: Pass, logits: Tensor, labels: ArrayLike, name: str) -> Tensor:
        kind = {"problem_type": self.config.get("problem_type"), "soft_labels": self.family.soft_labels}
        return losses.classification_loss(run, logits, labels, self.config.num_labels, **kind)


class AutoModelForMultipleChoice(_SequenceModel):
    """An encoder with a multiple choice head: one score for each candidate text.

    Calls take ids and masks of (questions, choices, length), and `labels`, the correct choice of each question,
    (questions,); they return a LogitsOutput with logits (questions, choices). Hidden states and attentions cover all
    texts, (questions * choices, ...).
    """

    _architecture = "ForMultipleChoice"
    tasks = ("multiple_choice",)
    _targets = ("labels", "num_choices")

    def _num_classes(self) -> int:
        return 1

    def __call__(self, input_ids: ArrayLike, attention_mask: ArrayLike | None = None,
                 token_type_ids: ArrayLike | None = None, position_ids: ArrayLike | None = None,
                 *, labels: ArrayLike | None = None, **options: Any) -> LogitsOutput:  # fmt: skip
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        own = [name for name in self.family.inputs if name in options and name not in self.family.batch_inputs]
        inputs |= {"position_ids": position_ids} | {name: options.pop(name) for name in own}
        flat, choices = _flat_choices(inputs)
        return super().__call__(**flat, labels=labels, num_choices=choices, **options)

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None, num_choices: int = 1) -> LogitsOutput:
        run = encoded.run
        logits, loss = self.heads[0](encoded), None
        if labels is not None:
            _check_tokens(encoded)
            scores = functional.reshape(run, logits, shape=(-1, num_choices))
            loss = losses.sequence_loss(run, scores, labels, num_choices)
        logits = functional.reshape(run, encoded.packed.pad_sequences(encoded.run, logits), shape=(-1, num_choices))
        return LogitsOutput(loss=loss, logits=logits, traced=encoded.traced)


class AutoModelForTokenClassification(ModelWithHeads[LogitsOutput]):
    """An encoder with a token classification head: scores, (sequences, length, num_labels).

    The option `num_labels` overrides the config, to start a new task.

    Calls take `labels`, a class for each token, (sequences, length), -100 where there is no label, and return a
    LogitsOutput.
    """

    _architecture = "ForTokenClassification"
    tasks = ("token_classification",)
    _targets = ("labels",)

    def __init__(self, config: Mapping[str, Any], *, num_labels: int | None = None):
        super().__init__(with_labels(config, num_labels))

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None) -> LogitsOutput:
        logits, loss = self.heads[0](encoded), None
        if labels is not None:
            loss = losses.token_loss(encoded.run, logits, labels, encoded.packed, self.config.num_labels)
        return LogitsOutput(loss=loss, logits=encoded.packed.pad(encoded.run, logits), traced=encoded.traced)


class AutoModelForQuestionAnswering(ModelWithHeads[QuestionAnsweringOutput]):
    """An encoder with a question answering head: scores for the start and the end of the answer.

    Calls take `start_positions` and `end_positions`, the columns of the answer's first and last token, (sequences,);
    positions at or beyond the length of the batch are ignored, as for an answer that was truncated. They return a
    QuestionAnsweringOutput. As in transformers, the loss covers all columns, including padding.
    """

    _architecture = "ForQuestionAnswering"
    tasks = ("question_answering",)
    _targets = ("start_positions", "end_positions")

    def __init__(self, config: Mapping[str, Any]):
        # The config of another task may have other labels; transformers would then make as many scores.
        config = with_labels(config, None)
        super().__init__(config if ConfigReader(config).num_labels() == 2 else with_labels(config, 2))

    def _num_classes(self) -> int:
        return 2

    def _keeps_padding(self, targets: Mapping[str, Any]) -> bool:
        return any(target is not None for target in targets.values())

    def _output(
        self, encoded: Encoded, start_positions: ArrayLike | None = None, end_positions: ArrayLike | None = None
    ) -> QuestionAnsweringOutput:
        logits, loss, run = self.heads[0](encoded), None, encoded.run
        if start_positions is not None and end_positions is not None:
            named = {"start_positions": start_positions, "end_positions": end_positions}
            start, end = (
                losses.position_loss(run, logits, column, positions, name, encoded.packed.shape)
                for column, (name, positions) in enumerate(named.items())
            )
            loss = functional.scale(run, functional.add(run, start, end), factor=0.5)
        columns = (functional.slice_columns(run, logits, first=column, last=column + 1) for column in (0, 1))
        start, end = (
            encoded.packed.pad(encoded.run, functional.reshape(run, column, shape=(-1,))) for column in columns
        )
        return QuestionAnsweringOutput(loss=loss, start_logits=start, end_logits=end, traced=encoded.traced)


class AutoModelForCausalLM(_WordsModel):
    """A causal language model: scores for the next word at every token (or at XLNet's target_mapping).

    Calls take `labels` and return a LogitsOutput: for GPT-2 the words themselves, (sequences, length), each compared
    with the previous token's scores; for XLNet the words at the predicted positions; -100 for no label.
    """

    _architecture = "LMHeadModel"
    tasks = ("causal_lm",)
    generate = generate

    @property
    def predicts_next_words(self) -> bool:
        return head_specs(self.config)["causal_lm"].predicts_next


def _check_tokens(encoded: Encoded) -> None:
    if not encoded.packed.has_tokens.all():
        index = encoded.packed.has_tokens.argmin()
        raise ValueError(f"input_ids[{index}] has no real token, so there is no score to compare its label with")


def _flat_choices(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the inputs with questions and choices on one axis, and the number of choices."""
    flat, first = {}, None
    for name, value in inputs.items():
        if value is None:
            continue
        try:
            array = value if hasattr(value, "shape") else np.asarray(value)
        except ValueError as error:  # lists of different lengths
            raise ValueError(f"{name} is ragged, expected (questions, choices, length): {error}") from error
        if array.ndim < 3:
            raise ValueError(f"{name} has shape {array.shape}, expected (questions, choices, length)")
        first = array.shape[:2] if first is None else first
        if array.shape[:2] != first:
            raise ValueError(f"{name} has shape {array.shape}, expected {first} questions and choices as input_ids has")
        flat[name] = array.reshape(first[0] * first[1], *array.shape[2:])
    if first is None:
        raise TypeError("input_ids is None, expected (questions, choices, length): lists or an array")
    return flat, first[1]
