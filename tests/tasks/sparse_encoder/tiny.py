"""Folders of tiny random SPLADE models."""

from tests.tiny_bert import save_tiny_bert, write_json, write_modules

MODULES = {
    "": "sentence_transformers.sparse_encoder.models.MLMTransformer",
    "1_SpladePooling": "sentence_transformers.sparse_encoder.models.SpladePooling",
}


def save_tiny_splade(folder, pooling=None):
    """A random masked language model as a sparse encoder, with the given pooling config."""
    save_tiny_bert(folder, head=True)
    write_modules(folder, MODULES)
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    write_json(folder / "1_SpladePooling" / "config.json", pooling or {})
    return folder
