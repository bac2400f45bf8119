"""/similarity: {inputs: {source_sentence, sentences}, parameters} -> [number], cosines."""

from typing import Any

from bertcore.serving import fields
from bertcore.serving.endpoints.dense import embeddings, prompt_of
from bertcore.serving.errors import invalid
from bertcore.serving.models import Models
from bertcore.serving.settings import ServerSettings


async def answer(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """The cosine of the source sentence with each of the sentences."""
    model = models.of_kind("dense")
    inputs, parameters = body.get("inputs"), body.get("parameters") or {}
    for name, value in (("inputs", inputs), ("parameters", parameters)):
        if not isinstance(value, dict):
            raise invalid(f"{name} is no object, expected source_sentence and sentences in inputs")
    source = fields.text(inputs, "source_sentence")
    sentences = fields.texts(inputs, "sentences", settings.max_client_batch_size)
    truncate, prompt = fields.truncation(parameters, settings.auto_truncate), prompt_of(model, parameters)
    rows = await model.tokens([source, *sentences], truncate=truncate, prompt=prompt, name="sentences")
    found = await embeddings(model, rows, normalize=True, dimensions=None)
    return found[1:] @ found[0]
