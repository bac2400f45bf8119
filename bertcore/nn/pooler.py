"""The pooler: one vector for a sequence, from its first token."""

from typing import Any

from bertcore.execution import Pass
from bertcore.nn import functional
from bertcore.nn.layers import Linear
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec


class FirstToken(Block):
    """The hidden state of the first token as it is."""

    def __call__(self, run: Pass, hidden: Any, first_tokens: Any) -> Any:
        """(tokens, hidden) and the packed indices of the first tokens -> (sequences, hidden)."""
        return functional.take_rows(run, hidden, rows=first_tokens)


class Pooler(Block):
    """tanh(linear(hidden state of the first token)) (Devlin et al. 2018, section 3)."""

    def __init__(self, name: str, spec: EncoderSpec):
        width = spec.hidden_size
        self.dense = Linear(name, in_features=width, out_features=width, activation="tanh")

    def __call__(self, run: Pass, hidden: Any, first_tokens: Any) -> Any:
        """(tokens, hidden) and the packed indices of the first tokens -> (sequences, hidden)."""
        return self.dense(run, functional.take_rows(run, hidden, rows=first_tokens))
