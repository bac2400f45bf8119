"""LUKE (Yamada et al. 2020, arXiv:2010.01057) and mLUKE (Ri et al. 2021, arXiv:2110.08151): words and entities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertcore.checkpoint import NameRules
from bertcore.families import roberta
from bertcore.families.luke.adapter import INPUTS, WordAndEntityAdapter, WordAndEntityInput
from bertcore.families.luke.blocks import Entities, EntityAwareAttention, EntitySpec, WordAndEntityEmbeddings
from bertcore.heads import ClassifierSpec, LanguageModelHead, LanguageModelSpec
from bertcore.kernels.arrays import ArrayLike
from bertcore.models import losses
from bertcore.models.adapter import Encoded
from bertcore.models.auto import AutoModel, AutoModelForMaskedLM
from bertcore.models.entities import (
    AutoModelForEntityClassification,
    AutoModelForEntityPairClassification,
    AutoModelForEntitySpanClassification,
    rows_of,
)
from bertcore.models.inputs import like, refuse_where
from bertcore.models.outputs import EncoderOutput, LogitsOutput, ModelOutput
from bertcore.models.registry import POOLED_HEADS, HeadSpec, register
from bertcore.models.spec import ConfigReader
from bertcore.models.with_heads import ModelWithHeads
from bertcore.nn import functional
from bertcore.nn.layers import Linear, drop
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


@dataclass(eq=False, kw_only=True)
class EntityMaskedLMOutput(ModelOutput):
    """The output of LUKE's masked language model.

    Attributes:
        mlm_loss, mep_loss: the losses of words and of entities, scalars.
        logits: (sequences, length, vocabulary); zero at padding.
        entity_logits: (sequences, entities, vocabulary of entities), if there are entities.
    """

    mlm_loss: Tensor | None = None
    mep_loss: Tensor | None = None
    logits: Tensor | None = None
    entity_logits: Tensor | None = None


class EntityClassifier(Block):
    """A linear map of `parts` concatenated hidden states (Yamada et al. 2020, arXiv:2010.01057, section 4)."""

    def __init__(self, head_spec: ClassifierSpec, spec: EncoderSpec, num_labels: int, parts: int):
        sizes = {"in_features": parts * spec.hidden_size, "out_features": num_labels}
        self.dropout = head_spec.dropout
        self.output = Linear(head_spec.output, **sizes, bias="output" not in head_spec.without_bias)

    def __call__(self, run: Pass, *parts: Tensor) -> Tensor:
        """Map hidden states, (entities, hidden) each, to logits, (entities, num_labels)."""
        features = parts[0] if len(parts) == 1 else functional.concatenate(run, *parts, axis=1)
        return self.output(run, drop(run, features, self.dropout))


class WordAndEntityModel(AutoModel):
    """AutoModel of a family with entities.

    A call's EncoderOutput also has entity_last_hidden_state: (sequences, entities, hidden), zero at padding; None
    without entities.
    """

    def _output(self, encoded: Encoded) -> EncoderOutput:
        traced, states = dict(encoded.traced), None
        if isinstance(encoded.inputs, WordAndEntityInput):
            entities = encoded.inputs.entities
            states = entities.batch.pad(encoded.run, entities.hidden)
        of_entities = {"entity_last_hidden_state": states, "entity_hidden_states": traced.pop("entity_hidden_states")}
        return super()._output(replace(encoded, traced=traced | of_entities))


class WordAndEntityMaskedLM(AutoModelForMaskedLM):
    """AutoModelForMaskedLM of a family with entities: scores of all words at each word, of all entities at each entity.

    Calls take `labels`, as for AutoModelForMaskedLM, and `entity_labels`, the correct entities, (sequences, entities),
    -100 for no label, and return an EntityMaskedLMOutput. With `entity_sample`, distinct entities drawn uniformly,
    (n,), the loss of entities is estimated from the scores of these and of the labels, and there are no
    `entity_logits`.
    """

    tasks = ("masked_lm", "masked_entities")
    _targets = ("labels", "entity_labels", "entity_sample")

    def _head(self, task: str, spec: HeadSpec) -> Block:
        entities, table = self.spec.details, self.encoder.embeddings.entities.entities.table
        if task == "masked_lm":  # its decoder is not tied
            return LanguageModelHead(spec, replace(self.spec, tied_decoder=False), table)
        sizes = {"vocab_size": entities.vocab_size, "embedding_size": entities.embedding_size}
        return LanguageModelHead(spec, replace(self.spec, **sizes, pad_token_id=0), table)

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None, entity_labels: ArrayLike | None = None,
                entity_sample: ArrayLike | None = None) -> EntityMaskedLMOutput:  # fmt: skip
        of_words, run = super()._output(encoded, labels), encoded.run
        mlm_loss, mep_loss, logits = of_words.loss, None, None
        if isinstance(encoded.inputs, WordAndEntityInput) or entity_labels is not None:
            entities, head, count = _entities(encoded, self), self.heads[1], self.spec.details.vocab_size
            named: dict[str, Any] = {"name": "entity_labels", "kind": "entity_"}
            if entity_sample is None:
                scores = head(run, entities.hidden)
                logits = entities.batch.pad(run, scores)
                if entity_labels is not None:
                    mep_loss = losses.token_loss(run, scores, entity_labels, entities.batch, count, **named)
            elif entity_labels is None:
                raise ValueError("entity_sample is given without entity_labels, expected both")
            else:
                right = losses.words(entities.batch, entity_labels, count, **named)
                mep_loss = sampled_loss(run, head, entities.hidden, right, entity_sample, count)
        both = [loss for loss in (mlm_loss, mep_loss) if loss is not None]
        return EntityMaskedLMOutput(
            loss=losses.total(run, *both) if len(both) == 2 else both[0] if both else None,
            mlm_loss=mlm_loss,
            mep_loss=mep_loss,
            logits=vars(of_words)["logits"],  # not computed here if they are computed when read
            entity_logits=logits,
            traced=encoded.traced,
        )


NEVER = -1e4  # a logit whose exponential is zero


def sampled_loss(
    run: Pass, head: LanguageModelHead, hidden: Tensor, labels: np.ndarray, sample: ArrayLike, num_classes: int
) -> Tensor:
    """Return the mean cross entropy over the entities with a label, estimated from the logits of a sample.

    The sum of exp(logit) over all other classes is estimated by the sum over the sample, times the number of all
    classes divided by the sample's: importance sampling (Bengio and Senecal 2008, "Adaptive importance sampling to
    accelerate training of a neural probabilistic language model"; Jean et al. 2015, arXiv:1412.2007). The factor is
    added to each logit as -log Q, where Q is the probability that the sample has the class, as in Yi et al. 2019,
    "Sampling-bias-corrected neural modeling for large corpus item recommendations". With all classes as the sample the
    loss is exact.

    `hidden` are states, (entities, hidden); `labels` in host memory, (entities,), -100 for no label; `sample` distinct
    classes, drawn uniformly, (sample,).
    """
    sample = losses.label_array("entity_sample", sample)
    if sample.ndim != 1 or sample.dtype.kind not in "iu" or not 0 < len(np.unique(sample)) == len(sample):
        raise ValueError(f"entity_sample is {sample.dtype} of shape {sample.shape}, expected distinct integers, (n,)")
    if sample.min() < 0 or sample.max() >= num_classes:
        raise ValueError(f"entity_sample has {sample.min()} to {sample.max()}, expected 0 to {num_classes - 1}")
    rows = np.flatnonzero(labels != losses.IGNORED)
    classes = np.concatenate([sample, np.setdiff1d(labels[rows], sample)])
    order = np.argsort(classes)
    targets = order[np.searchsorted(classes, labels[rows], sorter=order)]
    terms = np.full((len(rows), len(classes)), NEVER)
    terms[:, : len(sample)] = np.log(num_classes / len(sample))
    terms[np.arange(len(rows)), targets] = 0  # the correct class counts exactly
    chosen = functional.take_rows(run, hidden, rows=run.to_backend(rows))
    logits = head.among(run, chosen, run.to_backend(classes))
    terms = run.to_backend(terms.astype(value_of(logits).dtype))
    return functional.cross_entropy(run, functional.add(run, logits, terms), labels=run.to_backend(targets))


class LukeForEntityClassification(AutoModelForEntityClassification):
    """LUKE's AutoModelForEntityClassification, which classifies the first entity of each sequence."""

    tasks = ("entity_classification",)
    _targets = ("labels",)

    def _head(self, task: str, spec: HeadSpec) -> Block:
        return EntityClassifier(spec, self.spec, self.config.num_labels, len(self._parts))

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None) -> LogitsOutput:
        """Classify the first entities of each sequence together, as many as there are `_parts`."""
        entities, run, count = _entities(encoded, self), encoded.run, len(self._parts)
        is_real = entities.batch.is_real[:, :count]
        if is_real.shape[1] < count:
            raise ValueError(f"entity_ids has shape {entities.batch.shape}, expected at least {count} entities")
        expected = f"1: {type(self).__name__} classifies the first {count} entities of a sequence"
        refuse_where(~is_real, "entity_attention_mask", is_real.astype(int), expected)
        rows = entities.batch.rows()[:, :count].T.copy()  # of the first, second, ... entity of each sequence
        parts = (functional.take_rows(run, entities.hidden, rows=run.to_backend(each)) for each in rows)
        return self._classified(encoded, self.heads[0](run, *parts), labels)


