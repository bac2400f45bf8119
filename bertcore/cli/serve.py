"""The command serve: models over HTTP."""

import json
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

import click

from bertcore.cli.inputs import Dtype
from bertcore.cli.options import REQUIRED, Command, CommandError, File, Kind, Positive, between, opt, settings_options
from bertcore.serving.requests import ServerSettings

# Seconds that an idle connection stays open: longer than the 60 for which nginx and other load balancers keep one, or a
# request is sent on a connection that is being closed, and its client gets 502.
KEEP_ALIVE = 75
SWITCH = 0.0005  # seconds that a thread keeps the interpreter: with Python's 0.005 short requests wait for long ones
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PLAIN = "%(asctime)s %(levelname)s %(message)s"


class Serve(Command):
    """Serve models over HTTP: embeddings, reranking, classification, entities and masked words.

    The interfaces are text-embeddings-inference's (/embed, /rerank, /predict, ...), OpenAI's (/v1/embeddings,
    /v1/models), Jina's and Cohere's (/v1/rerank, /v2/rerank), and Hugging Face's (/token_classification, /fill_mask).
    In a browser, / shows what each model does, and /docs lists all requests.

    Requests of several clients are computed together. The environment variable BERTCORE_API_KEY sets the key that
    requests must bring (Authorization: Bearer KEY). Needs: pip install "bertcore[serve]".

    Examples:
        bertcore serve demo
        bertcore serve all-MiniLM-L6-v2/ ms-marco-MiniLM-L6-v2/ --host 0.0.0.0 --port 8000
        curl localhost:8080/embed --json '{"inputs": ["one text", "or many"]}'
    """

    positions = ("models",)

    models: tuple[File, ...] = opt("folders of models, their ids on the Hugging Face hub, or demo", REQUIRED)
    host: str = opt("address to listen on", "127.0.0.1")
    port: Annotated[int, Kind(between(int, 0, 65536), "a port, 0 to 65535", "PORT")] = opt(
        "port to listen on; 0 is any free one", 8080
    )
    dtype: Dtype = opt("dtype of the weights (default: the dtype of a quantized checkpoint, else float32)")
    graceful_timeout: Positive = opt("seconds that requests have to finish when the server is stopped", 30)
    allowed_host: tuple[str, ...] = opt(
        'allowed value of the header Host, besides localhost, or "*" for any; may be repeated (default: any, unless '
        "host is a loopback address)",
        (),
    )
    cors_origin: tuple[str, ...] = opt(
        'origin whose pages may call the server, such as https://example.com, or "*"; may be repeated', ()
    )
    log_level: Annotated[str, ("debug", "info", "warning", "error")] = opt(
        "minimum level of log messages; info logs each request", "info"
    )
    log_format: Annotated[str, ("plain", "json")] = opt(
        "format of the log, lines of text or JSON. Texts and keys are never logged", "plain"
    )
    settings: dict[str, Any] = field(default_factory=dict)  # of ServerSettings

    @classmethod
    def parameters(cls) -> list[click.Parameter]:
        return super().parameters() + settings_options(ServerSettings, {}, {}, group="Limits", without=("api_key",))

    def __post_init__(self) -> None:
        super().__post_init__()
        ServerSettings(**self.settings)

    def run(self) -> None:
        try:
            import uvicorn

            from bertcore.serving import connections, create_app
        except ModuleNotFoundError as error:
            raise CommandError(f'{error.name} is not installed: pip install "bertcore[serve]"') from error
        backlog, most = connections.connection_limits()
        if (requests := most - connections.SPARE_CONNECTIONS) < 1:
            raise CommandError(f"{most} connections can be open, too few to serve: raise the limit of files, ulimit -n")
        requests = min(self.settings.get("max_concurrent_requests", ServerSettings.max_concurrent_requests), requests)
        limits = self.settings | {"max_concurrent_requests": requests, "cors_origins": self.cors_origin}
        hosts, key = allowed_hosts(self.host, self.allowed_host), os.environ.get("BERTCORE_API_KEY")
        try:
            settings = ServerSettings(**limits, allowed_hosts=hosts, api_key=key)
        except ValueError as error:
            raise CommandError(str(error).replace("api_key", "BERTCORE_API_KEY")) from error
        handler = logging.StreamHandler()
        handler.setFormatter(JSONLines() if self.log_format == "json" else logging.Formatter(PLAIN))
        logging.basicConfig(level=self.log_level.upper(), handlers=[handler])
        sys.setswitchinterval(SWITCH)
        with self.chosen_backend():
            app = create_app(self.models, settings, dtype=self.dtype)
        options: dict[str, Any] = {"timeout_keep_alive": KEEP_ALIVE, "timeout_graceful_shutdown": self.graceful_timeout}
        with listening_socket(self.host, self.port, backlog) as listening:
            host = f"[{self.host}]" if ":" in self.host else self.host
            print(f"bertcore: listening at http://{host}:{listening.getsockname()[1]}", flush=True)

            async def lengthen() -> None:  # asyncio takes `backlog` for how many are accepted at once, too
                listening.listen(connections.BACKLOG)

            options |= {"http": connections.Connection, "limit_concurrency": most}
            options |= {"backlog": backlog, "callback_notify": lengthen}
            options |= {"log_config": None, "log_level": self.log_level, "access_log": False, "ws": "none"}
            uvicorn.Server(uvicorn.Config(app, **options)).run([listening])


class JSONLines(logging.Formatter):
    """A formatter that writes an object in a line; the fields of a line of the access log are its own."""

    def format(self, record: logging.LogRecord) -> str:
        fields = record.args if isinstance(record.args, Mapping) else {"message": super().format(record)}
        head = {"time": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name}
        return json.dumps(head | dict(fields))


def allowed_hosts(host: str, names: Sequence[str]) -> set[str] | None:
    """Return the names that the header Host may have for a server that listens at `host`; None for any."""
    is_loopback = host == "localhost" or host == "::1" or host.startswith("127.")
    if "*" in names or not (names or is_loopback):
        return None
    return {*LOOPBACK, host.lower(), *(name.lower().strip("[]") for name in names)}


def listening_socket(host: str, port: int, backlog: int = 128) -> socket.socket:
    """Return a socket at that address (port 0: any free port); CommandError if it cannot be opened."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family, backlog=backlog)
    except (UnicodeError, OSError) as error:  # the first of a name that no host can have; Python adds the address
        reason = str(getattr(error, "strerror", f"{host!r} is not the name of a host")).partition(" (while ")[0]
        raise CommandError(f"cannot listen at {host}:{port}: {reason}") from error
    # Connections inherit it. asyncio sets it only for its own sockets; without it the body of an answer waits until the
    # client has acknowledged the head: 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
