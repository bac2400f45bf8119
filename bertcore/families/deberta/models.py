"""DeBERTa's masked language model, with its enhanced mask decoder on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bertcore.execution import Pass, Trace
from bertcore.families.deberta.adapter import COMPONENTS
from bertcore.models.adapter import Encoded
from bertcore.models.auto import AutoModelForMaskedLM
from bertcore.models.spec import MOST_POSITIONS, ConfigReader
from bertcore.nn import functional
from bertcore.nn.layers import Embedding
from bertcore.nn.packing import PackedBatch

KEY = "enhanced_mask_decoder"
STEPS = 2


class DebertaForMaskedLM(AutoModelForMaskedLM):
    """AutoModelForMaskedLM of DeBERTa.

    With the option `enhanced_mask_decoder` (or that key in the config) words are predicted by the enhanced mask decoder
    (He et al. 2021, arXiv:2006.03654, section 3.2, and its authors' code), by which the published models were
    pretrained: absolute positions are added to the states below the last layer, as queries; the last layer runs twice,
    each time with keys and values of the states below and the queries of the time before; the head reads the second
    result. The checkpoint holds the table of positions. transformers' models, with either of their heads, read the last
    hidden state, as this one does without the option.

    Raises:
        ValueError: for the option where the config has position_biased_input, which adds the positions to the words, or
            embeddings narrower than the hidden size.
    """

    def __init__(self, config: Mapping[str, Any], *, enhanced_mask_decoder: bool | None = None):
        chosen = {} if enhanced_mask_decoder is None else {KEY: enhanced_mask_decoder}
        super().__init__({**config, **chosen})
        self.positions = None
        if ConfigReader(self.config).flag(KEY, False):
            self.positions = self._make_positions()

    def _make_positions(self) -> Embedding:
        read, spec = ConfigReader(self.config), self.spec
        read.require(position_biased_input=False)
        if spec.embedding_size != spec.hidden_size:
            raise ValueError(
                f"config: embedding_size is {spec.embedding_size}, expected hidden_size {spec.hidden_size} for {KEY}"
            )
        name = f"{self.family.name_rules.prefix}embeddings.position_embeddings"
        rows = read.size("max_position_embeddings", 512, most=MOST_POSITIONS)
        return Embedding(name, rows=rows, features=spec.hidden_size)

    def _pass(self, *given: Any, read: Callable[[Encoded], Any], trace: Trace, **options: Any) -> Any:
        if self.positions is None:
            return super()._pass(*given, read=read, trace=trace, **options)
        shows_last = not trace.is_empty or options.get(COMPONENTS, False)
        if not shows_last:
            trace.layers = self.spec.num_layers - 1
        elif trace.states is None:
            trace.states = []

        def read_below(encoded: Encoded) -> Any:
            if shows_last:
                encoded.hidden = trace.states[-2]
                encoded.traced["hidden_states"] = encoded.traced["hidden_states"] if trace.shows_states else None
            return read(encoded)

        return super()._pass(*given, read=read_below, trace=trace, **options)

    def _read(self, encoded: Encoded, rows: Any = None) -> Any:
        """With the decoder `encoded` has the states below the last layer.

        A token is decoded from these and from itself, so that the maps are of the tokens that are wanted alone.
        """
        if self.positions is None:
            return super()._read(encoded, rows)
        run = replace(encoded.run, trace=Trace())
        layer, below, places = self.encoder.layers[-1], encoded.hidden, self._places(run, encoded.packed)
        context = self.encoder.adapter.context(run, encoded.inputs)
        keys = layer.attention.keys(run, below, context)
        if rows is not None:
            below, places = functional.take_rows(run, below, rows=rows), places[rows]
        states = functional.add(run, self.positions(run, places), below)
        for _ in range(STEPS):
            attended = layer.attention.attend_to(run, keys, context, queries=states, rows=rows)
            states = layer.feed_forward(run, layer.attention.close(run, attended, states), context)
        return states

    def _places(self, run: Pass, packed: PackedBatch) -> Any:
        longest, most = packed.position_ids.max(initial=0) + 1, self.positions.table.shape[0]
        if longest > most:
            raise ValueError(f"input_ids has a text of {longest} tokens, {KEY} has positions for {most}")
        return run.to_backend(packed.position_ids)
