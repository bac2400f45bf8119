"""Terms of distillation: comparisons of a student's outputs with a teacher's, which `Distillation` weights and adds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from bertcore.arguments import check_count, check_number
from bertcore.gradients import TrainedModel
from bertcore.kernels import checks
from bertcore.models.model import Model
from bertcore.models.outputs import ModelOutput
from bertcore.nn import functional
from bertcore.nn.layers import Linear
from bertcore.nn.spec import EncoderSpec, LayerSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of
from bertcore.training.objectives import similarity

Layers = str | Mapping[int, int]
PARTS = ("query", "key", "value")
TASKS_OF_TOKENS = {"masked_lm", "causal_lm", "token_classification"}  # with logits of tokens
PROJECTIONS = "output_projections"  # requested only for the compared layers
HIDDEN = -1e9  # added to scores of padding: its probability is 0


@dataclass
class Outputs:
    """The outputs of a student and its teacher for one batch."""

    run: Pass  # the pass
    student: ModelOutput  # its outputs, with gradients under a tape
    teacher: ModelOutput  # its outputs
    specs: tuple[EncoderSpec, EncoderSpec]  # of the student's encoder and of the teacher's
    is_real: np.ndarray  # which columns hold real tokens, (sequences, length) booleans
    labelled: tuple[Any, Any] | None = None  # scores of both for labelled tokens, (labels, words)

    @cached_property
    def cu_seqlens(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.is_real.sum(axis=1))])

    def tokens(self, name: str, padded: Tensor) -> Tensor:
        """Return the real tokens, (tokens, features), of an output (sequences, length, features)."""
        shape = value_of(padded).shape
        if shape[:2] != self.is_real.shape:
            raise ValueError(f"{name} has shape {shape}, expected the first axes of input_ids, {self.is_real.shape}")
        rows = functional.reshape(self.run, padded, shape=(shape[0] * shape[1], *shape[2:]))
        if self.is_real.all():
            return rows
        return functional.take_rows(self.run, rows, rows=self.run.to_backend(np.flatnonzero(self.is_real)))

    def states(self, layers: Mapping[int, int]) -> Iterator[tuple[Any, Any]]:
        """Yield (student's, teacher's) hidden states after these layers, (tokens, hidden) each."""
        for own, other in layers.items():
            student = self.tokens("hidden_states", self.student.hidden_states[own])
            yield student, _target(student, self.tokens("hidden_states", self.teacher.hidden_states[other]))

    def projections(self, layers: Mapping[int, int]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield (student's, teacher's) query, key and value of these layers by name, (tokens, width) each."""
        for own, other in layers.items():
            pairs = zip(self.student.projections[own - 1], self.teacher.projections[other - 1], strict=True)
            student, teacher = {}, {}
            for part, (of_student, of_teacher) in zip(PARTS, pairs, strict=True):
                student[part] = self.tokens(part, of_student)
                teacher[part] = _target(student[part], self.tokens(part, of_teacher))
            yield student, teacher

    def logits(self, labelled_only: bool) -> Iterator[tuple[Any, Any]]:
        """Yield (student's, teacher's) logits, (rows, classes).

        The rows are tokens, labelled tokens, or sequences; for spans, the classes are a sequence's columns, and
        padding has probability 0.
        """
        if labelled_only:
            student, teacher = self.labelled
            yield student, _target(student, teacher)
            return
        names = [name for name in self.student if name.endswith("logits")]
        if not names:
            raise ValueError("SoftTargets needs logits, but the student has no head")
        for name in names:
            if name not in self.teacher:
                raise ValueError(f"SoftTargets needs the teacher's {name}, but it has {', '.join(self.teacher.keys())}")
            student, teacher = (self._rows(name, getattr(out, name)) for out in (self.student, self.teacher))
            shape = value_of(student).shape
            if shape != teacher.shape or shape[1] < 2:
                expected = "(rows, classes), expected the same shape and at least two classes"
                raise ValueError(f"SoftTargets: {name} of both are {shape} and {teacher.shape}, {expected}")
            yield student, _target(student, teacher)

    def _rows(self, name: str, logits: Tensor) -> Tensor:
        if name in ("start_logits", "end_logits"):
            hidden = np.where(self.is_real, 0, HIDDEN).astype(value_of(logits).dtype)
            return functional.add(self.run, logits, self.run.to_backend(hidden))
        return self.tokens(name, logits) if value_of(logits).ndim == 3 else logits


