"""The specs of a family: the numbers and choices that turn the shared blocks into one of its models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertcore.kernels import checks
from bertcore.kernels.activation import ACTIVATIONS
from bertcore.nn.layers import LayerNorm
from bertcore.nn.parameter import Block
from bertcore.nn.rotary import RotarySpec

# Parts that may be absent from a layer or lack a bias.
PARTS = frozenset(
    (
        *("qkv", "query", "key", "value", "attention_output", "attention_norm"),
        *("query_norm", "key_norm", "attention_output_norm"),
        *("expand", "gate", "contract", "feed_forward_norm", "feed_forward_output_norm"),
    )
)


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """The parts and sizes of one layer.

    Its parts are called "query", "key" and "value" (or "qkv", where a checkpoint stores the three as one map),
    "attention_output", "attention_norm", "expand" (and "gate", where a gated feed-forward stores two maps), "contract"
    and "feed_forward_norm"; a family's `layer_names` are their names in checkpoints. Only some families name
    "plain_expand" (the first map of a feed-forward without a gate), "query_norm" and "key_norm" (norms before the
    rotation of queries and keys), "attention_output_norm" and "feed_forward_output_norm" (norms before the residual is
    added). Raises ValueError for a wrong attribute.
    """

    hidden_size: int  # the width of the layer
    intermediate_size: int  # the width of its feed-forward
    num_heads: int  # of queries
    num_key_value_heads: int | None = None  # each shared by equally many query heads; num_heads by default
    head_dim: int | None = None  # width of a head; hidden_size / num_heads by default
    activation: str = "gelu"  # the feed-forward's, a name of `kernels.activation`
    # for a gated feed-forward (Shazeer 2020, arXiv:2002.05202), the half of `expand` that passes the activation before
    # it multiplies the other, "first" or "second"; None for a plain one
    gate: str | None = None
    norm: Callable[..., Block] = LayerNorm  # the block of the norms, called with a name, features, eps and bias
    norm_eps: float = 1e-12  # the number that norms add to the variance
    norm_first: bool = False  # norms come before attention and feed-forward, instead of after their residuals
    query_norm_size: int | None = None  # the width over which queries and keys are normalised; head_dim by default
    absent: frozenset[str] = frozenset()  # parts that the layer lacks ("attention_norm" of ModernBERT's first)
    without_bias: frozenset[str] = frozenset()  # parts without a bias
    is_transposed: bool = False  # maps are stored as (inputs, outputs)
    qkv_by_head: bool = False  # the joined map is stored with query, key and value of each head in turn
    rotary: RotarySpec | None = None  # the rotation of queries and keys by their position
    window: tuple[int, int] | None = None  # the tokens before and after itself that a token attends to; None for all
    is_causal: bool = False  # a token does not attend to later tokens
    scale: float | None = None  # the factor of the scores; None for 1 / sqrt(head_dim)
    # dropout rates in training: of the outputs of attention and feed-forward before their residuals, of attention
    # probabilities, of attention's output if it differs (None for `dropout`), and of the feed-forward's last input
    dropout: float = 0.0
    attention_dropout: float = 0.0
    attention_output_dropout: float | None = None
    inner_dropout: float = 0.0

    def __post_init__(self) -> None:
        checks.choice("activation", self.activation, ACTIVATIONS)
        checks.choice("gate", self.gate, (None, "first", "second"))
        check_parts("absent", self.absent, PARTS)
        check_parts("without_bias", self.without_bias, PARTS)
        self._check_heads()
        window = self.window
        if window is not None:
            if not isinstance(window, tuple) or len(window) != 2:
                raise ValueError(f"window is {window!r}, expected two numbers of tokens, or None")
            for tokens in window:
                checks.integer_number("window", tokens, minimum=0)

    def _check_heads(self) -> None:
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size is {self.hidden_size}, expected a multiple of num_heads {self.num_heads}")
        if self.num_heads % (self.num_key_value_heads or self.num_heads):
            raise ValueError(
                f"num_heads is {self.num_heads}, expected a multiple of num_key_value_heads {self.num_key_value_heads}"
            )

    @property
    def head_size(self) -> int:
        """The width of a head."""
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def attention_size(self) -> int:
        """The width of all heads' queries."""
        return self.num_heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """The width of all heads' keys."""
        return (self.num_key_value_heads or self.num_heads) * self.head_size


