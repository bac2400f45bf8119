"""Endpoints of words in their text: Hugging Face's token-classification and fill-mask, and attention."""

import asyncio
from typing import Any

from bertcore.serving.embeddings import INTEGER, NUMBER, prompt_of
from bertcore.serving.information import TOKENS, described
from bertcore.serving.models import Models, ServerSettings, finite
from bertcore.serving.requests import (
    COUNT,
    FILLED,
    FILLED_TEXTS,
    FLAG,
    MODEL,
    PROMPT,
    SHARE,
    TEXT,
    batch,
    choice,
    endpoint,
    invalid,
    many,
    optional,
    record,
    unsupported,
)
from bertcore.serving.scores import LABELS as SCORED_LABELS
from bertcore.tasks.pipelines.spans import STRATEGIES

MOST_TOKENS = 128  # of a text whose attention is asked for: the answer grows with their square
INPUTS = {"anyOf": [FILLED, FILLED_TEXTS], "description": "a string or a list of strings"}
NAMES = many(TEXT, maxItems=1000) | {"description": "a list of at most 1000 strings"}
PLACE = {"score": NUMBER, "word": TEXT, "start": INTEGER, "end": INTEGER}
ENTITIES = many(record(**PLACE, entity_group=optional(TEXT), entity=optional(TEXT), index=optional(INTEGER)))
LABELS = many(FILLED | {"maxLength": 200}, "a list of at most 100 labels of at most 200 characters", maxItems=100)
LABELS["items"]["description"] = "a string of at most 200 characters"
LABELLED = many(record(start=INTEGER, end=INTEGER, text=TEXT, label=TEXT, score=NUMBER))
WORDS = many(record(score=NUMBER, token=INTEGER, token_str=TEXT, sequence=TEXT))


async def _piped(
    kind: str, body: dict[str, Any], models: Models, settings: ServerSettings, options: dict[str, Any]
) -> Any:
    """Return the answers of the pipeline of this kind to the texts of `inputs`; options are those of its call."""
    model, inputs, options = models.of_kind(kind, body["model"]), body["inputs"], dict(options)
    truncate = settings.auto_truncate if options["truncate"] is None else options["truncate"]
    del options["truncate"]
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    model.check_read(sum(map(len, options.get("targets") or ())), "characters")
    try:
        await asyncio.to_thread(model.pipeline, iter(()), **options)  # which checks the options
    except ValueError as error:
        raise invalid(f"parameters: {error}" if "parameters" in body else str(error)) from error
    texts = [inputs] if isinstance(inputs, str) else inputs
    names = ("inputs" if isinstance(inputs, str) else "inputs[{}]").format
    found = await model.compute("answers", await model.jobs(texts, truncate=truncate, names=names, **options))
    return found[0] if isinstance(inputs, str) else found


