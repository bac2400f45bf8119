"""Dense embeddings, as several endpoints want them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertcore.serving import fields
from bertcore.serving.errors import invalid
from bertcore.serving.models import ServedModel, finite


def prompt_of(model: ServedModel, body: Mapping[str, Any]) -> str:
    """The prompt that a request names; the model's default by default."""
    name = fields.text(body, "prompt_name", None)
    try:
        return model.engine.prompt(None, name)
    except ValueError as error:
        raise invalid(str(error)) from error


async def embeddings(
    model: ServedModel, rows: list[Any], *, normalize: bool | None, dimensions: int | None
) -> np.ndarray:
    """The embeddings of rows of tokens, (rows, dim) float32."""
    width = model.engine.embedding_dimension
    if dimensions is not None and dimensions > width:
        raise invalid(f"dimensions is {dimensions}, the model has {width}")
    pooled = np.stack(await model.compute("pooled", rows))
    return finite(model.engine.finished(pooled, normalize, dimensions or width))
