"""The encoder of every family, assembled from the blocks of bertcore.nn as its spec and names say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels.program import Recordings
from bertcore.models.registry import Family
from bertcore.models.spec import EncoderSpec
from bertcore.nn.embeddings import Embeddings
from bertcore.nn.encoder import EncoderLayer
from bertcore.nn.parameter import Block
from bertcore.nn.pooler import Pooler
from bertcore.tape import current_tape

GROUP_TOKENS = 1024


@dataclass
class EncoderInput:
    """The packed tokens of a batch, in the memory of the backend in force.

    Attributes:
        input_ids, token_type_ids, position_ids: integers, (tokens,).
        cu_seqlens: int32 offsets, (sequences + 1,).
        first_tokens: the packed index of each sequence's first token.
    """

    input_ids: Any
    token_type_ids: Any
    position_ids: Any
    cu_seqlens: Any
    first_tokens: Any

    def groups(self, tokens: int) -> Iterator[EncoderInput]:
        """The same sequences in groups of about `tokens` tokens (more only where one sequence has more)."""
        total = int(self.cu_seqlens[-1])
        count = round(total / tokens)
        if count < 2:
            yield self
            return
        even = [total * group // count for group in range(count + 1)]
        cuts = np.unique(np.searchsorted(self.cu_seqlens, even))
        for first, last in itertools.pairwise(cuts):
            yield self._sequences(first, last)

    def _sequences(self, first: int, last: int) -> EncoderInput:
        offsets = self.cu_seqlens[first : last + 1]
        start, stop = offsets[0], offsets[-1]
        tokens = (array[start:stop] for array in (self.input_ids, self.token_type_ids, self.position_ids))
        starts = self.first_tokens[(self.first_tokens >= start) & (self.first_tokens < stop)]
        return EncoderInput(*tokens, offsets - start, starts - start)


@dataclass
class Trace:
    """What a caller asked to see of the inside: each list is filled layer by layer, None is not recorded."""

    hidden_states: list | None = None
    attentions: list | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the inside is recorded."""
        return self.hidden_states is None and self.attentions is None

    def hidden(self, state: Any) -> None:
        """Note one hidden state, (tokens, hidden)."""
        if self.hidden_states is not None:
            self.hidden_states.append(state)


class Encoder(Block):
    """Embeddings, layers and, if wanted, a pooler."""

    def __init__(self, family: Family, spec: EncoderSpec, *, prefix: str, pooler: bool):
        names = _with_prefix(prefix, family.encoder_names)
        layer_names = _with_prefix(prefix, family.layer_names)
        self.embeddings = Embeddings(names, spec)
        self.layers = [EncoderLayer(_numbered(layer_names, index), spec) for index in range(spec.num_layers)]
        self.pooler = Pooler(names, spec) if pooler else None
        self.forget_recordings()

    def __call__(self, inputs: EncoderInput, trace: Trace) -> Any:
        """The last hidden state, (tokens, hidden).

        In host memory a large batch is encoded group by group, so that what passes from one operation to the next stays
        in the processor's cache (and memory is bounded by a group): sequences do not see each other, so that the result
        has the same bits.
        """
        if trace.is_empty and current_tape() is None and isinstance(inputs.input_ids, np.ndarray):
            parts = [self._encode(group, trace) for group in inputs.groups(GROUP_TOKENS)]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        return self._encode(inputs, trace)

    def _encode(self, inputs: EncoderInput, trace: Trace) -> Any:
        hidden = self.embeddings(inputs.input_ids, inputs.token_type_ids, inputs.position_ids)
        trace.hidden(hidden)
        if trace.is_empty and _can_be_recorded(hidden):
            return self._recordings.run(kernels.get_num_threads(), self._run_layers, hidden, inputs.cu_seqlens)
        return self._run_layers(hidden, inputs.cu_seqlens, trace)

    def forget_recordings(self) -> None:
        """To be called when values of parameters were replaced: programs read the old ones."""
        self._recordings = Recordings()

    def _run_layers(self, hidden: Any, cu_seqlens: Any, trace: Trace | None = None) -> Any:
        trace = trace or Trace()
        for layer in self.layers:
            hidden = layer(hidden, cu_seqlens, trace.attentions)
            trace.hidden(hidden)
        return hidden


def _can_be_recorded(hidden: Any) -> bool:
    """Programs compute in float32 on Numba."""
    is_float32 = isinstance(hidden, np.ndarray) and hidden.dtype == np.float32
    return is_float32 and kernels.resolve(None, on_gpu=False) == "numba"


def _with_prefix(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {part: prefix + name for part, name in names.items()}


def _numbered(names: Mapping[str, str], layer: int) -> dict[str, str]:
    return {part: name.format(layer=layer) for part, name in names.items()}
