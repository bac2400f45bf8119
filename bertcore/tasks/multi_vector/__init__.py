"""Late interaction: one vector per token of a text, and scores from the best match of each query token."""

from .encoder import MultiVectorEncoder
from .modules import pool_tokens

__all__ = ["MultiVectorEncoder", "pool_tokens"]
