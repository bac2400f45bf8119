"""/v1/embeddings, OpenAI's: {input, model, user, encoding_format, dimensions} -> {object, data, model, usage}."""

import base64
from typing import Any

from bertcore.serving import fields
from bertcore.serving.endpoints.dense import embeddings, prompt_of
from bertcore.serving.errors import invalid
from bertcore.serving.models import Models
from bertcore.serving.settings import ServerSettings

FORMATS = ("float", "base64")


async def answer(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """The embedding of each text of `input`, of length 1; in base64 the bytes of little-endian float32.

    `model` is the name of one that is served here (404 for another); without it the first one answers.
    """
    model = models.of_kind("dense", fields.text(body, "model", None))
    texts = fields.one_or_more(body, "input", settings.max_client_batch_size)
    form = fields.text(body, "encoding_format", "float")
    if form not in FORMATS:
        raise invalid(f"encoding_format is {form!r}, expected one of {', '.join(FORMATS)}")
    fields.text(body, "user", None)
    dimensions = fields.count(body, "dimensions")
    truncate, prompt = settings.auto_truncate, prompt_of(model, {})
    rows = await model.tokens(texts, truncate=truncate, prompt=prompt, name="input")
    found = await embeddings(model, rows, normalize=True, dimensions=dimensions)
    data = [
        {"object": "embedding", "embedding": row if form == "float" else _base64(row), "index": index}
        for index, row in enumerate(found)
    ]
    tokens = sum(map(len, rows))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model.name, "usage": usage}


def _base64(row: Any) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")
