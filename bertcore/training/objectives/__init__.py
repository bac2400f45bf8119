"""Training objectives: each class has a loss, examples and a weight.

objective.py has the base class, sums, and supervised and custom losses; text_examples.py turns texts into examples;
language_modeling.py and sentence_pairs.py learn from raw texts, entities.py from texts with entities; embeddings.py,
embedding_losses.py and batch_triplets.py train embeddings, cross_encoder.py scores of pairs, multi_vector.py scores
from token vectors, sparse.py sparse embeddings; distillation.py learns from a teacher with the terms of
distillation_terms.py. preview.py shows the examples that objectives present to a model.
"""

from bertcore.training.objectives import cross_encoder, multi_vector, sparse
from bertcore.training.objectives.batch_triplets import (
    BatchAllTriplet,
    BatchHardSoftMarginTriplet,
    BatchHardTriplet,
    BatchSemiHardTriplet,
)
from bertcore.training.objectives.distillation import Distillation
from bertcore.training.objectives.distillation_terms import (
    AttentionDistributions,
    AttentionScores,
    HiddenCosine,
    HiddenStates,
    Relations,
    SoftTargets,
)
from bertcore.training.objectives.embedding_losses import (
    MSE,
    AdaptiveLayer,
    AnglE,
    Contrastive,
    DistillKLDiv,
    GISTEmbed,
    OnlineContrastive,
    Softmax,
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
from bertcore.training.objectives.entities import EntityMaskedLM, GLiNEREntities
from bertcore.training.objectives.language_modeling import (
    CausalLM,
    MaskedLM,
    PermutationLM,
    ReplacedToken,
    SpanBoundary,
)
from bertcore.training.objectives.objective import CustomLoss, Objective, Supervised
from bertcore.training.objectives.preview import preview
from bertcore.training.objectives.sentence_pairs import NextSentence, SentenceOrder, TranslationLM
from bertcore.training.objectives.text_examples import ColumnCollator

__all__ = [
    "MSE", "AdaptiveLayer", "AnglE", "AttentionDistributions", "AttentionScores", "BatchAllTriplet",
    "BatchHardSoftMarginTriplet", "BatchHardTriplet", "BatchSemiHardTriplet", "CausalLM", "CoSENT", "ColumnCollator",
    "Contrastive", "CosineSimilarity", "CustomLoss", "DistillKLDiv", "Distillation", "EmbeddingObjective",
    "EntityMaskedLM", "GISTEmbed", "GLiNEREntities", "HiddenCosine", "HiddenStates", "MarginMSE", "MaskedLM",
    "Matryoshka", "MultipleNegativesRanking", "NextSentence", "Objective", "OnlineContrastive", "PermutationLM",
    "Relations", "ReplacedToken", "SentenceOrder", "SoftTargets", "Softmax", "SpanBoundary", "Supervised",
    "TranslationLM", "Triplet", "cross_encoder", "multi_vector", "preview", "sparse",
]  # fmt: skip
