"""Endpoints of embeddings: text-embeddings-inference's /embed, /embed_all, /embed_sparse, and OpenAI's."""

import base64
from typing import Any

import numpy as np

from bertcore.serving import requests as rq
from bertcore.serving.models import Kinds, Models, ServedModel, finite, is_of
from bertcore.serving.settings import ServerSettings

NUMBER = {"type": "number"}
INTEGER = {"type": "integer"}
READ = {"inputs": rq.INPUT} | rq.CUT | rq.PROMPT | rq.MODEL
USAGE = rq.record(prompt_tokens=INTEGER, total_tokens=INTEGER)


@rq.endpoint(
    kind="dense",
    example={"inputs": ["the cat sat on the mat"]},
    result=rq.many(rq.many(NUMBER)),
    **READ,
    normalize=rq.optional(rq.FLAG, True),
    dimensions=rq.optional(rq.COUNT),
)
async def embed(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the embedding of each text of `inputs`, of length 1 unless `normalize` is false."""
    model, rows, route = await _read("dense", body, models, settings)
    options = {"normalize": body["normalize"], "dimensions": body["dimensions"]}
    return await pooled_embeddings(model, rows, **options, route=route)


@rq.endpoint(kind=("dense", "late"), example={"inputs": "the cat"}, result=rq.many(rq.many(rq.many(NUMBER))), **READ)
async def embed_all(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the hidden states of each text's tokens, without pooling.

    A late-interaction model returns its document vectors, or query vectors for the `prompt_name` "query".
    """
    model, rows, route = await _read(("dense", "late"), body, models, settings)
    what = "vectors" if model.kind == "late" else "tokens"
    return [finite(states) for states in await model.compute(of_route(what, route), rows)]


@rq.endpoint(
    kind="sparse",
    example={"inputs": ["the cat sat on the mat"]},
    result=rq.many(rq.many(rq.record(index=INTEGER, value=NUMBER))),
    **READ,
)
async def embed_sparse(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the vocabulary's tokens with a nonzero weight for each text of `inputs`, and their weights.

    If the model reads queries differently from documents, mark them by the `prompt_name` "query".
    """
    model, rows, route = await _read("sparse", body, models, settings)
    found = await model.compute(of_route("words", route), rows)
    pairs = (zip(words.indices.tolist(), finite(words.values).tolist(), strict=True) for words in found)
    return [[{"index": index, "value": value} for index, value in words] for words in pairs]


@rq.endpoint(
    kind="dense",
    example={"input": "the cat sat on the mat"},
    result=rq.record(
        object=rq.TEXT,
        data=rq.many(rq.record(object=rq.TEXT, index=INTEGER, embedding={"anyOf": [rq.many(NUMBER), rq.TEXT]})),
        model=rq.TEXT,
        usage=USAGE,
    ),
    input=rq.INPUT,
    **rq.MODEL,
    encoding_format=rq.optional(rq.choice("float", "base64"), "float"),
    dimensions=rq.optional(rq.COUNT),
    user=rq.optional(rq.TEXT),
)
async def openai_embeddings(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the embedding of each text of `input`, of length 1; base64 holds little-endian float32.

    `model` names a served model (404 for any other); the first one answers by default.
    """
    model = models.of_kind("dense", body["model"])
    prompt, texts = prompt_of(model, None), listed(body["input"])
    options = {"truncate": settings.auto_truncate, "prompt": prompt}
    rows = await model.tokens(texts, **options, names="input[{}]".format, advice="")
    found: Any = await pooled_embeddings(model, rows, normalize=True, dimensions=body["dimensions"])
    if body["encoding_format"] == "base64":
        found = [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in found]
    data = [{"object": "embedding", "embedding": row, "index": index} for index, row in enumerate(found)]
    return {"object": "list", "data": data, "model": model.name, "usage": usage(rows)}


def usage(rows: list[Any]) -> dict[str, int]:
    tokens = sum(map(len, rows))
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def listed(inputs: Any) -> list[Any]:
    """Return a list of texts or token-id lists; a single one becomes a list of one."""
    return [inputs] if isinstance(inputs, str) or isinstance(inputs[0], int) else inputs


def prompt_of(model: ServedModel, name: str | None) -> str:
    """Return the prompt of this name, or the model's default; classifiers have none."""
    if not is_of(("dense", "late", "sparse"), model):
        if name is not None:
            raise rq.invalid(f"prompt_name is {name!r}, but {model.name} takes no prompts")
        return ""
    try:
        return model.engine.prompt(None, name)
    except ValueError as error:
        raise rq.invalid(str(error)) from error


async def pooled_embeddings(
    model: ServedModel, rows: list[Any], *, normalize: bool | None, dimensions: int | None, route: str | None = None
) -> np.ndarray:
    """Return the embeddings of rows of tokens, float32 (rows, dim)."""
    width = model.engine.embedding_dimension
    if dimensions is not None and dimensions > width:
        raise rq.invalid(f"dimensions is {dimensions}, the model has {width}")
    pooled = np.stack(await model.compute(of_route("pooled", route), rows))
    return finite(model.engine.finished(pooled, normalize, dimensions or width))


def of_route(what: str, route: str | None) -> str:
    """Return the name that `ServedModel.compute` takes for a result, by a route of a Router if there is a route."""
    return what if route is None else f"{what} of {route}"


def side_of(model: ServedModel, name: str | None) -> dict[str, Any]:
    """Return the prompt of this name, with the late-interaction side or the Router's route that it stands for."""
    if model.kind != "late":
        prompt, routes = prompt_of(model, name), getattr(model.engine, "routes", None)
        try:
            route = None if routes is None else routes.resolve(name if name in ("query", "document") else None)
        except ValueError as error:
            raise rq.invalid(str(error)) from error
        return {"prompt": prompt, "route": route}
    if name == "query":
        return {"prompt": model.engine.query_prompt, "task": "query"}
    prompt = model.engine.document_prompt if name in (None, "document") else prompt_of(model, name)
    return {"prompt": prompt, "task": "document"}


async def _read(
    kind: Kinds, body: dict[str, Any], models: Models, settings: ServerSettings
) -> tuple[ServedModel, list[Any], str | None]:
    model = models.of_kind(kind, body["model"])
    cut, side = settings.cutting(body), side_of(model, body["prompt_name"])
    return model, await model.tokens(listed(body["inputs"]), **cut, **side), side.get("route")
