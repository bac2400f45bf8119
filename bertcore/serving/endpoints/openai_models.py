"""/v1/models and /v1/models/NAME, OpenAI's: {object: "list", data: [{id, object, created, owned_by}]}, or one."""

from typing import Any

from bertcore.serving.errors import no_model
from bertcore.serving.models import Models, ServedModel
from bertcore.serving.settings import ServerSettings


async def answer(body: dict[str, Any], models: Models, settings: ServerSettings) -> Any:
    """The models that are served here, or the one that `model` names (404 for another)."""
    found = {model.name: _described(model) for model in models.all}
    if "model" not in body:
        return {"object": "list", "data": list(found.values())}
    if body["model"] not in found:
        raise no_model(f"no model here is called {body['model']!r}: there is {', '.join(found)}")
    return found[body["model"]]


def _described(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.loaded_at, "owned_by": "bertcore"}
