"""bertcore inside other libraries: one module per library, imported by its name; each needs that library.

| module | provides |
| --- | --- |
| `plugins.scikit_learn` | `TextEmbedder`, a transformer, and `TextClassifier`, which fine-tunes |
| `plugins.sentence_transformers` | `EncoderModule`, for `SentenceTransformer(modules=[...])` |
| `plugins.transformers` | `register_attention`, for `attn_implementation="bertcore"` |
| `plugins.langchain` | `BertcoreEmbeddings` |
| `plugins.llama_index` | `BertcoreEmbedding` |
| `plugins.haystack` | `BertcoreTextEmbedder`, `BertcoreDocumentEmbedder` |
| `plugins.chroma` | `BertcoreEmbeddingFunction` |
| `plugins.mteb` | `MTEBEncoder`, for `mteb.evaluate` |
| `plugins.vector_search` | `to_usearch`, `to_hnswlib`, `to_faiss`, `to_sqlite`, for a `VectorIndex` |
| `plugins.spacy` | the pipeline component `bertcore` |
| `plugins.ray` | `BatchEmbedder`, for `Dataset.map_batches` (extra `ray`) |
| `plugins.spark` | `embedding_udf`, a column function (extra `spark`) |

For PyTorch's autograd, the kernels are in `bertcore.kernels.torch`. pandas, Polars and DuckDB need no module:
docs/clusters.md has a recipe for each.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertcore.tasks.sentence_encoder import SentenceEncoder


def opened(model: str | os.PathLike[str] | SentenceEncoder, **options: Any) -> SentenceEncoder:
    """Return `model` if it is a SentenceEncoder, otherwise the encoder of that folder or Hugging Face hub id."""
    from bertcore.tasks.sentence_encoder import SentenceEncoder

    return model if isinstance(model, SentenceEncoder) else SentenceEncoder(model, **options)
