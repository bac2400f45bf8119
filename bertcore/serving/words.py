"""Endpoints of entities, masked words and attention, with Hugging Face's token-classification and fill-mask."""

import asyncio
from typing import Any

from bertcore.serving import requests as rq
from bertcore.serving.embeddings import INTEGER, NUMBER, prompt_of
from bertcore.serving.information import TOKENS, described
from bertcore.serving.jobs import read_marked
from bertcore.serving.models import Models, finite
from bertcore.serving.scores import LABELS as SCORED_LABELS
from bertcore.serving.settings import ServerSettings
from bertcore.tasks.pipelines.spans import STRATEGIES

MOST_TOKENS = 128  # of a text for /attention, whose answer grows with their square
INPUTS = {"anyOf": [rq.FILLED, rq.FILLED_TEXTS], "description": "a string or a list of strings"}
NAMES = rq.many(rq.TEXT, maxItems=1000) | {"description": "a list of at most 1000 strings"}
PLACE = {"score": NUMBER, "word": rq.TEXT, "start": INTEGER, "end": INTEGER}
NAMED = dict.fromkeys(("entity_group", "entity"), rq.optional(rq.TEXT))
ENTITIES = rq.many(rq.record(**PLACE, **NAMED, index=rq.optional(INTEGER)))
LABELS = rq.many(rq.FILLED | {"maxLength": 200}, "a list of at most 100 labels of at most 200 characters", maxItems=100)
LABELS["items"]["description"] = "a string of at most 200 characters"
LABELLED = rq.many(rq.record(start=INTEGER, end=INTEGER, text=rq.TEXT, label=rq.TEXT, score=NUMBER))
WORDS = rq.many(rq.record(score=NUMBER, token=INTEGER, token_str=rq.TEXT, sequence=rq.TEXT))


async def _piped(
    kind: str, body: dict[str, Any], models: Models, settings: ServerSettings, options: dict[str, Any]
) -> Any:
    """Return the answers of this kind's pipeline to the texts of `inputs`, called with these options."""
    model, inputs, options = models.of_kind(kind, body["model"]), body["inputs"], dict(options)
    truncate = settings.auto_truncate if options["truncate"] is None else options["truncate"]
    del options["truncate"]
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    model.check_read(sum(map(len, options.get("targets") or ())), "characters")
    try:
        await asyncio.to_thread(model.pipeline, iter(()), **options)  # checks the options
    except ValueError as error:
        raise rq.invalid(f"parameters: {error}" if "parameters" in body else str(error)) from error
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
    **rq.MODEL,
)
async def token_classification(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the entities of each text of `inputs`, with the characters at which they start and end.

    As in Hugging Face's inference API, the aggregation strategy "none" returns tokens (`entity`) instead of entities
    (`entity_group`), and labels in `ignore_labels` are left out.
    """
    return await _piped("tagger", body, models, settings, body["parameters"])


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
    **rq.MODEL,
)
async def predict_entities(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the entities with these labels in each text of `inputs`, with their first characters and last + 1.

    As in GLiNER's `predict_entities`, scores are above `threshold`; without `flat_ner` an entity may lie within
    another, and with `multi_label` one may have several labels.
    """
    names = ("labels", "threshold", "flat_ner", "multi_label", "truncate")
    return await _piped("gliner", body, models, settings, {name: body[name] for name in names})


@rq.endpoint(
    kind="masked",
    example={"inputs": "The cat sat on the [MASK]."},
    result={"anyOf": [WORDS, rq.many(WORDS), rq.many(rq.many(WORDS))]},
    inputs=INPUTS,
    parameters=rq.options(
        top_k=rq.optional(rq.COUNT, 5), targets=rq.optional(NAMES | {"minItems": 1}), truncate=rq.optional(rq.FLAG)
    ),
    **rq.MODEL,
)
async def fill_mask(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the `top_k` most probable words for the mask in each text of `inputs`, and the text with each.

    As in Hugging Face's inference API, a text with several masks gets a list for each; `targets` are the words to
    choose from.
    """
    return await _piped("masked", body, models, settings, body["parameters"])


PLACES = rq.many(INTEGER | {"description": "the index of a character"}, "the first and the last + 1 character")
MARKED = rq.record(text=rq.FILLED, spans=rq.many(PLACES, "a list of [first, last + 1] characters"))


@rq.endpoint(
    kind="marked",
    example={"inputs": {"text": "Ada Lovelace lived in London", "spans": [[0, 12], [22, 28]]}},
    result={"anyOf": [SCORED_LABELS, rq.many(SCORED_LABELS)]},
    inputs={"anyOf": [MARKED, rq.batch(MARKED, "a list of objects with text and spans")],
            "description": "an object with text and spans, or a list of them"},
    parameters=rq.options(top_k=rq.optional(rq.COUNT)),
    **rq.MODEL,
)  # fmt: skip
async def entity_classification(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the types of the entity at a text's span, or the relations of the two at its spans, best first.

    A relation's spans are the head and the tail, in characters. `top_k` is the most labels returned; all by default.
    """
    model, inputs = models.of_kind("marked", body["model"]), body["inputs"]
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
    **rq.MODEL,
)
async def attention(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the attention probabilities of a short text: for each token a row of probabilities.

    Layers and heads are counted from 1; the default is the last layer and the mean of its heads.
    """
    model, head = models.of_kind(None, body["model"]), body["head"]
    layers = model.layers
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
