"""Servers of tiny models, for tests of what they answer."""

import pytest

from bertcore import AutoModelForEntityPairClassification, use_backend
from tests.tasks.cross_encoder.tiny import save_tiny_classifier
from tests.tasks.multi_vector.tiny import save_tiny_late
from tests.tasks.pipelines.folders import TAGS, save_head
from tests.tasks.sparse_encoder.tiny import save_tiny_splade
from tests.tiny_bert import CONFIG, save_tiny_encoder, write_json
from tests.tiny_entities import save_family
from tests.tiny_gliner import tiny_gliner

pytest.importorskip("starlette")
pytest.importorskip("orjson")

JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def on_numpy(on_numpy):
    """The reference: what is tested here stands above the backends."""


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A folder of each kind of model, by its name."""
    root = tmp_path_factory.mktemp("models")
    save_tiny_encoder(root / "encoder")
    settings = {"prompts": {"query": "paris is "}}
    write_json(root / "encoder" / "config_sentence_transformers.json", settings)
    save_tiny_splade(root / "splade")
    save_head(root / "tagger", "AutoModelForTokenClassification", TAGS)
    save_head(root / "masked", "AutoModelForMaskedLM")
    save_tiny_late(root / "late")
    (root / "gliner").mkdir()
    tiny_gliner(root / "gliner")
    marked = save_family(root / "marked", "bert")
    AutoModelForEntityPairClassification.from_config(CONFIG, seed=1).save_pretrained(marked)
    for name, labels in (("reranker", 1), ("classifier", 3)):
        (root / name).mkdir()
        save_tiny_classifier(root / name, labels=labels)
    return {folder.name: folder for folder in root.iterdir()}


@pytest.fixture(scope="session")
def client(folders):
    """A client of a server with an encoder, a sparse encoder and a reranker."""
    from starlette.testclient import TestClient

    from bertcore.serving import create_app

    with use_backend("numpy"):  # which the server keeps
        app = create_app([folders[name] for name in ("encoder", "splade", "reranker")])
    with TestClient(app, headers=JSON) as client:
        yield client


@pytest.fixture
def server(folders):
    """A function: a client of a server of this model with these settings."""
    from starlette.testclient import TestClient

    from bertcore.serving import ServerSettings, create_app

    clients = []

    def start(model="encoder", **settings):
        client = TestClient(create_app([folders[model]], ServerSettings(**settings)), headers=JSON)
        clients.append(client)
        return client.__enter__()

    yield start
    for client in clients:
        client.__exit__(None, None, None)
