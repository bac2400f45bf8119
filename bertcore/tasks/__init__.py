"""What people do with encoders: sentence embeddings, pair scores and sparse vectors."""