def _target(student: Tensor, teacher: Tensor) -> Tensor:
    return teacher.astype(value_of(student).dtype, copy=False)


@dataclass(frozen=True, kw_only=True)
class Term:
    """One comparison of student and teacher.

    Layers are numbered from 1; 0 is the embeddings, among hidden states. `layers` is "last", each model's last one;
    "even", all of the student's and as many of the teacher's, evenly spaced up to the last one; or a mapping of the
    student's layers to the teacher's.

    Attributes:
        weight: the factor on the term.
        needs: the options of a model's call whose outputs are compared.
    """

    weight: float = 1.0
    needs: ClassVar[tuple[str, ...]] = ()
    first_layer: ClassVar[int] = 1
    labelled_only = False

    def __post_init__(self) -> None:
        check_number(f"weight of {type(self).__name__}", self.weight)

    def check(self, student: TrainedModel, teacher: Model) -> None:
        """Raise ValueError if these models cannot be compared."""

    def is_of_texts(self, teacher: Model) -> bool:
        """Return whether the loss is a mean over texts rather than tokens."""
        return False

    def compared(self, student: TrainedModel, teacher: Model) -> Iterator[list[tuple[str, Any, LayerSpec]]]:
        """Yield (whose, model, layer) of the student's and the teacher's compared layers."""
        models = (("student", student), ("teacher", teacher))
        for pair in self.pairs(student.spec, teacher.spec).items():
            yield [(*each, each[1].spec.layers[layer - 1]) for each, layer in zip(models, pair, strict=True)]

    def maps(self, name: str, student: EncoderSpec, teacher: EncoderSpec) -> list[Linear]:
        """Return the term's own linear layers, uninitialised; their parameters' names begin with `name`."""
        return []

    def loss(self, outputs: Outputs, maps: Sequence[Linear]) -> Tensor:
        """Return the term's loss, before its weight: by default the sum of `_losses`."""
        return functools.reduce(functools.partial(functional.add, outputs.run), self._losses(outputs, maps))

    def _losses(self, outputs: Outputs, maps: Sequence[Linear]) -> Iterator[Tensor]:
        """Yield the losses of layers or logits, 0-d arrays, at least one."""
        raise NotImplementedError(f"{type(self).__name__} does not define its loss")

    def pairs(self, student: EncoderSpec, teacher: EncoderSpec) -> dict[int, int]:
        """Return the compared layers: {student's: teacher's}."""
        layers, own, other = self.layers, student.num_layers, teacher.num_layers  # type: ignore[attr-defined]
        if layers == "last":
            return {own: other}
        if layers == "even":
            return {layer: -(-layer * other // own) for layer in range(self.first_layer, own + 1)}
        if not isinstance(layers, Mapping) or not layers:
            raise ValueError(f"layers is {layers!r}, expected 'last', 'even' or a mapping of layers")
        for whose, numbers, most in (("student", layers, own), ("teacher", layers.values(), other)):
            wrong = [number for number in numbers if number not in range(self.first_layer, most + 1)]
            if wrong:
                raise ValueError(f"layers has {wrong[0]!r} of the {whose}, expected {self.first_layer} to {most}")
        return dict(layers)


@dataclass(frozen=True, kw_only=True)
class SoftTargets(Term):
    """The teacher's probabilities at a temperature: T^2 * KL(teacher || student), the mean over rows of logits.

    Source: Hinton et al. 2015, arXiv:1503.02531; over all real tokens: Sanh et al. 2019, arXiv:1910.01108. The rows of
    a language model are tokens; the rows of a text classifier are texts. For question answering they are texts, once
    for the start and once for the end, and the classes are their columns.

    Attributes:
        temperature: T.
        labelled_only: compare only a language model's labelled tokens, such as masked ones. The paper compares
            all tokens, whose scores are most of the work of a small model.
    """

    temperature: float = 2.0
    labelled_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("temperature", self.temperature, above_zero=True)
        checks.boolean("labelled_only", self.labelled_only)

    def check(self, student: TrainedModel, teacher: Model) -> None:
        for whose, model in (("student", student), ("teacher", teacher)):
            kind = model.config.get("problem_type")
            if kind in ("regression", "multi_label_classification"):
                raise ValueError(f"SoftTargets needs classes that exclude each other, but the {whose} is for {kind}")
            if "replaced_tokens" in getattr(model, "tasks", ()):
                raise ValueError(f"SoftTargets needs classes, but the {whose} detects replaced tokens")
            if self.labelled_only and getattr(model, "tasks", ()) not in (("masked_lm",), ("causal_lm",)):
                kind = type(model).__name__
                raise ValueError(f"labelled_only needs masked or causal language models, but the {whose} is {kind}")

    def is_of_texts(self, teacher: Model) -> bool:
        return not TASKS_OF_TOKENS.intersection(getattr(teacher, "tasks", ()))

    def _losses(self, outputs: Outputs, maps: Sequence[Linear]) -> Iterator[Tensor]:
        compare = similarity.soft_target_divergence
        for own, other in outputs.logits(self.labelled_only):
            yield compare(outputs.run, own, targets=other, temperature=self.temperature)


@dataclass(frozen=True, kw_only=True)
class HiddenCosine(Term):
    """The direction of hidden states: the mean over tokens of 1 - cosine, summed over the layers.

    Source: Sanh et al. 2019, section 2.
    """

    layers: Layers = "last"
    needs = ("output_hidden_states",)
    first_layer = 0

    def check(self, student: TrainedModel, teacher: Model) -> None:
        _check_widths(self, student, teacher)

    def _losses(self, outputs: Outputs, maps: Sequence[Linear]) -> Iterator[Tensor]:
        for own, other in outputs.states(self.pairs(*outputs.specs)):
            yield similarity.cosine_distance(outputs.run, own, targets=other)


@dataclass(frozen=True, kw_only=True)
class HiddenStates(Term):
    """Hidden states: the mean squared error over tokens and features, summed over the layers.

    With `projected`, linear layers without bias map the student's onto the teacher's width, one for the embeddings and
    one for all layers (TinyBERT: Jiao et al. 2019, arXiv:1909.10351, equations 8 and 9). Otherwise both are compared
    directly (the feature maps of MobileBERT: Sun et al. 2020, arXiv:2004.02984, section 3.4).
    """

    layers: Layers = "even"
    projected: bool = True
    needs = ("output_hidden_states",)
    first_layer = 0

    def check(self, student: TrainedModel, teacher: Model) -> None:
        if not self.projected:
            _check_widths(self, student, teacher)

    def maps(self, name: str, student: EncoderSpec, teacher: EncoderSpec) -> list[Linear]:
        if not self.projected:
            return []
        sizes = {"in_features": student.hidden_size, "out_features": teacher.hidden_size, "bias": False}
        return [Linear(f"{name}.{kind}", **sizes) for kind in self._kinds(self.pairs(student, teacher))]

    def _losses(self, outputs: Outputs, maps: Sequence[Linear]) -> Iterator[Tensor]:
        layers = self.pairs(*outputs.specs)
        by_kind = dict(zip(self._kinds(layers), maps, strict=True)) if self.projected else {}
        for layer, (own, other) in zip(layers, outputs.states(layers), strict=True):
            own = by_kind["hidden_states" if layer else "embeddings"](outputs.run, own) if self.projected else own
            yield functional.mean_squared_error(outputs.run, own, labels=other)

    def _kinds(self, layers: Mapping[int, int]) -> list[str]:
        return sorted({"hidden_states" if layer else "embeddings" for layer in layers})


class _Attention(Term):
    """Base of comparisons of attention scores by `compare`."""

    needs = (PROJECTIONS,)
    compare: ClassVar[Callable[..., Any]]

    def check(self, student: TrainedModel, teacher: Model) -> None:
        """Raise ValueError unless all tokens attend to all, by query and key alone, with equally many heads."""
        name = type(self).__name__
        for both in self.compared(student, teacher):
            for whose, model, layer in both:
                if model.spec.biases_scores or layer.is_causal or layer.window is not None:
                    problem = f"the {whose} needs attention to all tokens, from query and key alone"
                    raise ValueError(f"{name}: {problem}")
            own, other = ((it.num_heads, it.num_key_value_heads or it.num_heads) for *_, it in both)
            if len({*own, *other}) > 1:
                raise ValueError(f"{name}: heads of queries and of keys are {own} and {other}, expected equally many")

    def _losses(self, outputs: Outputs, maps: Sequence[Linear]) -> Iterator[Tensor]:
        layers = self.pairs(*outputs.specs)
        for pair, (own, other) in zip(layers.items(), outputs.projections(layers), strict=True):
            specs = [spec.layers[layer - 1] for spec, layer in zip(outputs.specs, pair, strict=True)]
            options = {"scales": tuple(spec.scale or spec.head_size**-0.5 for spec in specs), "compare": self.compare}
            options |= {"heads": specs[0].num_heads, "cu_seqlens": outputs.cu_seqlens}
            targets = other["query"], other["key"]
            yield similarity.relation_loss(outputs.run, own["query"], own["key"], targets=targets, **options)


@dataclass(frozen=True, kw_only=True)
class AttentionScores(_Attention):
    """Attention scores before the softmax: the mean squared error over heads, queries and keys, summed over the layers.

    Source: TinyBERT, Jiao et al. 2019, equation 7.
    """

    layers: Layers = "even"
    compare = staticmethod(similarity.squared_error_of_scores)


@dataclass(frozen=True, kw_only=True)
class AttentionDistributions(_Attention):
    """Attention probabilities: KL(teacher || student), the mean over heads and tokens, summed over the layers.

    The last layers are MiniLM's (Wang et al. 2020, arXiv:2002.10957, equation 4), "even" MobileBERT's.
    """

    layers: Layers = "last"
    compare = staticmethod(similarity.divergence_of_scores)


@dataclass(frozen=True, kw_only=True)
class Relations(Term):
    """Relations of queries, keys and values among themselves: softmax(A A^T / sqrt(width of a head)).

    The loss is the mean over heads and tokens of KL(teacher || student), summed over `of` and the layers (MiniLMv2:
    Wang et al. 2020, arXiv:2012.15828, section 3).

    Attributes:
        of: a tuple of some of "query", "key" and "value"; MiniLM uses ("value",) beside `AttentionDistributions`.
        heads: relation heads that the width is split into, so that models with different heads can be compared; by
            default the student's heads.
    """

    of: tuple[str, ...] = PARTS
    heads: int | None = None
    layers: Layers = "last"
    needs = (PROJECTIONS,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.of, tuple) or not self.of or not set(self.of) <= set(PARTS):
            raise ValueError(f"of is {self.of!r}, expected a tuple of some of {', '.join(PARTS)}")
        if self.heads is not None:
            check_count("heads", self.heads)

    def check(self, student: TrainedModel, teacher: Model) -> None:
        heads = self.heads or student.spec.num_heads
        for whose, _, layer in (each for both in self.compared(student, teacher) for each in both):
            for part in self.of:
                width = layer.attention_size if part == "query" else layer.key_value_size
                if width % heads:
                    raise ValueError(f"heads is {heads}, expected a divisor of the {whose}'s {width} ({part})")

    def _losses(self, outputs: Outputs, maps: Sequence[Linear]) -> Iterator[Tensor]:
        heads = self.heads or outputs.specs[0].num_heads
        options = {"heads": heads, "cu_seqlens": outputs.cu_seqlens, "compare": similarity.divergence_of_scores}
        for own, other in outputs.projections(self.pairs(*outputs.specs)):
            for part in self.of:
                rows, targets = own[part], (other[part], other[part])
                scales = tuple((heads / value_of(array).shape[1]) ** 0.5 for array in (rows, other[part]))
                yield similarity.relation_loss(outputs.run, rows, rows, targets=targets, scales=scales, **options)


def _check_widths(term: Term, student: TrainedModel, teacher: Model) -> None:
    own, other, name = student.spec.hidden_size, teacher.spec.hidden_size, type(term).__name__
    if own != other:
        raise ValueError(f"{name}: hidden states of the student have {own} features, expected the teacher's {other}")
