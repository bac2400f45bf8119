"""The sum of embeddings at the bottom of an encoder."""

from typing import Any

from bertcore.nn import functional
from bertcore.nn.layers import Embedding, LayerNorm
from bertcore.nn.parameter import Block


class Embeddings(Block):
    """LayerNorm(word + token type + position), as in BERT (Devlin et al. 2018, figure 2)."""

    def __init__(self, names: dict[str, str], spec: Any):
        width = spec.hidden_size
        self.words = Embedding(
            names["word_embeddings"], rows=spec.vocab_size, features=width, padding_row=spec.pad_token_id
        )
        self.positions = Embedding(names["position_embeddings"], rows=spec.max_positions, features=width)
        self.types = Embedding(names["type_embeddings"], rows=spec.type_vocab_size, features=width)
        self.norm = LayerNorm(names["embeddings_norm"], features=width, eps=spec.layer_norm_eps)

    def __call__(self, input_ids: Any, token_type_ids: Any, position_ids: Any) -> Any:
        """Three (tokens,) integer arrays -> (tokens, hidden)."""
        marks = functional.add(self.types(token_type_ids), self.positions(position_ids))
        return self.norm(self.words(input_ids), marks)
