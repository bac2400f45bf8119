"""Objectives: what a model learns from, each in a class with its loss, its examples and its weight.

objective.py has what all share, sums and losses of the caller's own; supervised.py labels. What is learned from raw
texts: language_modeling.py, span_boundary.py, permutation.py, sentence_pairs.py; from texts with mentions, entities.py;
with translations, translation.py. Vectors of sentences: embeddings.py. From a teacher: distillation.py, and
distillation_terms.py what of its outputs. preview.py shows what is asked.
"""

from bertcore.training.objectives.distillation import Distillation
from bertcore.training.objectives.distillation_terms import (
    AttentionDistributions,
    AttentionScores,
    HiddenCosine,
    HiddenStates,
    Relations,
    SoftTargets,
)
from bertcore.training.objectives.embeddings import (
    CoSENT,
    CosineSimilarity,
    EmbeddingObjective,
    MarginMSE,
    Matryoshka,
    MultipleNegativesRanking,
    Triplet,
)
from bertcore.training.objectives.entities import EntityMaskedLM
from bertcore.training.objectives.language_modeling import (
    CausalLM,
    MaskedLM,
    PermutationLM,
    ReplacedToken,
    SpanBoundary,
)
from bertcore.training.objectives.objective import ColumnCollator, CustomLoss, Objective, Supervised
from bertcore.training.objectives.preview import preview
from bertcore.training.objectives.sentence_pairs import NextSentence, SentenceOrder, TranslationLM

__all__ = [
    "AttentionDistributions",
    "AttentionScores",
    "CausalLM",
    "CoSENT",
    "ColumnCollator",
    "CosineSimilarity",
    "CustomLoss",
    "Distillation",
    "EmbeddingObjective",
    "EntityMaskedLM",
    "HiddenCosine",
    "HiddenStates",
    "MarginMSE",
    "MaskedLM",
    "Matryoshka",
    "MultipleNegativesRanking",
    "NextSentence",
    "Objective",
    "PermutationLM",
    "Relations",
    "ReplacedToken",
    "SentenceOrder",
    "SoftTargets",
    "SpanBoundary",
    "Supervised",
    "TranslationLM",
    "Triplet",
    "preview",
]
