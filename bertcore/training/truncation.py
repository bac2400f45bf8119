"""Whether texts are cut to a length."""

from __future__ import annotations

from typing import Any

NO_LIMIT = 10**9  # a tokenizer's model_max_length from which on its files state none


def is_cut(tokenizer: Any, max_length: int | None) -> bool:
    """Whether there is a length to cut texts to: `max_length`, or that of the tokenizer's files."""
    return max_length is not None or tokenizer.model_max_length < NO_LIMIT
