"""Endpoints of tokens, entities, masked words and attention, and about the served models.

They are text-embeddings-inference's /info, /tokenize and /decode, OpenAI's list, and Hugging Face's
token-classification and fill-mask.
"""

import asyncio
import os
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import bertcore
from bertcore.serving import requests as rq
from bertcore.serving.batcher import checked_schema, read_marked
from bertcore.serving.embeddings import INTEGER, NUMBER, listed, prompt_of
from bertcore.serving.embeddings import LABELS as SCORED_LABELS
from bertcore.serving.models import TOKEN, Models, ServedModel, finite
from bertcore.serving.requests import ServerSettings
from bertcore.tasks.pipelines.spans import STRATEGIES

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
)
async def tokenize(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> list[list[dict[str, Any]]]:
    """Return all tokens of each text of `inputs`, with the bytes that they stand for."""
    texts = model.prepared(listed(body["inputs"]), prompt_of(model, body["prompt_name"]))
    model.check_answer(TOKEN * sum(len(text.encode()) for text in texts))  # a token has at least one byte
    options = {"add_special_tokens": body["add_special_tokens"]}
    found = await asyncio.to_thread(model.tokenizer, texts, **options)
    return [described(text, encoding) for text, encoding in zip(texts, found.encodings, strict=True)]


def described(text: str, encoding: "Encoding") -> list[dict[str, Any]]:
    """Return the tokens of a text with the bytes that they stand for."""
    if text.isascii():
        bytes_before: range | list[int] = range(len(text) + 1)
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
)
async def decode(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> list[str]:
    """Return the text of each list of token ids."""
    rows = listed(body["ids"])
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
)
async def info(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> dict[str, Any]:
    """Return the kind and sizes of the model named `model` (the first by default), and the server's limits."""
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
    if model.head is not None:
        return "classifier"
    return str(model.pipeline.task) if model.kind == "marked" else TASKS.get(model.kind, model.kind)


ONE = rq.record(
    **dict.fromkeys(("id", "object", "owned_by", "task"), rq.TEXT),
    **dict.fromkeys(("created", "layers", "heads"), INTEGER),
    mask_token=rq.TEXT | {"type": ["string", "null"]},
)


def _named(models: Models, name: str | None) -> list[ServedModel]:
    return models.all if name is None else [models.of_kind(None, name)]


async def _openai_models(body: dict[str, Any], models: list[ServedModel], settings: ServerSettings) -> dict[str, Any]:
    """Return the served models, or the one named `model` (404 if there is no such model).

    Beside OpenAI's members: a model's task, its numbers of layers and of heads in a layer, and its mask token.
    """
    data = []
    for model in models:
        about = {"id": model.name, "object": "model", "created": model.loaded_at, "owned_by": "bertcore"}
        about |= {"task": task_of(model), "mask_token": model.tokenizer.mask_token, "layers": len(model.layers)}
        data.append(about | {"heads": model.layers[0].num_heads if model.layers else 0})
    return data[0] if "model" in body else {"object": "list", "data": data}


MANY = rq.record(object=rq.TEXT, data=rq.many(ONE))
openai_models = rq.Endpoint(_openai_models, choose=_named, body=rq.record(), result=MANY, example={})
openai_model = rq.Endpoint(_openai_models, choose=_named, body=rq.record(), result=ONE, example={})


MOST_TOKENS = 128  # of a text for /attention, whose answer grows with their square
INPUTS = {"anyOf": [rq.FILLED, rq.FILLED_TEXTS], "description": "a string or a list of strings"}
NAMES = rq.many(rq.TEXT, maxItems=1000) | {"description": "a list of at most 1000 strings"}
FOUND = {"score": NUMBER, "word": rq.TEXT, "start": INTEGER, "end": INTEGER}
NAMED = dict.fromkeys(("entity_group", "entity"), rq.optional(rq.TEXT))
ENTITIES = rq.many(rq.record(**FOUND, **NAMED, index=rq.optional(INTEGER)))
LABELS = rq.many(rq.FILLED | {"maxLength": 200}, "a list of at most 100 labels of at most 200 characters", maxItems=100)
LABELS["items"]["description"] = "a string of at most 200 characters"
LABELLED = rq.many(rq.record(start=INTEGER, end=INTEGER, text=rq.TEXT, label=rq.TEXT, score=NUMBER))
WORDS = rq.many(rq.record(score=NUMBER, token=INTEGER, token_str=rq.TEXT, sequence=rq.TEXT))


async def _piped(
    body: dict[str, Any], model: ServedModel, settings: ServerSettings, options: dict[str, Any]
) -> list[Any]:
    """Return the answers of the model's pipeline to the texts of `inputs`, called with these options."""
    options = dict(options)
    truncate = settings.auto_truncate if options["truncate"] is None else options["truncate"]
    del options["truncate"]
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    model.check_read(sum(map(len, options.get("targets") or ())), "characters")
    try:
        await asyncio.to_thread(model.pipeline, iter(()), **options)  # checks the options
    except ValueError as error:
        raise rq.invalid(f"parameters: {error}" if "parameters" in body else str(error)) from error
    return await _answered(model, body["inputs"], truncate, options)


async def _answered(model: ServedModel, inputs: str | list[str], truncate: bool, options: dict[str, Any]) -> Any:
    texts = [inputs] if isinstance(inputs, str) else inputs
    names = ("inputs" if isinstance(inputs, str) else "inputs[{}]").format
    found = await model.compute("answers", await model.jobs(texts, truncate=truncate, names=names, **options))
    return found[0] if isinstance(inputs, str) else found


@rq.endpoint(
    kind="tagger",
    example={"inputs": "Ada Lovelace lived in London"},
    result={"anyOf": [ENTITIES, rq.many(ENTITIES)]},
    inputs=INPUTS,
    parameters=rq.options(
        aggregation_strategy=rq.optional(rq.choice(*STRATEGIES), "simple"),
        ignore_labels=rq.optional(NAMES, ["O"]),
        truncate=rq.optional(rq.FLAG),
    ),
)
async def token_classification(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> list[Any]:
    """Return the entities of each text of `inputs`, with the characters at which they start and end.

    As in Hugging Face's inference API, the aggregation strategy "none" returns tokens (`entity`) instead of entities
    (`entity_group`), and labels in `ignore_labels` are left out.
    """
    return await _piped(body, model, settings, body["parameters"])


@rq.endpoint(
    kind="gliner",
    example={"inputs": "Ada Lovelace lived in London", "labels": ["person", "city"]},
    result={"anyOf": [LABELLED, rq.many(LABELLED)]},
    inputs=INPUTS,
    labels=LABELS,
    threshold=rq.optional(rq.SHARE, 0.5),
    flat_ner=rq.optional(rq.FLAG, True),
    multi_label=rq.optional(rq.FLAG, False),
    truncate=rq.optional(rq.FLAG),
)
async def predict_entities(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> list[Any]:
    """Return the entities with these labels in each text of `inputs`, with their first characters and last + 1.

    As in GLiNER's `predict_entities`, scores are above `threshold`; without `flat_ner` an entity may lie within
    another, and with `multi_label` one may have several labels.
    """
    names = ("labels", "threshold", "flat_ner", "multi_label", "truncate")
    return await _piped(body, model, settings, {name: body[name] for name in names})


ANY = {"type": "object", "description": "an object"}


@rq.endpoint(
    kind="extractor",
    example={"inputs": "Ada Lovelace lived in London", "schema": {"entities": ["person"], "relations": ["lived in"]}},
    result={"anyOf": [ANY, rq.many(ANY)]},
    inputs=INPUTS,
    schema=ANY,
    threshold=rq.optional(rq.SHARE, 0.5),
    include_confidence=rq.optional(rq.FLAG, False),
    include_spans=rq.optional(rq.FLAG, False),
    truncate=rq.optional(rq.FLAG),
)
async def extract(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> dict[str, Any] | list[Any]:
    """Return what `schema` describes in each text of `inputs`: entities, relations, records and classes.

    Schemas and results are those of the package gliner2: its members are entities, relations, structures and
    classifications. At most 1,000 names and values, 20,000 characters, and 40 fields of records and ends of relations.
    """
    options = {"schemas": checked_schema(body["schema"])} | {
        name: body[name] for name in ("threshold", "include_confidence", "include_spans")
    }
    truncate = settings.auto_truncate if body["truncate"] is None else body["truncate"]
    return await _answered(model, body["inputs"], truncate, options)


@rq.endpoint(
    kind="masked",
    example={"inputs": "The cat sat on the [MASK]."},
    result={"anyOf": [WORDS, rq.many(WORDS), rq.many(rq.many(WORDS))]},
    inputs=INPUTS,
    parameters=rq.options(
        top_k=rq.optional(rq.COUNT, 5), targets=rq.optional(NAMES | {"minItems": 1}), truncate=rq.optional(rq.FLAG)
    ),
)
async def fill_mask(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> list[Any]:
    """Return the `top_k` most probable words for the mask in each text of `inputs`, and the text with each.

    As in Hugging Face's inference API, a text with several masks gets a list for each; `targets` are the words to
    choose from.
    """
    return await _piped(body, model, settings, body["parameters"])


PLACES = rq.many(INTEGER | {"description": "the index of a character"}, "the first and the last + 1 character")
MARKED = rq.record(text=rq.FILLED, spans=rq.many(PLACES, "a list of [first, last + 1] characters"))


@rq.endpoint(
    kind="marked",
    example={"inputs": {"text": "Ada Lovelace lived in London", "spans": [[0, 12], [22, 28]]}},
    result={"anyOf": [SCORED_LABELS, rq.many(SCORED_LABELS)]},
    inputs={"anyOf": [MARKED, rq.batch(MARKED, "a list of objects with text and spans")],
            "description": "an object with text and spans, or a list of them"},
    parameters=rq.options(top_k=rq.optional(rq.COUNT)),
)  # fmt: skip
async def entity_classification(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> list[Any]:
    """Return the types of the entity at a text's span, or the relations of the two at its spans, best first.

    A relation's spans are the head and the tail, in characters. `top_k` is the most labels returned; all by default.
    """
    inputs = body["inputs"]
    given = [inputs] if isinstance(inputs, dict) else inputs
    names = ("inputs" if given is not inputs else "inputs[{}]").format
    top_k = body["parameters"]["top_k"] or len(model.labels)
    model.check_read(sum(len(each["text"]) for each in given), "characters")
    jobs = await asyncio.to_thread(read_marked, model, given, names=names, top_k=top_k)
    found = await model.compute("answers", jobs)
    return found if given is inputs else found[0]


@rq.endpoint(
    kind=None,
    example={"inputs": "the cat sat on the mat", "layer": 1},
    result=rq.record(
        tokens=TOKENS, weights=rq.many(rq.many(NUMBER)), layer=INTEGER, head={"type": ["integer", "null"]}
    ),
    inputs=rq.FILLED,
    layer=rq.optional(rq.COUNT),
    head=rq.optional(rq.COUNT),
    **rq.PROMPT,
)
async def attention(body: dict[str, Any], model: ServedModel, settings: ServerSettings) -> dict[str, Any]:
    """Return the attention probabilities of a short text: for each token a row of probabilities.

    Layers and heads are counted from 1; the default is the last layer and the mean of its heads.
    """
    head, layers = body["head"], model.layers
    if not layers:
        raise rq.unsupported(f"{model.name} has no attention")
    layer = body["layer"] or len(layers)
    if layer > len(layers):
        raise rq.invalid(f"layer is {layer}, expected 1 to {len(layers)}")
    if head is not None and head > layers[layer - 1].num_heads:
        raise rq.invalid(f"head is {head}, expected 1 to {layers[layer - 1].num_heads}")
    texts = model.prepared([body["inputs"]], prompt_of(model, body["prompt_name"]))
    most = min(MOST_TOKENS, model.max_seq_length)
    jobs = await model.jobs(texts, truncate=False, most=most, names="inputs".format, layer=layer, head=head)
    (weights,) = await model.compute("attention", jobs)
    encoded = model.tokenizer(jobs[0].text).encodings[0]
    return {"tokens": described(jobs[0].text, encoded), "weights": finite(weights), "layer": layer, "head": head}
