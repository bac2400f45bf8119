"""/embed_sparse: {inputs, truncate, truncation_direction, prompt_name} -> [[{index, value}]]."""

from typing import Any

from bertcore.serving import fields
from bertcore.serving.endpoints.dense import prompt_of
from bertcore.serving.models import Models, finite
from bertcore.serving.settings import ServerSettings


async def answer(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """The words of each text of `inputs` that have a weight, and their weights."""
    model = models.of_kind("sparse")
    texts = fields.one_or_more(body, "inputs", settings.max_client_batch_size)
    truncate, prompt = fields.truncation(body, settings.auto_truncate), prompt_of(model, body)
    rows = await model.tokens(texts, truncate=truncate, prompt=prompt, name="inputs")
    return [
        [
            {"index": index, "value": value}
            for index, value in zip(words.indices.tolist(), finite(words.values).tolist(), strict=True)
        ]
        for words in await model.compute("words", rows)
    ]
