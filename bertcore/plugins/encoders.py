"""What the plug-ins of embeddings share."""

import os
from typing import Any

from bertcore.tasks.sentence_encoder import SentenceEncoder

Model = str | os.PathLike | SentenceEncoder


def opened(model: Model, **options: Any) -> SentenceEncoder:
    """The encoder of a folder or of an id on the Hugging Face hub, or `model`, if it is one."""
    return model if isinstance(model, SentenceEncoder) else SentenceEncoder(model, **options)
