"""Evaluators of how well an encoder retrieves, ranks and separates texts, with sentence-transformers' names.

Construct an evaluator with its data and call it with encoders: `evaluator(encoder)`, or `encoder.evaluate(evaluator)`.
It uses only an encoder's `encode_query`, `encode_document`, `encode`, `similarity` and `similarity_pairwise`.
"""

from bertcore.evaluation.cross_encoder import (
    CrossEncoderClassificationEvaluator,
    CrossEncoderCorrelationEvaluator,
    CrossEncoderRerankingEvaluator,
)
from bertcore.evaluation.evaluator import Evaluator, SequentialEvaluator
from bertcore.evaluation.pairs import (
    BinaryClassificationEvaluator,
    EmbeddingSimilarityEvaluator,
    LabelAccuracyEvaluator,
    MSEEvaluator,
    MSEEvaluatorFromDataFrame,
    TranslationEvaluator,
    TripletEvaluator,
)
from bertcore.evaluation.retrieval import InformationRetrievalEvaluator, ParaphraseMiningEvaluator, RerankingEvaluator
from bertcore.tasks.similarity import SimilarityFunction

__all__ = [
    "BinaryClassificationEvaluator", "CrossEncoderClassificationEvaluator", "CrossEncoderCorrelationEvaluator",
    "CrossEncoderRerankingEvaluator", "EmbeddingSimilarityEvaluator", "Evaluator", "InformationRetrievalEvaluator",
    "LabelAccuracyEvaluator", "MSEEvaluator", "MSEEvaluatorFromDataFrame", "ParaphraseMiningEvaluator",
    "RerankingEvaluator", "SequentialEvaluator", "SimilarityFunction", "TranslationEvaluator", "TripletEvaluator",
]  # fmt: skip
