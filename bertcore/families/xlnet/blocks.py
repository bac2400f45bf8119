"""XLNet's blocks: two-stream attention and embeddings (Yang et al. 2019, arXiv:1906.08237)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bertcore import kernels
from bertcore.families.transfo_xl.blocks import RecurrentContext, RelativeAttention
from bertcore.kernels.arrays import NativeArray
from bertcore.nn import functional
from bertcore.nn.blocks import FeedForward, make_norm
from bertcore.nn.functional.rows import column_sums, widened
from bertcore.nn.layers import Embedding, drop, dropped_linear
from bertcore.nn.layout import Layout
from bertcore.nn.operation import operation
from bertcore.nn.parameter import Block, Parameter
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor, value_of


def _mix(array, matrices):
    parts = widened(array).reshape(len(matrices), -1, array.shape[1])
    mixed = kernels.array_module(array).matmul(widened(matrices), parts)
    return mixed.reshape(-1, array.shape[1]).astype(array.dtype, copy=False)


@operation()
def mix_rows(run: Pass, array: Tensor, *, matrices: NativeArray) -> Tensor:
    """Return weighted sums of each sequence's rows; all sequences have the same length.

    Matrices are (sequences, outputs, inputs), `array` (sequences * inputs, features), the result (sequences * outputs,
    features).
    """
    return _mix(array, matrices), lambda grad: (_mix(grad, matrices.transpose(0, 2, 1)),)


@operation()
def segment_scores(run: Pass, queries: Tensor, bias: Tensor, table: Tensor) -> Tensor:
    """Return (queries + bias) times the two segment vectors of each head, (tokens, heads, 2).

    Shapes: queries (tokens, heads, head_dim), bias (heads, head_dim), table (2, heads, head_dim). Source: Yang et al.
    2019, arXiv:1906.08237, section 2.5.
    """
    wide, wide_bias = widened(queries), widened(bias)
    scores = [(wide * row).sum(axis=-1) + (wide_bias * row).sum(axis=-1) for row in widened(table)]
    xp = kernels.array_module(queries)

    def pullback(grad):
        parts = [grad[..., column, None] for column in range(2)]
        grad_queries = sum(part * row for part, row in zip(parts, table, strict=True))
        grad_table = [column_sums(part * queries) + column_sums(part) * bias for part in parts]
        return grad_queries, column_sums(grad_queries), xp.stack(grad_table)

    return xp.stack(scores, axis=-1).astype(queries.dtype, copy=False), pullback


class TwoStreamEmbeddings(Block):
    """Word embeddings, the start of the content stream, and one vector, the start of the query stream."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec):
        width, self.dropout = spec.hidden_size, spec.embedding_dropout
        self.words = Embedding(names["word_embeddings"], rows=spec.vocab_size, features=width)
        self.mask = Parameter(names["mask_embedding"], layout=Layout((1, 1, width), axes=(0, 1, 2), row_axes=2))

    def __call__(self, run: Pass, inputs: Any) -> Tensor:
        """Map an `EncoderInput` to the content stream, (tokens, hidden)."""
        return drop(run, self.words(run, inputs.input_ids), self.dropout)

    def queries(self, run: Pass, places: NativeArray) -> Tensor:
        """Return the start of the query stream, (predictions, hidden); `places` are zeros, (predictions,)."""
        return drop(run, functional.take_rows(run, self.mask.value(run), rows=places), self.dropout)


@dataclass
class Predictions:
    """The tokens that the query stream predicts; arrays are in the backend's memory."""

    matrices: NativeArray  # the share of each token in each prediction, (sequences, predictions, tokens)
    # 1 for tokens at which the query stream attends to any key, else 0, (tokens, 1); None if all are 1
    sees: NativeArray | None = None

    def zero_blind(self, run: Pass, array: Tensor) -> Tensor:
        """Zero `array`, (tokens, ...), at tokens that attend to no key: with scores of 0, all keys count equally."""
        if self.sees is None or array is None:
            return array
        plain = value_of(array)
        return functional.scale(run, array, factor=self.sees.reshape(-1, *[1] * (plain.ndim - 1)))


@dataclass(kw_only=True)
class TwoStreamContext(RecurrentContext):
    """The context of the content stream and, with predictions, of the query stream."""

    queries: RecurrentContext | None = None  # the query stream's, which does not attend to the tokens that it predicts
    predictions: Predictions | None = None


