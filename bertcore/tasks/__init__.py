"""Tasks for encoders: sentence embeddings, pair scores, sparse vectors, pipelines, search."""
