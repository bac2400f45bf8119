"""Evaluators: how well an encoder retrieves, orders and separates texts, by sentence-transformers' names.

An evaluator is made with its data and called with encoders: `evaluator(encoder)`, or `encoder.evaluate(evaluator)`. It
asks an encoder for `encode_query`, `encode_document`, `encode`, `similarity` and `similarity_pairwise` alone.
"""

from bertcore.tasks.evaluation.evaluator import Evaluator
from bertcore.tasks.evaluation.pairs import (
    BinaryClassificationEvaluator,
    EmbeddingSimilarityEvaluator,
    TripletEvaluator,
)
from bertcore.tasks.evaluation.retrieval import (
    InformationRetrievalEvaluator,
    ParaphraseMiningEvaluator,
    RerankingEvaluator,
)

__all__ = [
    "BinaryClassificationEvaluator", "EmbeddingSimilarityEvaluator", "Evaluator", "InformationRetrievalEvaluator",
    "ParaphraseMiningEvaluator", "RerankingEvaluator", "TripletEvaluator",
]  # fmt: skip
