"""/embed: {inputs, truncate, truncation_direction, prompt_name, normalize, dimensions} -> [[number]]."""

from typing import Any

from bertcore.serving import fields
from bertcore.serving.endpoints.dense import embeddings, prompt_of
from bertcore.serving.models import Models
from bertcore.serving.settings import ServerSettings


async def answer(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """The embedding of each text of `inputs`, of length 1 unless `normalize` is false."""
    model = models.of_kind("dense")
    texts = fields.one_or_more(body, "inputs", settings.max_client_batch_size)
    truncate, prompt = fields.truncation(body, settings.auto_truncate), prompt_of(model, body)
    options = {"normalize": fields.flag(body, "normalize", True), "dimensions": fields.count(body, "dimensions")}
    rows = await model.tokens(texts, truncate=truncate, prompt=prompt, name="inputs")
    return await embeddings(model, rows, **options)
