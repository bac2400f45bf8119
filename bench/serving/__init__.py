"""`bertcore serve` under load, beside the same model behind sentence-transformers and FastAPI: python -m bench.serving

    load.py   the servers, each a process of its own, and clients that ask as fast as they are answered
    peer.py   the server of sentence-transformers and FastAPI

The embeddings of both are checked before anything is timed.
"""
