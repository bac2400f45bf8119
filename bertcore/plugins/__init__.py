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

PyTorch's autograd has the kernels from `bertcore.kernels.torch`. Tables need no module:

    encoder = SentenceEncoder("all-MiniLM-L6-v2/")

    # pandas
    frame["embedding"] = list(encoder.encode(frame["text"]))
    # Polars: a column of arrays
    frame = frame.with_columns(pl.Series("embedding", encoder.encode(frame["text"])))
    # DuckDB: a function of SQL, which computes a chunk of rows at a time
    def embed(texts):
        rows = encoder.encode(texts.to_pylist())
        return pa.FixedSizeListArray.from_arrays(rows.ravel(), rows.shape[1])
    connection.create_function("embed", embed, ["VARCHAR"], f"FLOAT[{encoder.embedding_dimension}]", type="arrow")
    connection.sql("SELECT id, embed(text) FROM documents")
"""
