"""/predict: {inputs, truncate, raw_scores} -> [{score, label}], the most probable first, or a list of such lists."""

from typing import Any

import numpy as np

from bertcore.serving import fields
from bertcore.serving.errors import invalid, too_large
from bertcore.serving.models import Models, finite
from bertcore.serving.settings import ServerSettings
from bertcore.tasks.probabilities import FUNCTIONS, published_function

EXPECTED = "expected a string, a pair of strings, or a list of lists of one or two strings"


async def answer(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """The labels of a text, of a pair ([text, text]), or of each of several ([[text], [text, text]]).

    Scores are probabilities, as the model's config says (`published_function`): the softmax of the logits, the sigmoid
    where there is one label or where a text may have several, the number itself for regression. With `raw_scores` they
    are the logits.
    """
    model = models.of_kind("classifier")
    inputs, is_one = _inputs(body, settings.max_client_batch_size)
    truncate, raw = fields.truncation(body, settings.auto_truncate), fields.flag(body, "raw_scores", False)
    rows = await model.tokens(inputs, truncate=truncate)
    scores = finite(np.stack(await model.compute("logits", rows)))
    if not raw:
        config = model.engine.model.config
        scores = FUNCTIONS[published_function(config.get("problem_type"), scores.shape[1])](scores)
    labels = model.labels
    answers = [
        [{"score": float(row[index]), "label": labels[index]} for index in np.argsort(-row, kind="stable").tolist()]
        for row in scores
    ]
    return answers[0] if is_one else answers


def _inputs(body: dict[str, Any], most: int) -> tuple[list[tuple[str, ...]], bool]:
    """The texts and pairs, and whether there is one that is not in a list."""
    value = body.get("inputs")
    if isinstance(value, str):
        return [(value,)], True
    if not isinstance(value, list) or not value:
        raise invalid(f"inputs is no text; {EXPECTED}")
    if len(value) > most:
        raise too_large(f"inputs has {len(value)} texts, the limit is {most}")
    is_one = all(isinstance(entry, str) for entry in value)
    rows = [value] if is_one else value
    for index, row in enumerate(rows):
        is_row = isinstance(row, list) and len(row) in (1, 2) and all(isinstance(entry, str) for entry in row)
        if not is_row:
            raise invalid(f"inputs[{index}] is no text or pair; {EXPECTED}")
    return [tuple(row) for row in rows], is_one
