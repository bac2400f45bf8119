"""The encoder of every family: embeddings, the layer loop, and the adapter that connects them to the model's inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bertcore.execution import eager
from bertcore.execution.graphs import Graphs
from bertcore.models.inputs import EncoderInput
from bertcore.models.registry import Family
from bertcore.nn.blocks import LayerContext
from bertcore.nn.layers import drop
from bertcore.nn.parameter import Block
from bertcore.nn.spec import EncoderSpec
from bertcore.passes import Pass
from bertcore.tape import Tensor


class Encoder(Block):
    """Embeddings, layers, a final norm where the family has one and, optionally, a pooler.

    Families differ in their blocks and their adapter; no class derives from this one.
    """

    def __init__(self, family: Family, spec: EncoderSpec, *, prefix: str, pooler: bool):
        names = _with_prefix(prefix, family.encoder_names)
        layer_names = _with_prefix(prefix, family.layer_names)
        self.spec = spec
        self.embeddings = family.embeddings(names, spec)
        self.adapter = family.adapter(names, spec)
        shared, own = spec.shared_layers or range(spec.num_layers), {}
        for index in sorted(set(shared)):
            layer, inner = divmod(index, spec.inner_layers)
            of_layer = {part: name.format(layer=layer, inner=inner) for part, name in layer_names.items()}
            own[index] = family.layer(of_layer, spec, index, family.attention)
        self.layers = [own[index] for index in shared]
        self.final_norm = None
        if "final_norm" in names:
            sizes = {"features": spec.hidden_size, "eps": spec.layer_norm_eps}
            bias = "final_norm" not in spec.without_bias
            self.final_norm = spec.layers[-1].norm(names["final_norm"], **sizes, bias=bias)
        self.pooler = family.pooler(names["pooler"], spec) if pooler and family.pooler else None
        # Under a tape each layer keeps only its input and is run again in the backward pass (`tape.checkpoint`), with
        # the same gradients, bit for bit, in a third more time. A pass that returns attentions or projections keeps
        # everything.
        self.recomputes_layers = False
        self._recorded, self._graphs = eager.Recorded(), Graphs()

    def __call__(self, run: Pass, inputs: EncoderInput) -> Tensor:
        """Return the last hidden state of a batch, (tokens, hidden), or the state that a family's own layers return."""
        self.adapter.request_states(run, inputs)
        if run.on_gpu and run.cache is None:
            return self._graphs.run(run, self, inputs)
        if run.backend == "numba" and run.is_inference and run.cache is None and run.trace.is_empty:
            return self._recorded.run(run, self, inputs)
        return eager.run(run, self, inputs)

    def forward(self, run: Pass, inputs: EncoderInput) -> Tensor:
        return self.run_layers(run, *self.adapter.begin(run, inputs, self.embeddings))

    def run_layers(self, run: Pass, state: Tensor, context: LayerContext) -> Tensor:
        """Run the layers and the final norm, and return the state after them."""
        trace = run.trace
        # A layer that ran again would record its outputs twice.
        runs_again = self.recomputes_layers and run.tape and trace.attentions is None and trace.projections is None
        for number, layer in enumerate(self.layers[: trace.layers]):
            if trace.states is not None:
                trace.states.append(state)
            if runs_again:
                state = run.tape.checkpoint(_call_of(layer, number, run, state, context))
            else:
                state = layer(run if run.seeds is None else run.at_site(number), state, context)
        if self.final_norm is not None:
            state = drop(run, self.final_norm(run, state), self.spec.final_dropout)
        if trace.states is not None:
            trace.states.append(state)
        if trace.projections is not None and len(trace.projections) != len(self.layers):
            raise ValueError("output_projections: layers of this family do not return query, key and value")
        return state


def _call_of(layer: Block, number: int, run: Pass, state: Tensor, context: LayerContext) -> Callable[[], Tensor]:
    """Return a function that runs a layer with the same dropout seeds each time."""
    return lambda: layer(run.at_site(number), state, context)


def _with_prefix(prefix: str, names: Mapping[str, str]) -> dict[str, str]:
    return {part: prefix + name for part, name in names.items()}