class TwoStreamAttention(RelativeAttention):
    """Relative attention with the same parameters for both streams (section 2.3) and relative segments (section 2.5).

    Queries come from either stream, keys and values from the content stream and its memory.
    """

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int):
        layer = spec.layers[index]
        super().__init__(layer, index)
        heads = self.num_heads, self.head_dim
        split = Layout((spec.hidden_size, *heads), axes=(1, 2, 0), row_axes=2)
        joined = Layout((spec.hidden_size, *heads), axes=(0, 1, 2), row_axes=1)
        flat = Layout(heads, axes=(0, 1), row_axes=2)
        self.query = Parameter(names["query"], layout=split, use="weight")
        self.key_value = Parameter(names["key"], names["value"], layout=split, use="weight")
        self.positions = Parameter(names["positions"], layout=split, use="weight")
        self.output_weight = Parameter(names["attention_output"], layout=joined, use="weight")
        self.content_bias = Parameter(names["content_bias"], layout=flat)
        self.position_bias = Parameter(names["position_bias"], layout=flat)
        self.segment_bias = Parameter(names["segment_bias"], layout=flat)
        self.segments = Parameter(names["segments"], shape=(2, *heads))
        self.norm = make_norm(names, "attention_norm", layer)

    def other_weights(self) -> Iterator[Parameter]:
        """Return the projection of distances, which tokens do not pass."""
        yield self.positions

    def output(self, run: Pass, mixed: Tensor, residual: Tensor | None = None, *, dropout: float = 0.0) -> Tensor:
        """Map the attended values back to the layer's width."""
        if dropout and run.seeds:
            return dropped_linear(run, mixed, self.output_weight.weight(run), None, residual, None, dropout)
        return functional.linear(run, mixed, self.output_weight.weight(run), None, residual)

    def keys(self, run: Pass, content: Tensor, context: RecurrentContext) -> tuple[Any, Any, Any]:
        """Return keys, values and keys of positions for both streams, (rows, heads * head_dim) each."""
        seen = context.relations.keys(run, content, context.memories[self.index])
        key_value = functional.linear(run, seen, self.key_value.weight(run), None)
        width = self.num_heads * self.head_dim
        key, value = (functional.slice_columns(run, key_value, first=first, last=first + width) for first in (0, width))
        return key, value, self._position_keys(run, context.relations, self.positions)

    def from_stream(self, run: Pass, stream: Tensor, keys: tuple[Tensor, Tensor, Tensor], context: RecurrentContext,
                    predictions: Predictions | None = None) -> Tensor:  # fmt: skip
        """Return a stream after attention to the content's `keys`, (tokens, hidden).

        `predictions` are the query stream's `Predictions`, None for the content stream.
        """
        # The content bias is added by the projection; the other scores add the difference of their bias to it.
        if predictions is None:
            query = functional.linear(run, stream, self.query.weight(run), self.content_bias.value(run))
        else:
            query = functional.linear(run, stream, self.query.weight(run), None)
            query = mix_rows(run, query, matrices=predictions.matrices.transpose(0, 2, 1))  # from predictions to tokens
            query = functional.add(run, query, self.content_bias.value(run))
        queries = query, functional.add(run, query, self._beside_content(run, self.position_bias))
        scores = self._segment_scores(run, query, context)
        if predictions is not None:
            queries = tuple(predictions.zero_blind(run, each) for each in queries)
            scores = predictions.zero_blind(run, scores)
        attended = self._attend(run, queries, keys, context, self.output_weight, scores)
        if predictions is not None:
            attended = mix_rows(run, attended, matrices=predictions.matrices)
        return self.close(run, attended, stream)

    def _segment_scores(self, run: Pass, query: Tensor, context: RecurrentContext) -> Tensor:
        if context.relations.segment_ids is None:
            return None
        bias = functional.reshape(
            run, self._beside_content(run, self.segment_bias), shape=(self.num_heads, self.head_dim)
        )
        return segment_scores(run, self._heads(run, query), bias, self.segments.value(run))

    def _beside_content(self, run: Pass, bias: Parameter) -> Tensor:
        return functional.add(run, bias.value(run), functional.scale(run, self.content_bias.value(run), factor=-1.0))


class TwoStreamLayer(Block):
    """Attention, then feed-forward, for the content stream and, with predictions, the query stream."""

    def __init__(self, names: Mapping[str, str], spec: EncoderSpec, index: int, attention: type[Block]):
        self.attention = attention(names, spec, index)
        self.feed_forward = FeedForward(names, spec.layers[index])

    def __call__(self, run: Pass, state: Tensor | tuple[Tensor, Tensor], context: TwoStreamContext) -> Any:
        """Map the content stream, (tokens, hidden), or a tuple of it and the query stream, (predictions, hidden)."""
        content, queries = state if isinstance(state, tuple) else (state, None)
        keys = self.attention.keys(run, content, context)
        content = self.feed_forward(run, self.attention.from_stream(run, content, keys, context), context)
        if queries is None:
            return content
        attended = self.attention.from_stream(run, queries, keys, context.queries, context.predictions)
        return content, self.feed_forward(run, attended, context)
