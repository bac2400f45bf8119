"""Endpoints of scores: text-embeddings-inference's /predict, /rerank and /similarity."""

from typing import Any

import numpy as np

from bertcore.serving import requests
from bertcore.serving.embeddings import pooled_embeddings, prompt_of
from bertcore.serving.models import Models, ServerSettings, finite
from bertcore.serving.requests import invalid, too_many, unsupported
from bertcore.tasks.sequence_scores import FUNCTIONS, published_function, sigmoid

EXPECTED = "expected a string, a pair of strings, or a list of lists of one or two strings"


async def predict(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the labels of a text, of a pair ([text, text]), or of each of several ([[text], [text, text]]).

    {inputs, truncate, raw_scores} -> [{score, label}], the most probable first, or a list of such lists. Scores are
    probabilities, as the model's config says (`published_function`): the softmax of the logits, the sigmoid for one
    label or for texts with several labels, the number itself for regression. With `raw_scores` they are the logits.
    """
    model = models.of_kind("classifier")
    inputs, is_one = _inputs(body, settings.max_client_batch_size)
    truncate, raw = requests.truncation(body, settings.auto_truncate), requests.flag(body, "raw_scores", False)
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


async def rerank(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the texts by how well they answer the query; scores are the sigmoid of the logits unless `raw_scores`.

    {query, texts, truncate, raw_scores, return_text} -> [{index, score, text?}], the best first.
    """
    model = models.of_kind("classifier")
    if model.engine.num_labels != 1:
        raise unsupported(f"{model.name} has {model.engine.num_labels} labels; a reranker has one")
    query, texts = requests.text(body, "query"), requests.texts(body, "texts", settings.max_client_batch_size)
    truncate = requests.truncation(body, settings.auto_truncate)
    raw, with_text = requests.flag(body, "raw_scores", False), requests.flag(body, "return_text", False)
    rows = await model.tokens([(query, text) for text in texts], truncate=truncate, name="texts")
    scores = finite(np.stack(await model.compute("logits", rows))[:, 0])
    scores = scores if raw else sigmoid(scores)
    return [
        {"index": index, "score": float(scores[index])} | ({"text": texts[index]} if with_text else {})
        for index in np.argsort(-scores, kind="stable").tolist()
    ]


async def similarity(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the cosine of the source sentence with each of the sentences.

    {inputs: {source_sentence, sentences}, parameters} -> [number].
    """
    model = models.of_kind("dense")
    inputs, parameters = body.get("inputs"), body.get("parameters") or {}
    for name, value in (("inputs", inputs), ("parameters", parameters)):
        if not isinstance(value, dict):
            raise invalid(f"{name} is not an object, expected source_sentence and sentences in inputs")
    source = requests.text(inputs, "source_sentence")
    sentences = requests.texts(inputs, "sentences", settings.max_client_batch_size)
    truncate, prompt = requests.truncation(parameters, settings.auto_truncate), prompt_of(model, parameters)
    rows = await model.tokens([source, *sentences], truncate=truncate, prompt=prompt, name="sentences")
    found = await pooled_embeddings(model, rows, normalize=True, dimensions=None)
    return found[1:] @ found[0]


def _inputs(body: dict[str, Any], most: int) -> tuple[list[tuple[str, ...]], bool]:
    """Return the texts and pairs, and whether the request has a single one outside a list."""
    value = body.get("inputs")
    if isinstance(value, str):
        return [(value,)], True
    if not isinstance(value, list) or not value:
        raise invalid(f"inputs is not a text; {EXPECTED}")
    if len(value) > most:
        raise too_many(f"inputs has {len(value)} texts, the limit is {most}")
    is_one = all(isinstance(entry, str) for entry in value)
    rows = [value] if is_one else value
    for index, row in enumerate(rows):
        is_row = isinstance(row, list) and len(row) in (1, 2) and all(isinstance(entry, str) for entry in row)
        if not is_row:
            raise invalid(f"inputs[{index}] is not a text or a pair; {EXPECTED}")
    return [tuple(row) for row in rows], is_one
