"""Serve models over HTTP: embeddings, sparse embeddings, reranking and classification.

POST /v1/embeddings (OpenAI's interface), /embed, /embed_all, /embed_sparse, /rerank, /predict and /similarity
(text-embeddings-inference's); GET /v1/models (OpenAI's), /health, /metrics (Prometheus) and / (a page to try it)."""

import argparse
import os
import socket

from bertcore.cli.common import MODEL_HELP, CommandError, add_dtype_argument, chosen_backend, positive

HELP = "serve models over HTTP"
EXAMPLES = """\
examples:
  bertcore serve demo
  bertcore serve all-MiniLM-L6-v2/ ms-marco-MiniLM-L6-v2/ --host 0.0.0.0 --port 8000
  curl localhost:8080/embed -d '{"inputs": ["one text", "or many"]}'

Requests of several clients are computed together. The environment variable BERTCORE_API_KEY sets the key that requests
have to bring (Authorization: Bearer KEY). Needs: pip install "bertcore[serve]"."""


BACKLOG = 2048  # connections that wait to be accepted, as uvicorn has it
# Seconds that an idle connection stays open: longer than the 60 for which nginx and other load balancers use one again,
# or a request is sent on a connection that is being closed, and its client is told 502.
KEEP_ALIVE = 75


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help=MODEL_HELP)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=port_number, default=8080, help="default: 8080; 0: a free one")
    add_dtype_argument(parser)
    limits = (
        ("--max-batch-tokens", "tokens computed at once (default: 4096)"),
        ("--max-queue-tokens", "tokens that may wait; beyond, requests are refused with 429 (default: 262144)"),
        ("--max-client-batch-size", "texts of a request (default: 1024)"),
        ("--max-body-bytes", "of a request (default: 4194304)"),
        ("--timeout", "seconds that a request may take (default: 60)"),
    )
    for name, text in limits:
        parser.add_argument(name, type=positive, metavar="N", help=text)
    parser.add_argument("--auto-truncate", action="store_true", help="cut texts that are too long, instead of refusing")
    parser.add_argument("--graceful-timeout", type=positive, default=30, metavar="N", help="seconds that requests have "
                        "to end when the server is stopped (default: 30)")  # fmt: skip


def run(args: argparse.Namespace) -> None:
    """Run the command."""
    try:
        import uvicorn

        from bertcore.serving import ServerSettings, create_app
    except ModuleNotFoundError as error:
        raise CommandError(f'{error.name} is not installed: pip install "bertcore[serve]"') from error
    names = ("max_batch_tokens", "max_queue_tokens", "max_client_batch_size", "max_body_bytes", "timeout")
    limits = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    key = os.environ.get("BERTCORE_API_KEY") or None
    settings = ServerSettings(**limits, api_key=key, auto_truncate=args.auto_truncate)
    with chosen_backend(args):
        app = create_app(args.models, settings, dtype=args.dtype)
    options = {
        "log_level": "warning",
        "ws": "none",
        "timeout_keep_alive": KEEP_ALIVE,
        "timeout_graceful_shutdown": args.graceful_timeout,
    }
    with listening_socket(args.host, args.port) as listening:
        host = f"[{args.host}]" if ":" in args.host else args.host
        print(f"bertcore: listening at http://{host}:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, **options)).run([listening])


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket at that address, of any free port for 0; CommandError where it cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address, family=family, backlog=BACKLOG)
    except UnicodeError as error:  # of a host whose name cannot be one
        raise CommandError(f"cannot listen at {host}:{port}: {host!r} is no name of a host") from error
    except socket.gaierror as error:
        raise CommandError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    except OSError as error:  # to whose message Python adds the address
        raise CommandError(f"cannot listen at {host}:{port}: {os.strerror(error.errno)}") from error
    # Connections inherit it. asyncio sets it for sockets of its own alone; without it the body of an answer waits
    # until the client has acknowledged the head: 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def port_number(text: str) -> int:
    """An argparse type: 0 to 65535."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
    return int(text)
