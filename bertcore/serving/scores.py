"""Endpoints of scores: text-embeddings-inference's /predict, /rerank and /similarity; Jina's and Cohere's rerank."""

import uuid
from typing import Any

import numpy as np

from bertcore.serving import requests as rq
from bertcore.serving.embeddings import INTEGER, NUMBER, USAGE, pooled_embeddings, prompt_of, side_of, usage
from bertcore.serving.models import Models, ServedModel, finite
from bertcore.serving.settings import ServerSettings
from bertcore.tasks.sequence_scores import FUNCTIONS, published_function, sigmoid

PAIR = rq.many(rq.TEXT, "one or two strings", maxItems=2)
LABELS = rq.many(rq.record(score=NUMBER, label=rq.TEXT))


@rq.endpoint(
    kind="classifier",
    example={"inputs": "the cat sat on the mat"},
    result={"anyOf": [LABELS, rq.many(LABELS)]},
    inputs={
        "anyOf": [rq.TEXT, PAIR, rq.batch(PAIR, "a list of texts and pairs")],
        "description": "a string, a pair of strings, or a list of lists of one or two strings",
    },
    **rq.CUT,
    **rq.MODEL,
    raw_scores=rq.optional(rq.FLAG, False),
)
async def predict(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the labels of a text, a pair ([text, text]), or each of several ([[text], [text, text]]).

    The most probable label comes first. The model's config decides how scores follow from logits
    (`published_function`): softmax, sigmoid for one label or for texts with several labels, none for regression.
    With `raw_scores` they are the logits.
    """
    model, inputs = models.of_kind("classifier", body["model"]), body["inputs"]
    rows = [(inputs,)] if isinstance(inputs, str) else [inputs] if isinstance(inputs[0], str) else inputs
    _, scores = await _logits(model, [tuple(row) for row in rows], "inputs[{}]", settings.cutting(body))
    if not body["raw_scores"]:
        config = model.engine.model.config
        scores = FUNCTIONS[published_function(config.get("problem_type"), scores.shape[1])](scores)
    names = model.labels
    answers = [[{"score": float(row[n]), "label": names[n]} for n in _best_first(row)] for row in scores]
    return answers if rows is inputs else answers[0]


RERANKERS = ("classifier", "late")


@rq.endpoint(
    kind=RERANKERS,
    example={"query": "what is a cat", "texts": ["an animal", "a train"], "return_text": True},
    result=rq.many(rq.record(index=INTEGER, score=NUMBER, text=rq.optional(rq.TEXT))),
    query=rq.TEXT,
    texts=rq.TEXTS,
    **rq.CUT,
    **rq.MODEL,
    raw_scores=rq.optional(rq.FLAG, False),
    return_text=rq.optional(rq.FLAG, False),
)
async def rerank(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the texts ordered by relevance to the query; scores are the sigmoid of logits unless `raw_scores`.

    A late-interaction model's scores are its similarities.
    """
    model, texts, cut = _reranker(models, body["model"]), body["texts"], settings.cutting(body)
    _, scores = await _relevance(model, body["query"], texts, "texts[{}]", cut, is_raw=body["raw_scores"])
    order, shown = _best_first(scores), body["return_text"]
    return [{"index": n, "score": float(scores[n])} | ({"text": texts[n]} if shown else {}) for n in order]


def _documents(return_documents: bool) -> Any:
    """Declare Jina's or Cohere's interface, which differ in whether documents are returned by default."""
    document = {"anyOf": [rq.TEXT, rq.record(text=rq.TEXT)], "description": "a string or an object with text"}
    return rq.endpoint(
        kind=RERANKERS,
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
        **rq.MODEL,
        top_n=rq.optional(rq.COUNT),
        return_documents=rq.optional(rq.FLAG, return_documents),
    )


async def _ranked_documents(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the `top_n` documents most relevant to the query, best first; long ones are cut."""
    model = _reranker(models, body["model"])
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
    **rq.MODEL,
)
async def similarity(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the cosine similarity of the source sentence to each of the sentences."""
    model, inputs, parameters = models.of_kind("dense", body["model"]), body["inputs"], body["parameters"]
    cut, prompt = settings.cutting(parameters), prompt_of(model, parameters["prompt_name"])
    names = ["inputs.source_sentence", *(f"inputs.sentences[{index}]" for index in range(len(inputs["sentences"])))]
    texts = [inputs["source_sentence"], *inputs["sentences"]]
    rows = await model.tokens(texts, **cut, prompt=prompt, names=names.__getitem__)
    found = await pooled_embeddings(model, rows, normalize=True, dimensions=None)
    return found[1:] @ found[0]


def _reranker(models: Models, name: str | None) -> ServedModel:
    model = models.of_kind(RERANKERS, name)
    if model.kind == "classifier" and model.engine.num_labels != 1:
        raise rq.unsupported(f"{model.name} has {model.engine.num_labels} labels; a reranker has one")
    return model


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
    rows = await model.tokens(texts, **cut, names=name.format)
    return rows, finite(np.stack(await model.compute("logits", rows)))


def _best_first(scores: np.ndarray) -> list[int]:
    return np.argsort(-scores, kind="stable").tolist()
