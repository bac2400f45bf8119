"""`bertcore serve` under load, beside the same model behind sentence-transformers and FastAPI: python -m bench.serving

    servers.py   the servers, each a process of its own
    peer.py      what sentence-transformers and FastAPI serve
    load.py      clients that ask as fast as they are answered
    overhead.py  what the server adds to an embedding

The embeddings of both are checked before anything is timed.
"""