class LukeForEntityPairClassification(LukeForEntityClassification, AutoModelForEntityPairClassification):
    """LUKE's AutoModelForEntityPairClassification, which classifies the first two entities of each sequence."""

    tasks = ("entity_pair_classification",)


class LukeForEntitySpanClassification(AutoModelForEntitySpanClassification):
    """LUKE's AutoModelForEntitySpanClassification: classifies entities by their states and their first and last words.

    As in transformers, the mean binary cross entropy covers all columns, including padding.
    """

    tasks = ("entity_span_classification",)

    def _head(self, task: str, spec: HeadSpec) -> Block:
        return EntityClassifier(spec, self.spec, self.config.num_labels, 3)

    def _keeps_padding(self, targets: Mapping[str, Any]) -> bool:
        labels = targets.get("labels")
        return labels is not None and losses.label_array("labels", labels).ndim == 3

    def _output(self, encoded: Encoded, labels: ArrayLike | None = None,
                entity_start_positions: ArrayLike | None = None,
                entity_end_positions: ArrayLike | None = None) -> LogitsOutput:  # fmt: skip
        entities, run = _entities(encoded, self), encoded.run
        ends = {"entity_start_positions": entity_start_positions, "entity_end_positions": entity_end_positions}
        parts = []
        for name, columns in ends.items():
            if columns is None:
                raise ValueError(f"{name} is None, expected columns of the entities' tokens, {entities.batch.shape}")
            columns = like("entity_ids", entities.batch.stays, name, columns)
            rows = run.to_backend(rows_of(encoded, entities.batch, name, columns))
            parts.append(functional.take_rows(run, encoded.hidden, rows=rows))
        logits, loss = self.heads[0](run, *parts, entities.hidden), None
        if labels is not None:
            loss = self._loss(run, logits, labels, entities)
        return LogitsOutput(loss=loss, logits=entities.batch.pad(run, logits), traced=encoded.traced)

    def _loss(self, run: Pass, logits: Tensor, labels: ArrayLike, entities: Entities) -> Tensor:
        flags, batch = losses.label_array("labels", labels), entities.batch
        if flags.ndim != 3:
            return losses.token_loss(run, logits, labels, batch, self.config.num_labels, kind="entity_")
        if flags.shape != (*batch.shape, self.config.num_labels):
            raise ValueError(f"labels has shape {flags.shape}, expected {(*batch.shape, self.config.num_labels)}")
        return losses.binary_loss(run, logits, batch.strip(flags))


