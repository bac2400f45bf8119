"""Functions of embeddings, with the names and arguments of `sentence_transformers.util`; arrays are NumPy's."""

from bertcore.tasks.hard_negatives import mine_hard_negatives
from bertcore.tasks.quantization import quantize_embeddings
from bertcore.tasks.search import (
    community_detection,
    paraphrase_mining,
    paraphrase_mining_embeddings,
    semantic_search,
)
from bertcore.tasks.similarity import (
    SimilarityFunction,
    cos_sim,
    dot_score,
    euclidean_sim,
    manhattan_sim,
    maxsim,
    maxsim_pairwise,
    normalize_embeddings,
    pairwise_angle_sim,
    pairwise_cos_sim,
    pairwise_dot_score,
    pairwise_euclidean_sim,
    pairwise_manhattan_sim,
    truncate_embeddings,
)

pytorch_cos_sim = cos_sim  # the first name in sentence-transformers

__all__ = (
    "SimilarityFunction", "community_detection", "cos_sim", "dot_score", "euclidean_sim", "manhattan_sim", "maxsim",
    "maxsim_pairwise", "mine_hard_negatives", "normalize_embeddings", "pairwise_angle_sim", "pairwise_cos_sim",
    "pairwise_dot_score", "pairwise_euclidean_sim", "pairwise_manhattan_sim", "paraphrase_mining",
    "paraphrase_mining_embeddings", "pytorch_cos_sim", "quantize_embeddings", "semantic_search", "truncate_embeddings",
)  # fmt: skip
