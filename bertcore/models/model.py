"""Models: an encoder, with or without a head, from the door (lists of ids) to the named outputs."""

from __future__ import annotations

import functools
import importlib
import math
import os
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.heads.masked_lm import MaskedLMHead
from bertcore.models.encoder import Encoder, EncoderInput, Trace
from bertcore.models.inputs import pack, pack_sequences, packed_labels
from bertcore.models.outputs import EncoderOutput, MaskedLMOutput, ModelOutput
from bertcore.models.registry import family_of
from bertcore.nn import functional
from bertcore.nn.packing import PackedBatch
from bertcore.nn.parameter import Block
from bertcore.tape import value_of

DTYPES = ("float32", "float64", "float16", "bfloat16")


class NewlyInitialisedWarning(UserWarning):
    """A checkpoint lacks a head, or the pooler, that the model has."""


def _on_one_backend(forward: Callable) -> Callable:
    """Run a model's forward on the backend in force, "auto" resolved once for the whole pass."""

    @functools.wraps(forward)
    def call(self: Any, input_ids: Any, *args: Any, **options: Any) -> Any:
        on_gpu = kernels.namespace(input_ids) is not np
        with kernels.use_backend(kernels.resolve(None, on_gpu=on_gpu)):
            return forward(self, input_ids, *args, **options)

    return call


class Encoded(NamedTuple):
    """A batch on its way from the encoder to a head."""

    packed: PackedBatch
    inputs: EncoderInput
    hidden: Any  # the last hidden state, (tokens, hidden)
    traced: dict[str, tuple | None]  # hidden_states and attentions, as users see them


