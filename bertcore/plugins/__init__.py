"""bertcore inside other libraries: a module for each, which is imported by its name and needs that library.

| module | what it has |
| --- | --- |
| `plugins.scikit_learn` | `TextEmbedder`, a transformer, and `TextClassifier`, which fine-tunes |
| `plugins.sentence_transformers` | `EncoderModule`, for `SentenceTransformer(modules=[...])` |
| `plugins.transformers` | `register_attention`, for `attn_implementation="bertcore"` |
| `plugins.langchain` | `BertcoreEmbeddings` |
| `plugins.llama_index` | `BertcoreEmbedding` |
| `plugins.haystack` | `BertcoreTextEmbedder`, `BertcoreDocumentEmbedder` |
| `plugins.chroma` | `BertcoreEmbeddingFunction` |
| `plugins.spacy` | the pipeline component `bertcore` |
| `plugins.ray` | `TextEmbedder`, for `Dataset.map_batches` (extra `ray`) |
| `plugins.spark` | `embedding_udf`, a function of a column (extra `spark`) |

PyTorch's autograd has the kernels from `bertcore.kernels.torch`. Tables of pandas, Polars and DuckDB need no module:
docs/clusters.md has a recipe for each.
"""
