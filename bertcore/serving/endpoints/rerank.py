"""/rerank: {query, texts, truncate, raw_scores, return_text} -> [{index, score, text?}], the best first."""

from typing import Any

import numpy as np

from bertcore.serving import fields
from bertcore.serving.errors import unsupported
from bertcore.serving.models import Models, finite
from bertcore.serving.settings import ServerSettings
from bertcore.tasks.probabilities import sigmoid


async def answer(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """The texts by how well they answer the query; scores are the sigmoid of the logits unless `raw_scores`."""
    model = models.of_kind("classifier")
    if model.engine.num_labels != 1:
        raise unsupported(f"{model.name} has {model.engine.num_labels} labels; a reranker has one")
    query, texts = fields.text(body, "query"), fields.texts(body, "texts", settings.max_client_batch_size)
    truncate = fields.truncation(body, settings.auto_truncate)
    raw, with_text = fields.flag(body, "raw_scores", False), fields.flag(body, "return_text", False)
    pairs = [(query, text) for text in texts]
    rows = await model.tokens(pairs, truncate=truncate, name="texts")
    scores = finite(np.stack(await model.compute("logits", rows))[:, 0])
    scores = scores if raw else sigmoid(scores)
    return [
        {"index": index, "score": float(scores[index])} | ({"text": texts[index]} if with_text else {})
        for index in np.argsort(-scores, kind="stable").tolist()
    ]
