"""A model behind sentence-transformers, FastAPI and uvicorn: python -m bench.serving.peer FOLDER PORT THREADS

It answers POST /embed as text-embeddings-inference does, with one `encode` for each request. `embed` is a coroutine, so
that one request computes at a time, in the loop's own thread: this gives 1.3 to 2.4 times as many texts a second as a
plain function, for which FastAPI takes a thread per request, with a lock around `encode` or without (1, 8 and 32
clients, 2 threads).
"""

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class Request(BaseModel):
    """The texts to embed."""

    inputs: list[str]


def create_app(folder: str) -> FastAPI:
    """Return the application, with the model loaded and warm."""
    model, app = SentenceTransformer(folder, device="cpu"), FastAPI()
    model.encode(["warm up"])

    @app.get("/health")
    def health() -> None:
        """Answer 200 while the server takes requests."""

    @app.post("/embed")
    async def embed(request: Request) -> list[list[float]]:
        """Return the embedding of each text, of length 1."""
        return model.encode(request.inputs, normalize_embeddings=True, show_progress_bar=False).tolist()

    return app


def main(folder: str, port: str, threads: str) -> None:
    """Serve until a signal comes."""
    torch.set_num_threads(int(threads))
    uvicorn.run(create_app(folder), host="127.0.0.1", port=int(port), log_level="warning")


if __name__ == "__main__":
    main(*sys.argv[1:])