def _entities(encoded: Encoded, model: ModelWithHeads) -> Entities:
    if not isinstance(encoded.inputs, WordAndEntityInput):
        raise ValueError(f"entity_ids is None, expected the entities that {type(model).__name__} needs here")
    return encoded.inputs.entities


def spec(config: Mapping[str, Any]) -> EncoderSpec:
    read = ConfigReader(config)
    entities = EntitySpec(
        vocab_size=read.size("entity_vocab_size", 500000),
        embedding_size=read.size("entity_emb_size", 256),
        aware_attention=read.flag("use_entity_aware_attention", True),
    )
    return roberta.spec(config, vocab_size=50267, details=entities)


def heads(read: ConfigReader) -> Mapping[str, HeadSpec]:
    """Return the heads of a LUKE config.

    As in transformers 5, the words' decoder never shares the word embeddings: tie_word_embeddings ties the entities'
    decoder to their table.
    """
    bias, transform = "entity_predictions.bias", "entity_predictions.transform"
    entities = LanguageModelSpec(
        decoder="entity_predictions.decoder",
        tied_bias=bias,
        transform=f"{transform}.dense",
        transform_norm=f"{transform}.LayerNorm",
        activation=read.activation("hidden_act", "gelu"),
        untied_bias=bias,
    )
    classifier = ClassifierSpec("classifier", "entities", dropout=read.rate("hidden_dropout_prob", 0.1))
    return POOLED_HEADS | {
        "masked_lm": roberta.heads(read)["masked_lm"],
        "masked_entities": entities,
        "entity_classification": classifier,
        "entity_pair_classification": replace(classifier, without_bias=frozenset({"output"})),
        "entity_span_classification": classifier,
    }


