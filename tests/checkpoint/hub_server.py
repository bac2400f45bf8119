"""A local server with the part of the Hugging Face hub's protocol that fetching a model needs."""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".model")  # kept elsewhere (LFS): reached by a redirect


@dataclass
class Model:
    """A model: its files by commit, and what its branches and tags point to.

    token: who may see it; None for everybody. gated: whether its files, but not its listing, ask for more than that.
    """

    files: Mapping[str, Mapping[str, bytes]]
    branches: Mapping[str, str]
    token: str | None = None
    gated: bool = False


@dataclass
class Hub:
    """The server: `models` by id, the `requests` it got (method, path, headers), and how it misbehaves.

    cut: how often the content of a large file breaks off in the middle. down: whether every answer is 503.
    """

    models: dict[str, Model] = field(default_factory=dict)
    requests: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    cut: int = 0
    down: bool = False

    def add(self, name: str, files: Mapping[str, bytes], **options) -> str:
        """Add a model with one commit, and return the commit."""
        commit = hashlib.sha1(name.encode() + b"".join(files.values())).hexdigest()
        self.models[name] = Model({commit: files}, {"main": commit}, **options)
        return commit

    def fetched(self) -> set[str]:
        """Return the names of the files whose content was requested."""
        paths = [path for method, path, _ in self.requests if method == "GET"]
        small = {path.split("/resolve/")[1].partition("/")[2] for path in paths if "/resolve/" in path}
        return small | {path.rpartition("?")[2] for path in paths if path.startswith("/cdn/")}

    def start(self) -> ThreadingHTTPServer:
        """Start a server in a thread of its own, and return it; `shutdown` ends it."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def log_message(self, *args):
        pass

    def answer(self):
        self.hub.requests.append((self.command, self.path, dict(self.headers)))
        url = urlsplit(self.path)
        path = unquote(url.path)
        if self.hub.down:
            self.reply(503, b"down")
        elif path.startswith("/cdn/"):
            self.large(path.removeprefix("/cdn/"))
        elif path.startswith("/api/models/"):
            self.api(path.removeprefix("/api/models/"), parse_qs(url.query))
        else:
            name, _, rest = path.removeprefix("/").partition("/resolve/")
            revision, _, file = rest.partition("/")
            self.resolve(name, revision, file)

    def reply(self, status: int, content: bytes = b"", **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def json(self, value):
        self.reply(200, json.dumps(value).encode(), Content_Type="application/json")

    def model(self, name: str) -> Model | None:
        """Return the model if it exists and may be seen; else send the error."""
        model = self.hub.models.get(name)
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if model is None or model.token not in (None, sent):
            # The hub does not tell strangers what exists.
            self.reply(404 if sent else 401, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
            return None
        return model

    def commit(self, model: Model, revision: str) -> str | None:
        commit = model.branches.get(revision, revision)
        if commit not in model.files:
            self.reply(404, X_Error_Code="RevisionNotFound", X_Error_Message=f"Invalid rev id: {revision}")
            return None
        return commit

    def api(self, rest: str, query):
        kind = "/tree/" if "/tree/" in rest else "/revision/"
        name, _, revision = rest.partition(kind)
        model = self.model(name)
        commit = model and self.commit(model, revision or "main")
        if not commit:
            return
        files = model.files[commit]
        if kind == "/revision/":
            self.json({"id": name, "modelId": name, "sha": commit, "siblings": [{"rfilename": file} for file in files]})
        else:
            self.json([entry(file, content) for file, content in files.items()])

    def resolve(self, name: str, revision: str, file: str):
        model = self.model(name)
        commit = model and self.commit(model, revision)
        if not commit:
            return
        if model.gated:
            self.reply(403, X_Error_Code="GatedRepo", X_Error_Message="Access to this model is restricted")
        elif file not in model.files[commit]:
            self.reply(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found", X_Repo_Commit=commit)
        elif file.endswith(LARGE):
            content = model.files[commit][file]
            digest = hashlib.sha256(content).hexdigest()
            size = str(len(content))
            # By its other name, this machine is another host: a token must not go there.
            place = f"http://localhost:{self.server.server_port}/cdn/{digest}?{file}"
            self.reply(302, Location=place, X_Linked_Size=size, X_Linked_ETag=f'"{digest}"', X_Repo_Commit=commit)
        else:
            content = model.files[commit][file]
            self.reply(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=commit)

    def large(self, digest: str):
        contents = [content for model in self.hub.models.values() for files in model.files.values()
                    for content in files.values()]  # fmt: skip
        content = next(each for each in contents if hashlib.sha256(each).hexdigest() == digest)
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        content = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{digest}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.hub.cut > 0:
            self.hub.cut -= 1
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        else:
            self.wfile.write(content)


def entry(file: str, content: bytes) -> dict:
    """Return a file's entry in the listing of a commit."""
    found = {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
    if file.endswith(LARGE):
        found["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return found