class Model(Block):
    """What all models share: their parameters, loading and saving, and the pass through the encoder.

    Attributes:
        config: the config as published.
        spec: what it says of the encoder.
        newly_initialised: the names of the parameters that the checkpoint did not hold (a head, the pooler).
    """

    newly_initialised: Sequence[str] = ()
    _has_head = False
    _targets: Sequence[str] = ()

    def __init__(self, config: Mapping[str, Any], *, add_pooling_layer: bool):
        self.config = dict(config)
        self.family = family_of(config)
        self.spec = self.family.spec_from_config(config)
        prefix = self.family.name_rules.prefix if self._has_head else ""
        self.encoder = Encoder(self.family, self.spec, prefix=prefix, pooler=add_pooling_layer)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike, *, dtype: str = "float32", **options: Any) -> Self:
        """Load a published checkpoint: config.json beside model.safetensors (one file, or shards with their index).

        Args:
            folder: where the files are.
            dtype: "float32" or "float64" for the CPU; "float32", "float16" or "bfloat16" for CUDA.
            options: those of the class (AutoModel's add_pooling_layer).

        Raises:
            CheckpointError (a ValueError): what is wrong with which file or tensor.
            ValueError: what is wrong with which key of the config.

        A head, or the pooler, that the checkpoint lacks altogether is newly initialised, with a warning that names it.
        """
        model = cls(checkpoint.read_config(folder), **options)
        rules, expected = model.family.name_rules, model.expected_tensors()
        arrays = checkpoint.load_parameters(checkpoint.open_checkpoint(folder), expected, rules, optional=rules.heads)
        absent = [name for name in expected if name not in arrays]
        if absent:
            warnings.warn(
                f"{folder} does not hold {', '.join(absent)}: newly initialised, train before use",
                NewlyInitialisedWarning,
                stacklevel=2,
            )
        model.newly_initialised = absent
        model._fill(arrays | model._initial_arrays(absent, seed=0), dtype)
        return model

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, dtype: str = "float32", seed: int = 0, **options: Any) -> Self:
        """A new model with random weights: normal with the config's initializer_range, biases 0, norms' weights 1."""
        model = cls(config, **options)
        model._fill(model._initial_arrays(model.expected_tensors(), seed), dtype)
        return model

    def expected_tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of a checkpoint of this model, by name."""
        return {name: shape for parameter in self.parameters() for name, shape in parameter.expected.items()}

    def _initial_arrays(self, names: Container[str], seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        makers = {
            "normal": lambda shape: rng.normal(0.0, self.spec.initializer_range, shape),
            "zeros": np.zeros,
            "ones": np.ones,
        }
        return {
            name: makers[parameter.initial](shape)
            for parameter in self.parameters()
            for name, shape in parameter.expected.items()
            if name in names
        }

    def _fill(self, arrays: Mapping[str, np.ndarray], dtype: str) -> None:
        numpy_dtype = _numpy_dtype(dtype)
        for parameter in self.parameters():
            parameter.fill(arrays, numpy_dtype)

    def state_dict(self) -> dict[str, np.ndarray]:
        """The parameters in host memory, by their names in a checkpoint; read-only views, nothing is copied."""
        arrays = {}
        for parameter in self.parameters():
            view = parameter.array().view()
            view.flags.writeable = False
            arrays.update(parameter.parts(view))
        return arrays

    def load_state_dict(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the parameters' values by `arrays` (name -> array, as `state_dict` gives them), converted to the
        model's dtype. The model keeps arrays of its own.

        Raises:
            ValueError: names that are missing or unknown, or which array has the wrong shape; nothing is replaced then.
        """
        expected = self.expected_tensors()
        if set(arrays) != set(expected):
            missing, unknown = sorted(set(expected) - set(arrays)), sorted(set(arrays) - set(expected))
            raise ValueError(f"arrays: missing are {missing or 'none'}, unknown are {unknown or 'none'}")
        for name, shape in expected.items():
            if arrays[name].shape != shape:
                raise ValueError(f"arrays[{name!r}] has shape {arrays[name].shape}, expected {shape}")
        for parameter in self.parameters():
            parameter.fill({name: np.array(arrays[name]) for name in parameter.names}, parameter.dtype)

    def num_parameters(self) -> int:
        """How many numbers the parameters hold; shared ones count once."""
        return sum(math.prod(shape) for shape in self.expected_tensors().values())

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write config.json and model.safetensors; bertcore and transformers load them back to the same outputs."""
        checkpoint.save_checkpoint(folder, self.config, self.state_dict())

    @_on_one_backend
    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        *,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
        **targets: Any,
    ) -> ModelOutput:
        """Run the model on a batch.

        Args:
            input_ids: (sequences, length) integers: lists, or a NumPy or CuPy array.
            attention_mask: 1 for real tokens, 0 for padding, (sequences, length); all real by default.
            token_type_ids: (sequences, length), zero by default.
            position_ids: (sequences, length); by default counted from each sequence's first real token.
            output_hidden_states, output_attentions: whether to return those too.
            targets: what the head is to be compared with (labels); each class tells its own.

        Returns:
            The output of the class; what belongs to padding is zero.

        Raises:
            TypeError, ValueError: which argument is wrong, where, and what was expected.
        """
        self._check_targets(targets)
        packed, arrays = pack(self.spec, input_ids, attention_mask, token_type_ids, position_ids)
        trace = Trace([] if output_hidden_states else None, [] if output_attentions else None)
        hidden = self.encoder(arrays, trace)
        return self._output(Encoded(packed, arrays, hidden, _padded(packed, trace)), **targets)

    def _check_targets(self, targets: Mapping[str, Any]) -> None:
        unknown = [name for name in targets if name not in self._targets]
        if unknown:
            known = f"; its targets are {', '.join(self._targets)}" if self._targets else ""
            raise TypeError(f"{type(self).__name__} got an unexpected argument {unknown[0]!r}{known}")

    def _output(self, encoded: Encoded, **targets: Any) -> ModelOutput:
        raise NotImplementedError(f"{type(self).__name__} is not a model of its own")

    @_on_one_backend
    def encode_packed(self, input_ids: Sequence[Any]) -> tuple[Any, np.ndarray]:
        """Encode sequences of any lengths side by side, without padding on the way in or out.

        Args:
            input_ids: the ids of each sequence, lists or 1-D integer arrays; token types are 0.

        Returns:
            The last hidden state, (tokens, hidden), in the memory of the backend in force, and the offsets of the
            sequences in it, int32 (sequences + 1,), in host memory.

        Raises:
            ValueError: which sequence is wrong, where, and what was expected.
        """
        arrays, cu_seqlens = pack_sequences(self.spec, input_ids)
        return value_of(self.encoder(arrays, Trace())), cu_seqlens


def _numpy_dtype(name: str) -> np.dtype:
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}, expected one of {', '.join(DTYPES)}")
    if name != "bfloat16":
        return np.dtype(name)
    try:
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        raise ImportError("dtype 'bfloat16' needs the package ml_dtypes: pip install ml_dtypes") from error


def _padded(packed: PackedBatch, trace: Trace) -> dict[str, tuple | None]:
    """The hidden states and attentions of a trace as users see them."""
    states, attentions = trace.hidden_states, trace.attentions
    return {
        "hidden_states": None if states is None else tuple(packed.pad(value_of(state)) for state in states),
        "attentions": None if attentions is None else tuple(map(packed.pad_attention, attentions)),
    }


class AutoModel(Model):
    """An encoder without a head: texts' hidden states, and with add_pooling_layer a vector for each text.

    Calls return an EncoderOutput.
    """

    def __init__(self, config: Mapping[str, Any], *, add_pooling_layer: bool = True):
        super().__init__(config, add_pooling_layer=add_pooling_layer)

    def _output(self, encoded: Encoded) -> EncoderOutput:
        packed, pooler, pooled = encoded.packed, self.encoder.pooler, None
        if pooler is not None:
            pooled = packed.pad_sequences(value_of(pooler(encoded.hidden, encoded.inputs.first_tokens)))
        return EncoderOutput(
            last_hidden_state=packed.pad(value_of(encoded.hidden)), pooler_output=pooled, **encoded.traced
        )


class AutoModelForMaskedLM(Model):
    """An encoder with the masked language model's head: a score for every word at every token.

    Calls take `labels`, the right words, (sequences, length), -100 where there is none, and return a MaskedLMOutput.
    """

    _has_head = True
    _targets = ("labels",)

    def __init__(self, config: Mapping[str, Any]):
        super().__init__(config, add_pooling_layer=False)
        self.head = MaskedLMHead(self.family.head_names, self.spec, self.encoder.embeddings.words.table)

    def _output(self, encoded: Encoded, labels: Any = None) -> MaskedLMOutput:
        logits = self.head(encoded.hidden)
        loss = None
        if labels is not None:
            targets = packed_labels(encoded.packed, labels, self.spec.vocab_size)
            loss = functional.cross_entropy(logits, labels=targets)
        return MaskedLMOutput(loss=loss, logits=encoded.packed.pad(value_of(logits)), **encoded.traced)
