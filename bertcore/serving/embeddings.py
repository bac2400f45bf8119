"""Endpoints of embeddings and scores: text-embeddings-inference's, OpenAI's embeddings, Jina's and Cohere's rerank."""

import base64
import uuid
from typing import Any

import numpy as np

from bertcore.serving import requests as rq
from bertcore.serving.batcher import SCORE
from bertcore.serving.models import Models, ServedModel, finite, is_of
from bertcore.serving.requests import ServerSettings
from bertcore.tasks.sequence_scores import FUNCTIONS, published_function, sigmoid

NUMBER = {"type": "number"}
INTEGER = {"type": "integer"}
READ = {"inputs": rq.INPUT} | rq.CUT | rq.PROMPT
USAGE = rq.record(prompt_tokens=INTEGER, total_tokens=INTEGER)


@rq.endpoint(
    kind="dense",
    example={"inputs": ["the cat sat on the mat"]},
    result=rq.many(rq.many(NUMBER)),
    **READ,
    normalize=rq.optional(rq.FLAG, True),
    dimensions=rq.optional(rq.COUNT),
)
async def embed(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> np.ndarray:
    """Return the embedding of each text of `inputs`, of length 1 unless `normalize` is false."""
    rows, route = await _read(body, model, settings)
    options = {"normalize": body["normalize"], "dimensions": body["dimensions"]}
    return await pooled_embeddings(model, rows, **options, route=route)


@rq.endpoint(kind=("dense", "late"), example={"inputs": "the cat"}, result=rq.many(rq.many(rq.many(NUMBER))), **READ)
async def embed_all(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> list[np.ndarray]:
    """Return the hidden states of each text's tokens, without pooling.

    A late-interaction model returns its document vectors, or query vectors for the `prompt_name` "query".
    """
    rows, route = await _read(body, model, settings)
    what = "vectors" if model.kind == "late" else "tokens"
    return [finite(states) for states in await model.compute(what, rows, route)]


@rq.endpoint(
    kind="sparse",
    example={"inputs": ["the cat sat on the mat"]},
    result=rq.many(rq.many(rq.record(index=INTEGER, value=NUMBER))),
    **READ,
)
async def embed_sparse(
    body: dict[str, Any], model: ServedModel, settings: ServerSettings
) -> list[list[dict[str, Any]]]:
    """Return the vocabulary's tokens with a nonzero weight for each text of `inputs`, and their weights.

    If the model reads queries differently from documents, mark them by the `prompt_name` "query".
    """
    rows, route = await _read(body, model, settings)
    found = await model.compute("words", rows, route)
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
    encoding_format=rq.optional(rq.choice("float", "base64"), "float"),
    dimensions=rq.optional(rq.COUNT),
    user=rq.optional(rq.TEXT),
)
async def openai_embeddings(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> dict[str, Any]:
    """Return the embedding of each text of `input`, of length 1; base64 holds little-endian float32.

    `model` names a served model (404 for any other); the first one answers by default.
    """
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


def listed(inputs: str | list[Any]) -> list[Any]:
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
    pooled = np.stack(await model.compute("pooled", rows, route))
    return finite(model.engine.finished(pooled, normalize, dimensions or width))


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


async def _read(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> tuple[list[Any], str | None]:
    """Return the tokens of the texts of `inputs`, and the Router's route for them."""
    cut, side = settings.cutting(body), side_of(model, body["prompt_name"])
    return await model.tokens(listed(body["inputs"]), **cut, **side), side.get("route")


PAIR = rq.many(rq.TEXT, "one or two strings", maxItems=2)
LABELS = rq.many(rq.record(score=NUMBER, label=rq.TEXT))


@rq.endpoint(
    kind=("classifier", "static"),
    example={"inputs": "the cat sat on the mat"},
    result={"anyOf": [LABELS, rq.many(LABELS)]},
    inputs={
        "anyOf": [rq.TEXT, PAIR, rq.batch(PAIR, "a list of texts and pairs")],
        "description": "a string, a pair of strings, or a list of lists of one or two strings",
    },
    **rq.CUT,
    raw_scores=rq.optional(rq.FLAG, False),
)
async def predict(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> list[Any]:
    """Return the labels of a text, a pair ([text, text]), or each of several ([[text], [text, text]]).

    The most probable label comes first. The model's config decides how scores follow from logits
    (`published_function`): softmax, sigmoid for one label or for texts with several labels, none for regression.
    With `raw_scores` they are the logits. A static model with a head classifies single texts.
    """
    inputs = body["inputs"]
    rows = [(inputs,)] if isinstance(inputs, str) else [inputs] if isinstance(inputs[0], str) else inputs
    _, scores = await _logits(model, [tuple(row) for row in rows], "inputs[{}]", settings.cutting(body))
    if model.head is not None:
        scores = scores if body["raw_scores"] else model.head.shares(scores)
    elif not body["raw_scores"]:
        config = model.engine.model.config
        scores = FUNCTIONS[published_function(config.get("problem_type"), scores.shape[1])](scores)
    names = model.labels
    answers = [[{"score": float(row[n]), "label": names[n]} for n in _best_first(row)] for row in scores]
    return answers if rows is inputs else answers[0]


def _reranker(models: Models, name: str | None) -> ServedModel:
    if name is None:
        name = next((each.name for each in models.all if _ranks(each)), None)
    model = models.of_kind(("classifier", "late"), name)
    if not _ranks(model):
        raise rq.unsupported(f"{model.name} has {len(model.labels)} labels; a reranker has one")
    return model


def _ranks(model: ServedModel) -> bool:
    return model.kind == "late" or (model.kind == "classifier" and len(model.labels) == 1)


@rq.endpoint(
    kind=_reranker,
    example={"query": "what is a cat", "texts": ["an animal", "a train"], "return_text": True},
    result=rq.many(rq.record(index=INTEGER, score=NUMBER, text=rq.optional(rq.TEXT))),
    query=rq.TEXT,
    texts=rq.TEXTS,
    **rq.CUT,
    raw_scores=rq.optional(rq.FLAG, False),
    return_text=rq.optional(rq.FLAG, False),
)
async def rerank(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> list[dict[str, Any]]:
    """Return the texts ordered by relevance to the query; scores are the sigmoid of logits unless `raw_scores`.

    A late-interaction model's scores are its similarities.
    """
    texts, cut = body["texts"], settings.cutting(body)
    _, scores = await _relevance(model, body["query"], texts, "texts[{}]", cut, is_raw=body["raw_scores"])
    order, shown = _best_first(scores), body["return_text"]
    return [{"index": n, "score": float(scores[n])} | ({"text": texts[n]} if shown else {}) for n in order]


def _documents(return_documents: bool) -> Any:
    """Declare Jina's or Cohere's interface, which differ in whether documents are returned by default."""
    document = {"anyOf": [rq.TEXT, rq.record(text=rq.TEXT)], "description": "a string or an object with text"}
    return rq.endpoint(
        kind=_reranker,
        example={"query": "what is a cat", "documents": ["an animal", "a train"], "top_n": 1},
        result=rq.record(
            id=rq.TEXT,
            model=rq.TEXT,
            results=rq.many(
                rq.record(index=INTEGER, relevance_score=NUMBER, document=rq.record(text=rq.TEXT) | {"default": None})
            ),
            usage=USAGE,
            meta=rq.record(tokens=rq.record(input_tokens=INTEGER)),
        ),
        query=rq.FILLED,
        documents=rq.batch(document, "a list of strings or of objects with text"),
        top_n=rq.optional(rq.COUNT),
        return_documents=rq.optional(rq.FLAG, return_documents),
    )


async def _ranked_documents(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> dict[str, Any]:
    """Return the `top_n` documents most relevant to the query, best first; long ones are cut."""
    texts = [document if isinstance(document, str) else document["text"] for document in body["documents"]]
    rows, scores = await _relevance(model, body["query"], texts, "documents[{}]", {"truncate": True})
    count = usage(rows)
    results: list[dict[str, Any]] = []
    for index in _best_first(scores)[: body["top_n"]]:
        document = {"document": {"text": texts[index]}} if body["return_documents"] else {}
        results.append({"index": index, "relevance_score": float(scores[index]), **document})
    meta = {"tokens": {"input_tokens": count["prompt_tokens"]}}
    return {"id": str(uuid.uuid4()), "model": model.name, "results": results, "usage": count, "meta": meta}


jina_rerank = _documents(return_documents=True)(_ranked_documents)
cohere_rerank = _documents(return_documents=False)(_ranked_documents)


@rq.endpoint(
    kind="dense",
    example={"inputs": {"source_sentence": "a cat", "sentences": ["a kitten", "a train"]}},
    result=rq.many(NUMBER),
    inputs=rq.record(source_sentence=rq.FILLED, sentences=rq.FILLED_TEXTS),
    parameters=rq.options(**rq.CUT, **rq.PROMPT),
)
async def similarity(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> np.ndarray:
    """Return the cosine similarity of the source sentence to each of the sentences."""
    inputs, parameters = body["inputs"], body["parameters"]
    cut, prompt = settings.cutting(parameters), prompt_of(model, parameters["prompt_name"])
    names = ["inputs.source_sentence", *(f"inputs.sentences[{index}]" for index in range(len(inputs["sentences"])))]
    texts = [inputs["source_sentence"], *inputs["sentences"]]
    rows = await model.tokens(texts, **cut, prompt=prompt, names=names.__getitem__)
    found = await pooled_embeddings(model, rows, normalize=True, dimensions=None)
    return found[1:] @ found[0]


async def _relevance(
    model: ServedModel, query: str, texts: list[str], name: str, cut: dict[str, Any], *, is_raw: bool = False
) -> tuple[list[Any], np.ndarray]:
    """Return the tokens of query and texts, and the score of each text."""
    if model.kind == "classifier":
        rows, logits = await _logits(model, [(query, text) for text in texts], name, cut)
        return rows, logits[:, 0] if is_raw else sigmoid(logits[:, 0])
    rows = await model.tokens([query], **cut, **side_of(model, "query"), names=lambda index: "query")
    rows += await model.tokens(texts, **cut, **side_of(model, None), names=name.format)
    asked, *found = await model.compute("vectors", rows)
    return rows, finite(model.similarity(asked, found))


async def _logits(
    model: ServedModel, texts: list[tuple[str, ...]], name: str, cut: dict[str, Any]
) -> tuple[list[Any], np.ndarray]:
    for index, row in enumerate(texts):
        if not any(row):
            raise rq.empty(f"{name.format(index)} is empty, expected a text")
        if model.head is not None and len(row) > 1:
            raise rq.invalid(f"{name.format(index)} is a pair, expected one text: {model.name} has static embeddings")
    if model.head is not None:
        rows = await model.tokens([text for (text,) in texts], **cut, names=name.format)
        model.check_answer(len(rows) * sum(SCORE + len(label) for label in model.labels))
        vectors = model.engine.finished(np.stack(await model.compute("pooled", rows)), None, None)
        return rows, finite(model.head.logits(vectors))
    rows = await model.tokens(texts, **cut, names=name.format)
    return rows, finite(np.stack(await model.compute("logits", rows)))


def _best_first(scores: np.ndarray) -> list[int]:
    return np.argsort(-scores, kind="stable").tolist()
