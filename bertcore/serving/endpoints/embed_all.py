"""/embed_all: {inputs, truncate, truncation_direction, prompt_name} -> [[[number]]], of each token."""

from typing import Any

from bertcore.serving import fields
from bertcore.serving.endpoints.dense import prompt_of
from bertcore.serving.models import Models, finite
from bertcore.serving.settings import ServerSettings


async def answer(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """The hidden states of the tokens of each text of `inputs`, nothing pooled."""
    model = models.of_kind("dense")
    texts = fields.one_or_more(body, "inputs", settings.max_client_batch_size)
    truncate, prompt = fields.truncation(body, settings.auto_truncate), prompt_of(model, body)
    rows = await model.tokens(texts, truncate=truncate, prompt=prompt, name="inputs")
    return [finite(states) for states in await model.compute("tokens", rows)]
