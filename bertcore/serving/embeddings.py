"""Endpoints of embeddings: text-embeddings-inference's /embed, /embed_all, /embed_sparse, and OpenAI's."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertcore.serving import requests
from bertcore.serving.models import Models, ServedModel, ServerSettings, finite
from bertcore.serving.requests import invalid, no_model

FORMATS = ("float", "base64")


async def embed(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the embedding of each text of `inputs`, of length 1 unless `normalize` is false.

    {inputs, truncate, truncation_direction, prompt_name, normalize, dimensions} -> [[number]].
    """
    model, rows = await _rows("dense", body, models, settings)
    options = {"normalize": requests.flag(body, "normalize", True), "dimensions": requests.count(body, "dimensions")}
    return await pooled_embeddings(model, rows, **options)


async def embed_all(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the hidden states of the tokens of each text of `inputs`, without pooling.

    {inputs, truncate, truncation_direction, prompt_name} -> [[[number]]].
    """
    model, rows = await _rows("dense", body, models, settings)
    return [finite(states) for states in await model.compute("tokens", rows)]


async def embed_sparse(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the words of each text of `inputs` that have a weight, and their weights.

    {inputs, truncate, truncation_direction, prompt_name} -> [[{index, value}]].
    """
    model, rows = await _rows("sparse", body, models, settings)
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(words.indices.tolist(), finite(words.values).tolist(), strict=True)
        ]
        for words in await model.compute("words", rows)
    ]


async def openai_embeddings(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the embedding of each text of `input`, of length 1; in base64 the bytes of little-endian float32.

    {input, model, user, encoding_format, dimensions} -> {object, data, model, usage}. `model` names a served model (404
    for any other); the first one answers by default.
    """
    model = models.of_kind("dense", requests.text(body, "model", None))
    texts = requests.one_or_more(body, "input", settings.max_client_batch_size)
    form = requests.text(body, "encoding_format", "float")
    if form not in FORMATS:
        raise invalid(f"encoding_format is {form!r}, expected one of {', '.join(FORMATS)}")
    requests.text(body, "user", None)
    dimensions = requests.count(body, "dimensions")
    rows = await model.tokens(texts, truncate=settings.auto_truncate, prompt=prompt_of(model, {}), name="input")
    found = await pooled_embeddings(model, rows, normalize=True, dimensions=dimensions)
    data = [
        {"object": "embedding", "embedding": row if form == "float" else _base64(row), "index": index}
        for index, row in enumerate(found)
    ]
    tokens = sum(map(len, rows))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


async def openai_models(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the served models, or the one that `model` names (404 for any other).

    {object: "list", data: [{id, object, created, owned_by}]}, or one of these objects.
    """
    served = {model.name: model for model in models.all}
    found = {
        name: {"id": name, "object": "model", "created": model.loaded_at, "owned_by": "bertcore"}
        for name, model in served.items()
    }
    if "model" not in body:
        return {"object": "list", "data": list(found.values())}
    if body["model"] not in found:
        raise no_model(f"no model here is called {body['model']!r}: there is {', '.join(found)}")
    return found[body["model"]]


def prompt_of(model: ServedModel, body: Mapping[str, Any]) -> str:
    """Return the prompt that a request names, or the model's default."""
    name = requests.text(body, "prompt_name", None)
    try:
        return model.engine.prompt(None, name)
    except ValueError as error:
        raise invalid(str(error)) from error


async def pooled_embeddings(
    model: ServedModel, rows: list[Any], *, normalize: bool | None, dimensions: int | None
) -> np.ndarray:
    """Return the embeddings of rows of tokens, (rows, dim) float32."""
    width = model.engine.embedding_dimension
    if dimensions is not None and dimensions > width:
        raise invalid(f"dimensions is {dimensions}, the model has {width}")
    pooled = np.stack(await model.compute("pooled", rows))
    return finite(model.engine.finished(pooled, normalize, dimensions or width))


async def _rows(
    kind: str, body: dict[str, Any], models: Models, settings: ServerSettings
) -> tuple[ServedModel, list[Any]]:
    """Return the model of this kind and the tokens of the texts of `inputs`."""
    model = models.of_kind(kind)
    texts = requests.one_or_more(body, "inputs", settings.max_client_batch_size)
    truncate, prompt = requests.truncation(body, settings.auto_truncate), prompt_of(model, body)
    return model, await model.tokens(texts, truncate=truncate, prompt=prompt, name="inputs")


def _base64(row: Any) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")
