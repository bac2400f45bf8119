"""Distillation: a student learns from a teacher's outputs, with or without an objective of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertcore.arguments import check_number
from bertcore.gradients import TrainedModel
from bertcore.models.losses import total
from bertcore.models.model import Model
from bertcore.models.outputs import ModelOutput
from bertcore.nn import functional
from bertcore.nn.layers import Linear
from bertcore.nn.parameter import Parameter
from bertcore.passes import Pass, kept_losses, kept_scores, use_loss_factors
from bertcore.tape import unrecorded
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.objectives.distillation_terms import PROJECTIONS, Outputs, Term
from bertcore.training.objectives.language_modeling import MaskedLM
from bertcore.training.objectives.objective import TARGETS, Batch, Examples, Objective, Supervised, real_tokens
from bertcore.training.objectives.text_examples import Documents


class Distillation(Objective):
    """A student imitates its teacher: the weighted sum of the terms and of the student's own objective.

        teacher = AutoModelForSequenceClassification.from_pretrained(folder)
        objective = Distillation(teacher, SoftTargets(temperature=2), HiddenCosine(), objective=Supervised())

    The teacher runs in evaluation mode, without gradients. Both models share one tokenizer. The papers' choices:

    - DistilBERT: `SoftTargets(weight=5), HiddenCosine()` beside `MaskedLM()` of weight 2;
    - TinyBERT: `HiddenStates(), AttentionScores()`, then `SoftTargets(temperature=1)`;
    - MiniLM: `AttentionDistributions(), Relations(of=("value",))`; MiniLMv2: `Relations()`;
    - MobileBERT: `HiddenStates(projected=False), AttentionDistributions(layers="even")`, then `SoftTargets()`.

    Parameters of the terms (the linear layers of `HiddenStates`) are trained and kept in checkpoints with the student,
    but not saved with it.

    Args:
        teacher: a model of any family, with a head if the terms need its logits.
        terms: the comparisons; see `distillation_terms`.
        objective: the student's own, from labels or masked words; None to use only the terms.
        objective_weight: the factor on the student's own loss.

    Raises:
        TypeError: if teacher, a term, the objective or its weight is of the wrong type.
        ValueError: without terms, for a wrong weight, labelled_only without an objective, an objective whose batches a
            teacher does not take (TranslationLM); at the first batch, for models that cannot be compared.
    """

    def __init__(
        self, teacher: Model, *terms: Term, objective: Supervised | None = None, objective_weight: float = 1.0
    ):
        if not hasattr(teacher, "spec"):
            raise TypeError(f"teacher is {type(teacher).__name__}, expected a model")
        wrong = [term for term in terms if not isinstance(term, Term)]
        if wrong:
            raise TypeError(f"terms has {wrong[0]!r}, expected SoftTargets, HiddenCosine or another Term")
        if not terms:
            raise ValueError("terms is empty, expected at least one")
        if objective is not None and not isinstance(objective, Supervised):
            raise TypeError(f"objective is {type(objective).__name__}, expected Supervised, MaskedLM or None")
        if objective is not None and objective.targets:
            problem = f"whose batches have {', '.join(objective.targets)}, which a teacher does not take"
            raise ValueError(f"objective is {type(objective).__name__}, {problem}")
        self.teacher, self.terms = teacher.eval(), terms
        self.objective = self.source = objective
        self.objective_weight = check_number("objective_weight", objective_weight)
        if objective is not None:
            self.model_class = objective.model_class
        self._labelled_only = any(term.labelled_only for term in terms)
        if self._labelled_only and objective is None:
            raise ValueError("labelled_only needs an objective, whose labels choose the tokens")
        self._student: TrainedModel | None = None
        self._options: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        self._maps: list[list[Linear]] = []

    def examples(self, documents: Documents, tokenizer: Tokenizer, *, max_length: int, seed: int = 0) -> Examples:
        """Yield the examples of the student's own objective; without one, each document's tokens in pieces."""
        made = self.objective or MaskedLM()
        return made.examples(documents, tokenizer, max_length=max_length, seed=seed)

    def weight(self, batch: Batch) -> float:
        """Return the weight by the student's own objective; without one, the count that the terms are means over.

        That count is of real tokens, or of texts if all terms are soft targets of texts.
        """
        return self._rows(self.terms, batch) if self.objective is None else self.objective.weight(batch)

    def counts(self, model: TrainedModel, batch: Batch) -> tuple[float, ...]:
        own = () if self.objective is None else (self.objective.weight(batch),)
        return *own, *(self.weight(batch) if it.labelled_only else self._rows([it], batch) for it in self.terms)

    def _rows(self, terms: Sequence[Term], batch: Batch) -> float:
        is_of_texts = all(term.is_of_texts(self.teacher) for term in terms)
        return float(len(batch["input_ids"]) if is_of_texts else np.count_nonzero(real_tokens(batch)))

    def parameters(self, model: TrainedModel) -> Sequence[Parameter]:
        """Return the parameters of the terms, made at the first call for a model."""
        self._prepare(model)
        return [parameter for maps in self._maps for each in maps for parameter in each.parameters()]

    def loss(self, model: TrainedModel, batch: Batch) -> ModelOutput:
        run = Pass.begin(batch["input_ids"])
        with use_loss_factors(()), kept_losses():  # these are per term, not per summand of the student's own loss
            out, losses = self._losses(run, model, batch)
        weights = [self.objective_weight] * (self.objective is not None) + [term.weight for term in self.terms]
        parts = zip(losses, weights, strict=True)
        out.loss = total(run, *(functional.scale(run, loss, factor=weight) for loss, weight in parts))
        return out

    def losses(self, model: TrainedModel, batch: Batch) -> list[float]:
        """Return the losses before their weights: the student's own loss, if any, then the terms'.

        They help to choose the weights: terms differ in size by orders of magnitude.
        """
        return [float(loss) for loss in self._losses(Pass.begin(batch["input_ids"]), model, batch)[1]]

    def _losses(self, run: Pass, model: TrainedModel, batch: Batch) -> tuple[Any, list[Any]]:
        self._prepare(model)
        of_students, of_teachers = self._options
        inputs = {name: array for name, array in batch.items() if name not in TARGETS}
        asked = {"labels": batch.get("labels")} if self._labelled_only else {}
        with unrecorded(), kept_scores() as of_teacher:
            teacher = self.teacher(**inputs, **asked, **of_teachers)
        if self.objective is None:
            out, losses = model(**inputs, **of_students), []
        else:
            with kept_scores() as of_student:
                out = self.objective.loss(model, {**batch, **of_students})
            if out.loss is None:
                raise ValueError(f"batch has no labels for the student's own objective; it has {', '.join(batch)}")
            losses = [out.loss]
        labelled = (of_student[0], of_teacher[0]) if self._labelled_only else None
        outputs = Outputs(run, out, teacher, (model.spec, self.teacher.spec), real_tokens(batch), labelled)
        return out, losses + [term.loss(outputs, maps) for term, maps in zip(self.terms, self._maps, strict=True)]

    def _prepare(self, model: TrainedModel) -> None:
        """Check that the models can be compared, and make the parameters of the terms."""
        if self._student is model:
            return
        rng, made = np.random.default_rng(0), []
        for number, term in enumerate(self.terms):
            term.check(model, self.teacher)
            maps = term.maps(f"distillation.{number}", model.spec, self.teacher.spec)
            for parameter in (parameter for each in maps for parameter in each.parameters()):
                parameter.initialise(rng, parameter.shape[1] ** -0.5, model.dtype)
            made.append(maps)
        options = dict.fromkeys((name for term in self.terms for name in term.needs), True)
        self._student, self._maps, self._options = model, made, (options, options)
        if PROJECTIONS in options:  # only of the compared layers
            terms, specs = [term for term in self.terms if PROJECTIONS in term.needs], (model.spec, self.teacher.spec)
            pairs = {pair for term in terms for pair in term.pairs(*specs).items()}
            self._options = tuple(options | {PROJECTIONS: sorted(set(layers))} for layers in zip(*pairs, strict=True))
