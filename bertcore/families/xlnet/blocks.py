"""The blocks of XLNet (Yang et al. 2019, arXiv:1906.08237): attention of two streams, and what they start from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertcore.families.transfo_xl.relative_attention import RelativeAttention
from bertcore.nn import functional
from bertcore.nn.encoder import LayerContext
from bertcore.nn.layers import Embedding, LayerNorm
from bertcore.nn.layout import Layout
from bertcore.nn.parameter import Block, Parameter
from bertcore.tape import value_of


class TwoStreamEmbeddings(Block):
    """The words, where the content stream starts, and the vector that stands for every word to be predicted, where the
    query stream starts."""

    def __init__(self, names: Mapping[str, str], spec: Any):
        width = spec.hidden_size
        self.words = Embedding(names["word_embeddings"], rows=spec.vocab_size, features=width)
        self.mask = Parameter(names["mask_embedding"], layout=Layout((1, 1, width), axes=(0, 1, 2), row_axes=2))

    def __call__(self, inputs: Any) -> Any:
        """An `EncoderInput` -> the content stream, (tokens, hidden)."""
        return self.words(inputs.input_ids)

    def queries(self, places: Any) -> Any:
        """The query stream at as many tokens as there are `places`, zeros each, (predictions,)."""
        return functional.take_rows(self.mask.value, rows=places)


@dataclass
class Predictions:
    """Which tokens the query stream predicts; arrays in the memory of the backend in force.

    Attributes:
        matrices: target_mapping, (sequences, predictions, tokens): how much each prediction is of each token.
        sees: 1 for tokens where the query stream sees any key and 0 where it sees none, (tokens, 1); None if all do.
    """

    matrices: Any
    sees: Any = None

    def to_tokens(self, predictions: Any) -> Any:
        """(predictions, features) -> (tokens, features)."""
        return functional.mix_rows(predictions, matrices=self.matrices.transpose(0, 2, 1))

    def from_tokens(self, tokens: Any) -> Any:
        """(tokens, features) -> (predictions, features)."""
        return functional.mix_rows(tokens, matrices=self.matrices)

    def sighted(self, array: Any) -> Any:
        """`array`, (tokens, ...), with zeros where no key is seen: scores of zero, so that all keys weigh the same."""
        if self.sees is None or array is None:
            return array
        plain = value_of(array)
        return functional.scale(array, factor=self.sees.reshape(-1, *[1] * (plain.ndim - 1)))


class TwoStreamAttention(RelativeAttention):
    """Relative attention of both streams with the same parameters (section 2.3), with relative segments (section 2.5).

    Queries come from either stream, keys and values from the content stream and its memory.
    """

    def __init__(self, names: Mapping[str, str], spec: Any):
        super().__init__(spec)
        heads = self.num_heads, self.head_dim
        split = Layout((spec.hidden_size, *heads), axes=(1, 2, 0), row_axes=2)
        joined = Layout((spec.hidden_size, *heads), axes=(0, 1, 2), row_axes=1)
        flat = Layout(heads, axes=(0, 1), row_axes=2)
        self.query = Parameter(names["query"], layout=split, use="weight")
        self.key_value = Parameter(names["key"], names["value"], layout=split, use="weight")
        self.positions = Parameter(names["positions"], layout=split, use="weight")
        self.output = Parameter(names["attention_output"], layout=joined, use="weight")
        self.content_bias = Parameter(names["content_bias"], layout=flat)
        self.position_bias = Parameter(names["position_bias"], layout=flat)
        self.segment_bias = Parameter(names["segment_bias"], layout=flat)
        self.segments = Parameter(names["segments"], shape=(2, *heads))
        self.norm = LayerNorm(names["attention_norm"], features=spec.hidden_size, eps=spec.layer_norm_eps)

    def keys(self, content: Any, memory: Any, context: LayerContext) -> tuple[Any, Any, Any]:
        """Keys, values and keys of positions, for both streams, (rows, heads * head_dim) each."""
        key_value = functional.linear(context.shared.keys(content, memory), self.key_value.weight, None)
        width = self.num_heads * self.head_dim
        key, value = (functional.slice_columns(key_value, first=first, last=first + width) for first in (0, width))
        return key, value, self._position_keys(context.shared, self.positions)

    def __call__(self, stream: Any, keys: tuple[Any, Any, Any], context: LayerContext, places: Any = None) -> Any:
        """A stream and the content's `keys` -> what the stream becomes, (tokens, hidden).

        `places` are the `Predictions` of the query stream, None for the content stream.
        """
        # The content's bias is the map's own; what other scores have in its place is added to that.
        if places is None:
            query = functional.linear(stream, self.query.weight, self.content_bias.value)
        else:
            query = places.to_tokens(functional.linear(stream, self.query.weight, None))
            query = functional.add(query, self.content_bias.value)
        queries = query, functional.add(query, self._beside_content(self.position_bias))
        scores = self._segment_scores(query, context)
        if places is None:
            attended = self._attend(queries, keys, context, scores)
        else:
            queries, scores = tuple(map(places.sighted, queries)), places.sighted(scores)
            attended = places.from_tokens(self._attend(queries, keys, context, scores))
        return self.norm(functional.linear(attended, self.output.weight, None, stream))

    def _segment_scores(self, query: Any, context: LayerContext) -> Any:
        if context.shared.segment_ids is None:
            return None
        bias = functional.reshape(self._beside_content(self.segment_bias), shape=(self.num_heads, self.head_dim))
        return functional.segment_scores(self._heads(query), bias, self.segments.value)

    def _beside_content(self, bias: Parameter) -> Any:
        return functional.add(bias.value, functional.scale(self.content_bias.value, factor=-1.0))
