"""An HTTP server for encoders: the interfaces of OpenAI's embeddings and of text-embeddings-inference.

    uvicorn.run(create_app([folder], ServerSettings()))

Needs the extra `serve` (starlette, uvicorn, orjson, prometheus_client).
"""

from bertcore.serving.app import create_app
from bertcore.serving.models import ServerSettings

__all__ = ["ServerSettings", "create_app"]
