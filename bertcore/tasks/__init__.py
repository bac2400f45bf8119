"""What people do with encoders: sentence embeddings, pair scores, sparse vectors, search."""
