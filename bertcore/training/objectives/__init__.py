"""Objectives: what a model learns from, each in a class with its loss, its examples and its weight."""

from bertcore.training.objectives.columns import ColumnCollator
from bertcore.training.objectives.embeddings import (
    CoSENT,
    CosineSimilarity,
    EmbeddingObjective,
    MarginMSE,
    Matryoshka,
    MultipleNegativesRanking,
    Triplet,
)
from bertcore.training.objectives.language_modeling import CausalLM, MaskedLM
from bertcore.training.objectives.objective import Objective
from bertcore.training.objectives.supervised import Supervised

__all__ = [
    "CausalLM",
    "CoSENT",
    "ColumnCollator",
    "CosineSimilarity",
    "EmbeddingObjective",
    "MarginMSE",
    "MaskedLM",
    "Matryoshka",
    "MultipleNegativesRanking",
    "Objective",
    "Supervised",
    "Triplet",
]
