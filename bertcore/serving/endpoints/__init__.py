"""The endpoints, a module for each: what a request's object asks for, and the answer."""

from . import (
    embed,
    embed_all,
    embed_sparse,
    health,
    metrics,
    openai_embeddings,
    openai_models,
    page,
    predict,
    rerank,
    similarity,
)

# POST: an async function of the request's object, the models and the settings gives the answer, as JSON.
ENDPOINTS = {
    "/embed": embed.answer,
    "/embed_all": embed_all.answer,
    "/embed_sparse": embed_sparse.answer,
    "/predict": predict.answer,
    "/rerank": rerank.answer,
    "/similarity": similarity.answer,
    "/v1/embeddings": openai_embeddings.answer,
}

# GET: likewise, of the parts of the path that have names.
LISTS = {"/v1/models": openai_models.answer, "/v1/models/{model:path}": openai_models.answer}

# GET: a function of the models and the metrics gives the response; no key is needed.
PAGES = {"/": page.response, "/health": health.response, "/metrics": metrics.response}