ENTITIES = "entity_embeddings"

LUKE = register(
    replace(
        roberta.ROBERTA,
        model_type="luke",
        architecture="Luke",
        spec_from_config=spec,
        heads=heads,
        name_rules=NameRules(
            prefix="luke.",
            heads=("pooler.", "lm_head.", "entity_predictions.", "classifier.", "qa_outputs."),
            tied=(
                ("lm_head.decoder.bias", "lm_head.bias"),
                ("entity_predictions.decoder.weight", f"{ENTITIES}.entity_embeddings.weight"),
            ),
            untied=(("lm_head.decoder.weight", "embeddings.word_embeddings.weight"),),
        ),
        encoder_names=roberta.ROBERTA.encoder_names
        | {
            "entity_embeddings": f"{ENTITIES}.entity_embeddings",
            "entity_projection": f"{ENTITIES}.entity_embedding_dense",
            "entity_position_embeddings": f"{ENTITIES}.position_embeddings",
            "entity_type_embeddings": f"{ENTITIES}.token_type_embeddings",
            "entity_embeddings_norm": f"{ENTITIES}.LayerNorm",
        },
        layer_names=roberta.ROBERTA.layer_names
        | {
            "word_to_entity_query": "encoder.layer.{layer}.attention.self.w2e_query",
            "entity_to_word_query": "encoder.layer.{layer}.attention.self.e2w_query",
            "entity_to_entity_query": "encoder.layer.{layer}.attention.self.e2e_query",
        },
        attention=EntityAwareAttention,
        adapter=WordAndEntityAdapter,
        embeddings=WordAndEntityEmbeddings,
        inputs=INPUTS,
        models={
            "AutoModel": WordAndEntityModel,
            "AutoModelForMaskedLM": WordAndEntityMaskedLM,
            "AutoModelForEntityClassification": LukeForEntityClassification,
            "AutoModelForEntityPairClassification": LukeForEntityPairClassification,
            "AutoModelForEntitySpanClassification": LukeForEntitySpanClassification,
        },
    )
)
