"""Folders of tiny random sparse encoders: SPLADE, a Router of token weights and SPLADE, an autoencoder (CSR)."""

import numpy as np

from bertcore import AutoModelForMaskedLM
from bertcore.checkpoint import save_checkpoint
from tests.tiny_bert import CONFIG, VOCABULARY, WIDTH, save_tiny_bert, save_tiny_encoder, write_json, write_modules

MODULES = {
    "": "sentence_transformers.sparse_encoder.models.MLMTransformer",
    "1_SpladePooling": "sentence_transformers.sparse_encoder.models.SpladePooling",
}
OWN = "sentence_transformers.sparse_encoder.modules"
KINDS = {
    "query_0_SparseStaticEmbedding": f"{OWN}.SparseStaticEmbedding",
    "document_0_MLMTransformer": f"{OWN}.MLMTransformer",
    "document_1_SpladePooling": f"{OWN}.SpladePooling",
}
TOKENS = len(VOCABULARY)
IDF = {"cat": 2.5, "mat": 1.25, "the": 0.0, "[UNK]": 3.0, "##a": -0.5}


def save_tiny_splade(folder, pooling=None):
    """A random masked language model as a sparse encoder, with the given pooling config."""
    save_tiny_bert(folder, head=True)
    write_modules(folder, MODULES)
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    write_json(folder / "1_SpladePooling" / "config.json", pooling or {})
    return folder


def save_plain_idf(folder):
    """A plain masked language model beside an idf.json, as OpenSearch has it."""
    save_tiny_bert(folder, head=True)
    AutoModelForMaskedLM.from_config(CONFIG | {"vocab_size": TOKENS}, seed=7).save_pretrained(folder)
    write_json(folder / "idf.json", IDF)
    return folder


def save_tiny_router(folder, *, settings=None, weights=None, **parameters):
    """A Router of token weights for queries and SPLADE for documents."""
    query, document, pooling = (folder / name for name in KINDS)
    save_plain_idf(document)
    (document / "idf.json").unlink()
    query.mkdir()
    for name in ("vocab.txt", "tokenizer_config.json"):
        (query / name).write_bytes((document / name).read_bytes())
    weights = np.random.default_rng(3).random(TOKENS).astype(np.float32) if weights is None else weights
    save_checkpoint(query, {"frozen": True}, {"weight": weights})
    write_json(pooling / "config.json", {"pooling_strategy": "max", "activation_function": "log1p_relu"})
    write_router(folder, {"query": [*KINDS][:1], "document": [*KINDS][1:]}, KINDS, **parameters)
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"} | (settings or {}))
    return folder


def write_router(folder, structure, kinds, after=None, **parameters):
    """modules.json and router_config.json; `after` are modules after the Router, path -> type."""
    write_modules(folder, {"": "sentence_transformers.base.modules.Router"} | (after or {}))
    options = {"default_route": "document", "allow_empty_key": True} | parameters
    write_json(folder / "router_config.json", {"types": kinds, "structure": structure, "parameters": options})


def save_tiny_csr(folder, *, unit=False, hidden=100, k=6, settings=None, pooling=None, **config):
    """A sentence encoder under a random autoencoder."""
    save_tiny_encoder(folder, pooling, normalize=unit)
    name, rng = "3_SparseAutoEncoder", np.random.default_rng(5)
    kinds = {"": "Transformer", "1_Pooling": "Pooling"} | ({"2_Normalize": "Normalize"} if unit else {})
    modules = {path: f"sentence_transformers.models.{kind}" for path, kind in kinds.items()}
    write_modules(folder, modules | {name: f"{OWN}.SparseAutoEncoder"})
    shapes = {"pre_bias": (WIDTH,), "encoder.weight": (hidden, WIDTH), "latent_bias": (hidden,)}
    tensors = {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
    config = {"input_dim": WIDTH, "hidden_dim": hidden, "k": k, "k_aux": 20, "dead_threshold": 30} | config
    save_checkpoint(folder / name, config, tensors | {"stats_last_nonzero": np.zeros(hidden, np.int64)})
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"} | (settings or {}))
    return folder
