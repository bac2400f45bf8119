"""An HTTP server for encoders, with the interfaces of OpenAI's embeddings and text-embeddings-inference.

    uvicorn.run(create_app([folder], ServerSettings()))

Needs the extra `serve` (starlette, uvicorn, orjson, prometheus_client).
"""

from typing import TYPE_CHECKING, Any

from bertcore.serving.requests import ServerSettings

if TYPE_CHECKING:
    from bertcore.serving.app import create_app

__all__ = ["ServerSettings", "create_app"]


def __getattr__(name: str) -> Any:  # the command line reads the settings without the server's packages
    if name != "create_app":
        raise AttributeError(f"module 'bertcore.serving' has no attribute {name!r}")
    from bertcore.serving.app import create_app

    return create_app
