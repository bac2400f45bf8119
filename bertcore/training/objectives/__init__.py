"""Training objectives: each class has a loss, examples and a weight.

objective.py has the base class, sums, and supervised and custom losses; text_examples.py turns texts into examples;
language_modeling.py and sentence_pairs.py learn from raw texts, entities.py from texts with entities; embeddings.py,
embedding_losses.py and pairs_and_triplets.py train embeddings, cross_encoder.py scores of pairs, multi_vector.py scores
from token vectors, sparse.py sparse embeddings; distillation.py learns from a teacher with the terms of
distillation_terms.py.
"""

from bertcore.training.objectives import cross_encoder, multi_vector, sparse
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
    AdaptiveLayerLoss,
    AnglELoss,
    CachedGISTEmbedLoss,
    ContrastiveLoss,
    DistillKLDivLoss,
    GISTEmbedLoss,
    MSELoss,
    OnlineContrastiveLoss,
    SoftmaxLoss,
)
from bertcore.training.objectives.embeddings import (
    CachedMultipleNegativesRankingLoss,
    CachedMultipleNegativesSymmetricRankingLoss,
    EmbeddingObjective,
    MarginMSELoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    MultipleNegativesSymmetricRankingLoss,
)
from bertcore.training.objectives.entities import EntityMaskedLM, GLiNEREntities
from bertcore.training.objectives.language_modeling import (
    CausalLM,
    MaskedLM,
    PermutationLM,
    ReplacedToken,
    SpanBoundary,
    preview,
)
from bertcore.training.objectives.objective import CustomLoss, Objective, Supervised
from bertcore.training.objectives.pairs_and_triplets import (
    BatchAllTripletLoss,
    BatchHardSoftMarginTripletLoss,
    BatchHardTripletLoss,
    BatchSemiHardTripletLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    TripletLoss,
)
from bertcore.training.objectives.schemas import GLiNER2Schemas
from bertcore.training.objectives.sentence_pairs import NextSentence, SentenceOrder, TranslationLM
from bertcore.training.objectives.similarity import (
    BatchHardTripletLossDistanceFunction,
    SiameseDistanceMetric,
    TripletDistanceMetric,
)
from bertcore.training.objectives.text_examples import ColumnCollator

__all__ = [
    "AdaptiveLayerLoss", "AnglELoss", "AttentionDistributions", "AttentionScores", "BatchAllTripletLoss",
    "BatchHardSoftMarginTripletLoss", "BatchHardTripletLoss", "BatchHardTripletLossDistanceFunction",
    "BatchSemiHardTripletLoss", "CachedGISTEmbedLoss", "CachedMultipleNegativesRankingLoss",
    "CachedMultipleNegativesSymmetricRankingLoss", "CausalLM", "CoSENTLoss", "ColumnCollator", "ContrastiveLoss",
    "CosineSimilarityLoss", "CustomLoss", "DistillKLDivLoss", "Distillation", "EmbeddingObjective", "EntityMaskedLM",
    "GISTEmbedLoss", "GLiNER2Schemas", "GLiNEREntities", "HiddenCosine", "HiddenStates", "MSELoss", "MarginMSELoss",
    "MaskedLM", "MatryoshkaLoss", "MultipleNegativesRankingLoss", "MultipleNegativesSymmetricRankingLoss",
    "NextSentence", "Objective", "OnlineContrastiveLoss", "PermutationLM", "Relations", "ReplacedToken",
    "SentenceOrder", "SiameseDistanceMetric", "SoftTargets", "SoftmaxLoss", "SpanBoundary", "Supervised",
    "TranslationLM", "TripletDistanceMetric", "TripletLoss", "cross_encoder", "multi_vector", "preview", "sparse",
]  # fmt: skip