@endpoint(
    kind="tagger",
    example={"inputs": "Ada Lovelace lived in London"},
    result={"anyOf": [ENTITIES, many(ENTITIES)]},
    inputs=INPUTS,
    parameters=optional(
        record(
            aggregation_strategy=optional(choice(*STRATEGIES), "simple"),
            ignore_labels=optional(NAMES, ["O"]),
            truncate=optional(FLAG),
        ),
        {},
    ),
    **MODEL,
)
async def token_classification(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the entities of each text of `inputs`, with the characters at which they start and end.

    As Hugging Face's inference API: with the aggregation strategy "none" tokens (`entity`) instead of entities
    (`entity_group`), without the labels `ignore_labels`.
    """
    return await _piped("tagger", body, models, settings, body["parameters"])


@endpoint(
    kind="gliner",
    example={"inputs": "Ada Lovelace lived in London", "labels": ["person", "city"]},
    result={"anyOf": [LABELLED, many(LABELLED)]},
    inputs=INPUTS,
    labels=LABELS,
    threshold=optional(SHARE, 0.5),
    flat_ner=optional(FLAG, True),
    multi_label=optional(FLAG, False),
    truncate=optional(FLAG),
    **MODEL,
)
async def predict_entities(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the entities of the kinds `labels` in each text of `inputs`, with their first characters and last + 1.

    As GLiNER's `predict_entities`: scores are above `threshold`; `flat_ner` false lets an entity lie within another,
    and `multi_label` lets one have several labels.
    """
    names = ("labels", "threshold", "flat_ner", "multi_label", "truncate")
    return await _piped("gliner", body, models, settings, {name: body[name] for name in names})


@endpoint(
    kind="masked",
    example={"inputs": "The cat sat on the [MASK]."},
    result={"anyOf": [WORDS, many(WORDS), many(many(WORDS))]},
    inputs=INPUTS,
    parameters=optional(
        record(top_k=optional(COUNT, 5), targets=optional(NAMES | {"minItems": 1}), truncate=optional(FLAG)), {}
    ),
    **MODEL,
)
async def fill_mask(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the `top_k` most probable words for the mask of each text of `inputs`, and the text with each.

    As Hugging Face's inference API: a text with several masks gets a list for each; `targets` are the words to choose
    from.
    """
    return await _piped("masked", body, models, settings, body["parameters"])


PLACES = many(INTEGER | {"description": "the number of a character"}, "the first and the last + 1 character")
MARKED = record(text=FILLED, spans=many(PLACES, "a list of [first, last + 1] characters"))


@endpoint(
    kind="marked",
    example={"inputs": {"text": "Ada Lovelace lived in London", "spans": [[0, 12], [22, 28]]}},
    result={"anyOf": [SCORED_LABELS, many(SCORED_LABELS)]},
    inputs={"anyOf": [MARKED, batch(MARKED, "a list of objects of text and spans")],
            "description": "an object of text and spans, or a list of them"},
    parameters=optional(record(top_k=optional(COUNT)), {}),
    **MODEL,
)  # fmt: skip
async def entity_classification(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return the types of the entity at the span of a text, or the relations of the two at its spans, best first.

    The spans of a relation are the head and the tail, in characters. `top_k` are the most labels; all by default.
    """
    model, inputs = models.of_kind("marked", body["model"]), body["inputs"]
    given = [inputs] if isinstance(inputs, dict) else inputs
    names = ("inputs" if given is not inputs else "inputs[{}]").format
    top_k = body["parameters"]["top_k"] or len(model.labels)
    model.check_read(sum(len(each["text"]) for each in given), "characters")
    found = await model.compute("answers", await model.marked_jobs(given, names=names, top_k=top_k))
    return found if given is inputs else found[0]


@endpoint(
    kind=None,
    example={"inputs": "the cat sat on the mat", "layer": 1},
    result=record(tokens=TOKENS, weights=many(many(NUMBER)), layer=INTEGER, head={"type": ["integer", "null"]}),
    inputs=FILLED,
    layer=optional(COUNT),
    head=optional(COUNT),
    **PROMPT,
    **MODEL,
)
async def attention(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """Return how much each token of a short text attends to each: a row of probabilities for each token.

    Layers and heads are counted from 1: by default the last layer, and the mean of its heads.
    """
    model, head = models.of_kind(None, body["model"]), body["head"]
    layers = model.layers
    if not layers:
        raise unsupported(f"{model.name} has no attention")
    layer = body["layer"] or len(layers)
    if layer > len(layers):
        raise invalid(f"layer is {layer}, expected 1 to {len(layers)}")
    if head is not None and head > layers[layer - 1].num_heads:
        raise invalid(f"head is {head}, expected 1 to {layers[layer - 1].num_heads}")
    texts = model.prepared([body["inputs"]], prompt_of(model, body["prompt_name"]))
    most = min(MOST_TOKENS, model.max_seq_length)
    jobs = await model.jobs(texts, truncate=False, most=most, names="inputs".format, layer=layer, head=head)
    (weights,) = await model.compute("attention", jobs)
    encoded = model.tokenizer(jobs[0].text).encodings[0]
    return {"tokens": described(jobs[0].text, encoded), "weights": finite(weights), "layer": layer, "head": head}
