"""Late interaction: a vector for each token of a text, and scores by the best match of each query token."""

from .encoder import MultiVectorEncoder
from .modules import pool_tokens

__all__ = ["MultiVectorEncoder", "pool_tokens"]
