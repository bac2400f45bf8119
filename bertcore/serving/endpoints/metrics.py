"""/metrics: what Prometheus reads."""

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from bertcore.serving.metrics import Metrics
from bertcore.serving.models import Models


def response(models: Models, metrics: Metrics) -> Response:
    """The counters of this server."""
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)
