"""Cross-encoders: a pair of texts in, a score out."""

from .encoder import CrossEncoder

__all__ = ["CrossEncoder"]