def check_parts(name: str, parts: frozenset[str], known: frozenset[str]) -> None:
    """Raise ValueError for parts in the attribute `name` of a spec that are not `known`."""
    unknown = parts - known
    if unknown:
        raise ValueError(f"{name} has {', '.join(sorted(unknown))}, known parts are {', '.join(sorted(known))}")


@dataclass(frozen=True)
class EncoderSpec:
    """One encoder, whatever its family: sizes and choices, read from the family's config."""

    vocab_size: int  # rows of the word table
    type_vocab_size: int  # rows of the token type table; 0 for none
    max_positions: int  # rows of the position table; 0 for none
    hidden_size: int  # width of the activations
    embedding_size: int  # width of the embeddings, which are projected if it is not hidden_size
    layers: tuple[LayerSpec, ...]
    layer_norm_eps: float  # added to the variance in the norms outside of layers
    initializer_range: float  # standard deviation of the weights of a new model
    # the padding token; looking it up gives its embedding no gradient, unless `padding_learns` (GPT-2)
    pad_token_id: int | None
    tied_decoder: bool  # whether a language model's decoder shares the word embeddings
    # RoBERTa's position ids: tokens other than padding count from pad_token_id + 1; padding has position pad_token_id
    positions_after_padding: bool = False
    longest_text: int | None = None  # the most tokens of a text without a position table; None without a limit
    # for each layer the index of its parameters (ALBERT's layers share them); by default its own
    shared_layers: tuple[int, ...] = ()
    # layers under one number in the checkpoint's names, with a number of their own within it (ALBERT's inner groups)
    inner_layers: int = 1
    embedding_scale: float = 1.0  # the factor of word embeddings (Gemma)
    projects_embeddings: bool = False  # even if they are as wide as the hidden size (ALBERT)
    projects_words: bool = False  # only word embeddings are projected, before the others are added (BERT Hash)
    words_as_types: bool = False  # token types are looked up in the table of words, and not added by default (GPT-2)
    padding_learns: bool = False
    without_bias: frozenset[str] = frozenset()  # of the norms outside of layers ("embeddings_norm", "final_norm")
    embedding_dropout: float = 0.0  # the rate, in training
    final_dropout: float = 0.0  # of the last hidden state
    classifier_dropout: float = 0.0  # of the input of heads
    is_relative: bool = False  # attention depends on the distance between columns of a batch
    biases_scores: bool = False  # a bias by that distance is added to the scores of attention
    details: Any = None  # family-specific choices, in their own dataclass

    def __post_init__(self) -> None:
        check_parts("without_bias", self.without_bias, frozenset({"embeddings_norm", "final_norm"}))
        if self.shared_layers and len(self.shared_layers) != len(self.layers):
            raise ValueError(f"shared_layers has {len(self.shared_layers)} entries for {len(self.layers)} layers")
        if self.positions_after_padding and self.pad_token_id is None:
            raise ValueError("config: pad_token_id is null, expected an integer: positions start after it")
        if self.positions_after_padding and self.position_offset >= self.max_positions:
            raise ValueError(
                f"config: max_position_embeddings is {self.max_positions}, expected more than "
                f"{self.position_offset}: positions start after pad_token_id {self.pad_token_id}"
            )

    @property
    def summed_size(self) -> int:
        """The width at which the embeddings of words, token types and positions are added."""
        return self.hidden_size if self.projects_words else self.embedding_size

    @property
    def num_layers(self) -> int:
        """The number of layers that a token passes."""
        return len(self.layers)

    @property
    def num_heads(self) -> int:
        """The number of query heads of a layer."""
        return self.layers[0].num_heads

    @property
    def position_offset(self) -> int:
        """The position of a sequence's first token."""
        return self.pad_token_id + 1 if self.positions_after_padding else 0

    @property
    def longest_sequence(self) -> int | None:
        """The most tokens of a sequence; None without a limit."""
        return self.max_positions - self.position_offset if self.max_positions else self.longest_text
