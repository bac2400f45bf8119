"""Endpoints about the served models: text-embeddings-inference's /info, /tokenize and /decode; OpenAI's list."""

import asyncio
import os
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import bertcore
from bertcore.serving import requests as rq
from bertcore.serving.embeddings import INTEGER, listed, prompt_of
from bertcore.serving.models import TOKEN, Models, ServedModel
from bertcore.serving.settings import ServerSettings

if TYPE_CHECKING:
    from tokenizers import Encoding

NULL = {"type": "null"}
PLACE = INTEGER | {"type": ["integer", "null"]}
TOKENS = rq.many(rq.record(id=INTEGER, text=rq.TEXT, special=rq.FLAG, start=PLACE, stop=PLACE))


@rq.endpoint(
    kind=None,
    example={"inputs": "the cat"},
    result=rq.many(TOKENS),
    inputs={"anyOf": [rq.FILLED, rq.FILLED_TEXTS], "description": "a string or a list of strings"},
    add_special_tokens=rq.optional(rq.FLAG, True),
    **rq.PROMPT,
    **rq.MODEL,
)
async def tokenize(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return all tokens of each text of `inputs`, with the bytes that they stand for."""
    model = models.of_kind(None, body["model"])
    texts = model.prepared(listed(body["inputs"]), prompt_of(model, body["prompt_name"]))
    model.check_answer(TOKEN * sum(len(text.encode()) for text in texts))  # a token has at least one byte
    options = {"add_special_tokens": body["add_special_tokens"]}
    found = await asyncio.to_thread(model.tokenizer, texts, **options)
    return [described(text, encoding) for text, encoding in zip(texts, found.encodings, strict=True)]


def described(text: str, encoding: "Encoding") -> list[dict[str, Any]]:
    """Return the tokens of a text with the bytes that they stand for."""
    if text.isascii():
        bytes_before: Any = range(len(text) + 1)
    else:
        bytes_before = list(accumulate((len(character.encode()) for character in text), initial=0))
    columns = (encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets)
    found = []
    for number, token, special, (start, stop) in zip(*columns, strict=True):
        part, ends = (token, (None, None)) if special else (text[start:stop], (bytes_before[start], bytes_before[stop]))
        found.append({"id": number, "text": part, "special": bool(special), "start": ends[0], "stop": ends[1]})
    return found


@rq.endpoint(
    kind=None,
    example={"ids": [5, 6, 7]},
    result=rq.many(rq.TEXT),
    ids={
        "anyOf": [rq.IDS, rq.batch(rq.IDS, "lists of token ids")],
        "description": "a list of token ids, or a list of these",
    },
    skip_special_tokens=rq.optional(rq.FLAG, True),
    **rq.MODEL,
)
async def decode(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the text of each list of token ids."""
    model, rows = models.of_kind(None, body["model"]), listed(body["ids"])
    model.check_read(count := sum(map(len, rows)), "token ids")
    model.check_answer(count * model.longest_token)
    try:
        return await asyncio.to_thread(model.tokenizer.decode, rows, body["skip_special_tokens"])
    except ValueError as error:
        raise rq.unknown_token(str(error)) from error


LABEL_IDS = {"id2label": {"type": "object"}, "label2id": {"type": "object"}}
KINDS = {
    "embedding": rq.record(pooling=rq.TEXT),
    **dict.fromkeys(
        ("classifier", "reranker", "token-classification", "entity-classification", "relation-extraction"),
        rq.record(**LABEL_IDS),
    ),
    "zero-shot-ner": rq.record(max_words=INTEGER),
    "fill-mask": rq.record(mask_token=rq.TEXT),
}
LIMITS = ("max_concurrent_requests", "max_batch_tokens", "max_client_batch_size", "auto_truncate")
UNKNOWN = ("model_sha", "max_batch_requests", "sha", "docker_label")


@rq.endpoint(
    kind=None,
    example={},
    result=rq.record(
        **dict.fromkeys(("model_id", "model_dtype", "served_model_name", "version"), rq.TEXT),
        **dict.fromkeys((*LIMITS[:-1], "max_input_length", "tokenization_workers"), INTEGER),
        **dict.fromkeys(UNKNOWN, NULL),
        model_type={"anyOf": [rq.record(**{name: kind}) for name, kind in KINDS.items()]},
        auto_truncate=rq.FLAG,
    ),
    **rq.MODEL,
)
async def info(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the kind and sizes of the model named `model` (the first by default), and the server's limits."""
    model = models.of_kind(None, body["model"])
    kind = task_of(model)
    if kind == "fill-mask":
        about: dict[str, Any] = {"mask_token": model.tokenizer.mask_token}
    elif kind == "zero-shot-ner":
        about = {"max_words": model.engine.gliner.max_words}
    elif kind == "sparse":
        kind, about = "embedding", {"pooling": "splade"}
    elif model.kind == "late":
        kind, about = "embedding", {"pooling": model.engine.similarity_fn_name}
    elif kind == "embedding":
        about = {"pooling": "+".join(model.engine.settings.pooling)}
    else:
        names = {str(index): name for index, name in enumerate(model.labels)}
        about = {"id2label": names, "label2id": {name: int(index) for index, name in names.items()}}
    return {
        **dict.fromkeys(UNKNOWN),
        **{name: getattr(settings, name) for name in LIMITS},
        "model_id": model.name,
        "model_dtype": model.engine.model.dtype,
        "served_model_name": model.name,
        "model_type": {kind: about},
        "max_input_length": model.max_seq_length,
        "tokenization_workers": os.cpu_count() or 1,
        "version": bertcore.__version__,
    }


TASKS = {  # others by their own kinds
    "dense": "embedding", "late": "late-interaction", "tagger": "token-classification", "gliner": "zero-shot-ner",
    "masked": "fill-mask",
}  # fmt: skip


def task_of(model: ServedModel) -> str:
    """Return the public name of a model's kind."""
    if model.kind == "classifier" and len(model.labels) == 1:
        return "reranker"
    return str(model.pipeline.task) if model.kind == "marked" else TASKS.get(model.kind, model.kind)


ONE = rq.record(
    **dict.fromkeys(("id", "object", "owned_by", "task"), rq.TEXT),
    **dict.fromkeys(("created", "layers", "heads"), INTEGER),
    mask_token=rq.TEXT | {"type": ["string", "null"]},
)


async def _openai_models(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the served models, or the one named `model` (404 if there is no such model).

    Beside OpenAI's members: a model's task, its numbers of layers and of heads in a layer, and its mask token.
    """
    found = models.all if "model" not in body else [models.of_kind(None, body["model"])]
    data = []
    for model in found:
        about = {"id": model.name, "object": "model", "created": model.loaded_at, "owned_by": "bertcore"}
        about |= {"task": task_of(model), "mask_token": model.tokenizer.mask_token, "layers": len(model.layers)}
        data.append(about | {"heads": model.layers[0].num_heads if model.layers else 0})
    return data[0] if "model" in body else {"object": "list", "data": data}


openai_models = rq.endpoint(kind=None, example={}, result=rq.record(object=rq.TEXT, data=rq.many(ONE)))(_openai_models)
openai_model = rq.endpoint(kind=None, example={}, result=ONE)(_openai_models)
