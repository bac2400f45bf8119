"""/health: 200 while the server takes requests."""

from starlette.responses import Response

from bertcore.serving.metrics import Metrics
from bertcore.serving.models import Models


def response(models: Models, metrics: Metrics) -> Response:
    """An empty answer, as text-embeddings-inference gives it."""
    return Response()
