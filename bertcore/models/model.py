"""Models: an encoder, with or without a head, that maps ids to named outputs."""

from __future__ import annotations

import inspect
import os
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Generic, Self

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.arguments import DTYPES, INT8, DType, check_count, warn_caller
from bertcore.checkpoint.files import checkpoint_folder, locked
from bertcore.kernels import checks
from bertcore.kernels.arrays import ArrayLike
from bertcore.kernels.linear import LOW_PRECISION
from bertcore.models.adapter import Encoded
from bertcore.models.encoder import Encoder
from bertcore.models.outputs import OutputT
from bertcore.models.registry import family_of
from bertcore.models.spec import Config, ConfigReader
from bertcore.nn.forms import bfloat16
from bertcore.nn.layers import Embedding
from bertcore.nn.parameter import NamedParameters, Parameter
from bertcore.passes import Pass, Seeds, Trace, mixed_seed
from bertcore.tape import Tensor, value_of


class NewlyInitialisedWarning(UserWarning):
    """A checkpoint lacks a head, or the pooler, that the model has."""


class Model(NamedParameters, Generic[OutputT]):
    """The base of all models: parameters, loading and saving, and the pass through the encoder to an `OutputT`.

    Attributes:
        config: the config as published, without the storage format of the weights; its keys are also attributes.
        spec: the encoder's spec, read from the config.
        dtype: one of DTYPES.
        newly_initialised: the names of the parameters that are not in the checkpoint (a head, the pooler).
        training: whether dropout is applied; see `train`.
        passes: the number of passes with dropout since the seed was set; with the same number, a pass drops the same
            elements.
        is_part: whether the model is part of another one, which names its parameters and saves it.
        predicts_next_words: whether the label of a token is compared with the scores of the previous token.
    """

    newly_initialised: Sequence[str] = ()
    training = False
    passes = 0
    is_part = False
    predicts_next_words = False
    _dropout_seed = 0
    _architecture = ""  # the ending of transformers' class names
    _has_head = True
    _targets: Sequence[str] = ()
    _config_name = "config.json"

    def __init__(self, config: Mapping[str, Any], *, add_pooling_layer: bool):
        self.family = family_of(config)
        self.config = Config(config)
        self.spec = self.family.spec_from_config(config)
        prefix = self.family.name_rules.prefix if self._has_head else ""
        self.encoder = Encoder(self.family, self.spec, prefix=prefix, pooler=add_pooling_layer)

    def __repr__(self) -> str:
        layers, width, numbers = self.spec.num_layers, self.spec.hidden_size, self.num_parameters()
        name = f"{type(self).__name__}: {self.family.model_type}, {self.dtype}"
        return f"<{name}, {layers} layers, hidden_size {width}, {numbers:,} parameters>"

    @property
    def base_model_prefix(self) -> str:
        """The prefix of the encoder's parameters in a model with a head: "bert"."""
        return self.family.name_rules.prefix.removesuffix(".")

    @classmethod
    def class_for_config(cls, config: Mapping[str, Any]) -> type[Self]:
        """Return the class that replaces this one in the family of `config`."""
        return family_of(config).models.get(cls.__name__, cls)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike[str],
        *,
        dtype: DType | None = None,
        task: str | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        **options: Any,
    ) -> Self:
        """Load a published checkpoint: config.json beside model.safetensors or pytorch_model.bin (or their shards).

        Args:
            folder: the folder of the files, a weights file with config.json beside it, or the model's id on the Hugging
                Face hub ("ORGANISATION/NAME"). An existing path takes precedence.
            dtype: "float32", "float64", "bfloat16", "int8" or "int8_weight_only" for the CPU; "float32", "float16" or
                "bfloat16" for CUDA. On the CPU, low precision is for inference: linear weights are stored in that
                dtype, prepared for the active backend, and embedding tables in bfloat16; activations and results are
                float32. int8_weight_only takes as much memory as int8 and computes in float32. By default, checkpoints
                written in low precision (`bertcore quantize`, `save_pretrained`) keep their dtype, and all others load
                as float32, whatever the file holds. A dtype other than the checkpoint's converts the weights; int8
                values are then multiplied by their scales.
            task: the task whose adapter is added to the weights, for a checkpoint with an adapter per task
                (jina-embeddings-v3: "retrieval.query", ...); none by default, as in the published model.
            revision, token, cache_dir, local_files_only: for an id on the hub, as in `checkpoint.resolve`.
            options: the options of the class (add_pooling_layer of AutoModel, num_labels of classifiers).

        Raises:
            CheckpointError (a ValueError): for a wrong file, config key or tensor, which the message names.
            TypeError, ValueError: for a wrong option; an unknown task; int8 on CUDA; float16 on Numba.
            BackendUnavailable: for low precision on the CPU, if the active backend cannot run here.

        A head or pooler that is missing from the checkpoint is newly initialised, with a warning that names it.
        """
        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        folder = checkpoint.resolve(folder, **hub)
        with locked(checkpoint_folder(folder), shared=True):  # so that config and weights are from the same save
            config, stored_dtype = checkpoint.split_dtype(folder, cls._read_config(folder))
            with checkpoint.naming_config(folder):
                model = cls._made(config, options, Model.from_pretrained)
            opened = model.family.name_rules.published(checkpoint.open_checkpoint(folder))
        opened = model.family.adapters(ConfigReader(model.config)).applied(opened, task)
        rules, expected = model.family.name_rules, model.expected_tensors()
        grouped = stored_dtype == "int8_weight_only"
        scales = {
            "scales": model.expected_scales(grouped=grouped),
            "scale_dtype": bfloat16() if grouped else np.float32,
            "keeps_float16": grouped and dtype not in (None, stored_dtype),  # of GGUF: other dtypes are then exact
        }
        arrays = checkpoint.load_parameters(opened, expected, rules, optional=rules.heads, **scales)
        absent = [name for name in expected if name not in arrays]
        if absent:
            lost = f"{folder} does not hold {', '.join(absent)}: newly initialised, train before use"
            warn_caller(lost, NewlyInitialisedWarning)
        model.newly_initialised = absent
        rng, spread = np.random.default_rng(0), model.spec.initializer_range

        def fill(parameter: Parameter, precision: str) -> None:
            parameter.fill(ChainMap(parameter.initial_tensors(absent, rng, spread, precision), arrays), precision)

        model._fill(fill, (stored_dtype or "float32") if dtype is None else dtype)
        return model

    @classmethod
    def _read_config(cls, folder: str | os.PathLike[str]) -> dict[str, Any]:
        return checkpoint.read_config(folder)

    @classmethod
    def _made(cls, config: Mapping[str, Any], options: Mapping[str, Any], method: Callable[..., Any]) -> Self:
        """Return a model without values. Raises TypeError for an option that neither its class nor `method` takes."""
        kind = cls.class_for_config(config)
        known = _keywords(kind)
        for name in options:
            if name not in known:
                takes = ", ".join(known + _keywords(method))
                raise TypeError(f"{cls.__name__} got an unexpected keyword argument {name!r}, expected one of {takes}")
        return kind(config, **options)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | str, *, dtype: DType = "float32", seed: int = 0, **options: Any
    ) -> Self:
        """Create a model with random weights: normal with the config's initializer_range, biases 0, norm weights 1.

        `config` is a config as published, or the name of a preset (`bertcore info` lists them). `dtype` and errors are
        as in `from_pretrained`.
        """
        if isinstance(config, str):
            from bertcore.presets import preset_config

            config = preset_config(config)
        model = cls._made(config, options, Model.from_config)
        rng, spread = np.random.default_rng(checks.seed("seed", seed)), model.spec.initializer_range
        model._fill(lambda parameter, precision: parameter.initialise(rng, spread, precision), dtype)
        return model

    def _fill(self, fill: Callable[[Parameter, str], None], dtype: str) -> None:
        checks.choice("dtype", dtype, DTYPES)
        self.dtype = dtype
        with self._backend_to_fill_for():
            for parameter in self.parameters():
                fill(parameter, dtype)

    def _backend_to_fill_for(self) -> AbstractContextManager[None]:
        """Return a context with the backend that low precision is prepared for; other dtypes do not need one yet."""
        if self.dtype == "float16":
            _check_float16()
        if self.dtype not in LOW_PRECISION:
            return nullcontext()
        backend = kernels.resolve_backend(None, on_gpu=False)
        if self.dtype in INT8 and backend == "cupy":
            raise ValueError(f"dtype is {self.dtype!r}, which runs on backends numpy and numba, not on 'cupy'")
        return kernels.use_backend(backend)

    def get_input_embeddings(self) -> Embedding:
        """Return the table of word embeddings; its `weight` is (vocab_size, features).

        Raises ValueError for Transformer-XL, which has several tables of words.
        """
        words = getattr(self.encoder.embeddings, "words", None)
        if words is None:
            raise ValueError(f"the model is of {self.config['model_type']}, expected a family with one table of words")
        return words

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> Embedding:
        """Resize the vocabulary to `new_num_tokens`, for a tokenizer with added tokens, and return the new embeddings.

        Args:
            new_num_tokens: the new size, at least 1; by default the present one. Rows beyond it are dropped.
            pad_to_multiple_of: round the size up to a multiple of this.
            mean_resizing: set new rows to the mean of the old ones; otherwise they are random, as in a new model.

        A decoder's weight and bias get the same number of rows. Existing optimisers must be created again. Raises
        ValueError for low precision, and for Transformer-XL, which has several tables of words.
        """
        self.get_input_embeddings()
        if self.dtype in LOW_PRECISION:
            raise ValueError(f"dtype is {self.dtype}, expected float32, float64 or float16: resize before converting")
        count = self.spec.vocab_size if new_num_tokens is None else check_count("new_num_tokens", new_num_tokens)
        if pad_to_multiple_of is not None:
            count = -(-count // check_count("pad_to_multiple_of", pad_to_multiple_of)) * pad_to_multiple_of
        pooler = {"add_pooling_layer": self.encoder.pooler is not None}
        options = {name: value for name, value in pooler.items() if name in _keywords(type(self))}
        new, old = type(self)(self._config_with(count), **options), self.state_dict()
        rng, spread, kept = np.random.default_rng(0), self.spec.initializer_range, min(count, self.spec.vocab_size)

        def resized(name: str, initial: np.ndarray) -> np.ndarray:
            if old[name].shape == initial.shape:
                return np.array(old[name])
            rows, old_rows = initial, old[name]
            if rows.shape[0] == old_rows.shape[0]:  # part of MobileBERT's decoder has one column per token
                rows, old_rows = rows.T, old_rows.T
            if mean_resizing:
                rows[...] = old_rows.mean(axis=0, dtype=np.float64)
            rows[:kept] = old_rows[:kept]
            return initial

        def fill(parameter: Parameter, precision: str) -> None:
            initial = parameter.initial_tensors(parameter.names, rng, spread, precision)
            parameter.fill({name: resized(name, array) for name, array in initial.items()}, precision)

        new._fill(fill, self.dtype)
        new.encoder.recomputes_layers = self.encoder.recomputes_layers
        own = {name: value for name, value in vars(self).items() if name in ("training", "passes", "_dropout_seed")}
        self.__dict__.update(vars(new) | own)
        return self.get_input_embeddings()

    def _config_with(self, vocab_size: int) -> dict[str, Any]:
        return self.config | {"vocab_size": vocab_size}

    def train(self, seed: int | None = None) -> Self:
        """Switch dropout on, at the rates of the config, and return the model.

        Dropped elements are a function of `seed` and of the number of passes since it was set; without a seed the count
        continues. They do not depend on the number of threads. Raises TypeError or ValueError for a seed that is not a
        64-bit integer.
        """
        if seed is not None:
            self._dropout_seed, self.passes = checks.seed("seed", seed), 0
        self.training = True
        return self

    def eval(self) -> Self:
        """Switch dropout off and return the model."""
        self.training = False
        return self

    def gradient_checkpointing_enable(self) -> None:
        """Run each layer again in the backward pass instead of keeping its intermediate results.

        This takes a third more time, but the memory of one layer instead of all (Chen et al. 2016, arXiv:1604.06174).
        The gradients are bit-identical.
        """
        self.encoder.recomputes_layers = True

    def gradient_checkpointing_disable(self) -> None:
        """Let layers keep what their backward pass needs."""
        self.encoder.recomputes_layers = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        """True if layers run again in the backward pass."""
        return self.encoder.recomputes_layers

    def _with_seeds(self, run: Pass) -> Pass:
        """Return a new pass, with dropout if the model is in training; passes with dropout are counted."""
        if not self.training:
            return run
        self.passes += 1
        return replace(run, seeds=Seeds(mixed_seed(self._dropout_seed, self.passes)))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors; bertcore and transformers load them back to the same outputs.

        The config uses transformers' present spelling, whatever spelling was read; an adapter is merged into the
        weights.

        The files of a bfloat16 or int8 model are as small as the model, and load without `dtype`;
        `bertcore.checkpoint.config` describes their format.
        """
        if self.is_part:
            raise ValueError("this model is part of another one: call that model's save_pretrained")
        tensors = self.state_dict()
        if self.dtype in INT8:
            tensors = {name: array for parameter in self.parameters() for name, array in parameter.tensors()}
        checkpoint.save_checkpoint(folder, self.config_to_save(), tensors, config_name=self._config_name)

    def config_to_save(self) -> dict[str, Any]:
        """Return the config to save beside the weights, with the dtype and the name of transformers' class."""
        ending = self.family.endings.get(self._architecture, self._architecture)
        config = {**self.family.config_to_save(self.config, self.spec)}
        config["architectures"] = [self.family.architecture + ending]
        tied = [copy.removesuffix(".weight") for copy, _ in self.family.name_rules.tied if copy.endswith(".weight")]
        return checkpoint.with_dtype(config, self.dtype, unquantized=tied, smoothed=self._is_smoothed())

    def _is_smoothed(self) -> bool:
        tensors = (name for it in self.parameters() for name, _ in it.tensors())
        return self.dtype == "int8" and any(name.endswith(checkpoint.INPUT_SCALE) for name in tensors)

    def __call__(
        self,
        input_ids: ArrayLike,
        attention_mask: ArrayLike | None = None,
        token_type_ids: ArrayLike | None = None,
        position_ids: ArrayLike | None = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_projections: bool | Collection[int] = False,
        **targets: Any,
    ) -> OutputT:
        """Run the model on a batch.

        Args:
            input_ids: (sequences, length) integers: lists, or a NumPy or CuPy array.
            attention_mask: 1 for real tokens, 0 for padding, (sequences, length); all real by default.
            token_type_ids: (sequences, length), zero by default.
            position_ids: (sequences, length); by default counted from each sequence's first real token.
            output_hidden_states, output_attentions: whether to return these, too; by default the config's keys decide.
            output_projections: the same; True for all layers, or a list of layer numbers, counted from 1: other layers
                have None.
            targets: the head's labels, which each class documents, and family-specific inputs (`family.inputs`).

        Returns:
            The output of the class; values at padded positions are zero.

        Raises:
            TypeError, ValueError: for a wrong argument; the message names it, the place and what was expected.
        """
        own = {name: targets.pop(name) for name in self.family.inputs if name in targets}
        if unknown := [name for name in targets if name not in self._targets]:
            takes = [*self._targets, *self.family.inputs]
            known = f"; it takes {', '.join(takes)}, too" if takes else ""
            raise TypeError(f"{type(self).__name__} got an unexpected argument {unknown[0]!r}{known}")
        given = input_ids, attention_mask, token_type_ids, position_ids
        own["keep_padding"] = self._keeps_padding(targets)
        if not isinstance(output_projections, bool):
            self._check_layers(output_projections)
        states = self.config.get("output_hidden_states") if output_hidden_states is None else output_hidden_states
        probabilities = self.config.get("output_attentions") if output_attentions is None else output_attentions
        trace = Trace.asked(bool(states), bool(probabilities), output_projections)
        return self._pass(*given, read=lambda encoded: self._output(encoded, **targets), trace=trace, **own)

    def _pass(self, *given: Any, read: Callable[[Encoded], Any], trace: Trace, **options: Any) -> Any:
        """Return read(encoded batch), for a batch that the adapter packs from `given` and `options`."""
        adapter = self.encoder.adapter
        with kernels.on_device_of(given[0]):
            run = Pass.begin(given[0], trace=trace)
            inputs = adapter.pack(run, *given, **options)
            run = self._with_seeds(run)
            encoded = adapter.restore(run, inputs, self.encoder(run, inputs))
            encoded.pooler = self.encoder.pooler
            return read(encoded)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arrays that a call takes."""
        return ("input_ids", "attention_mask", "token_type_ids", "position_ids", *self.family.inputs, *self._targets)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the arguments that the loss compares the output with."""
        return tuple(name for name in self._targets if name != "num_choices")

    def _keeps_padding(self, targets: Mapping[str, Any]) -> bool:
        """Return whether the loss reads outputs at padded positions, so that these must be computed."""
        return False

    def _check_layers(self, output_projections: Collection[int]) -> None:
        known = range(1, self.spec.num_layers + 1)
        expected = f"numbers of layers from 1 to {len(known)}"
        if not isinstance(output_projections, Collection) or isinstance(output_projections, str):
            raise TypeError(f"output_projections is {output_projections!r}, expected True, False or {expected}")
        if wrong := [number for number in output_projections if number not in known]:
            raise ValueError(f"output_projections has {wrong[0]!r}, expected {expected}")

    def _output(self, encoded: Encoded, **targets: Any) -> OutputT:
        raise NotImplementedError(f"{type(self).__name__} is not a model of its own")

    def encode_packed(self, input_ids: Sequence[Any], seen: Sequence[Any] | None = None) -> tuple[Any, np.ndarray]:
        """Encode sequences of any lengths side by side, without padding in the input or the output.

        Args:
            input_ids: the ids of each sequence, lists or 1-D integer arrays; token types are 0.
            seen: booleans for each sequence, (tokens,): a token with False gets a hidden state, but no token attends to
                it, like ColBERT's [MASK] tokens; by default all are True.

        Returns:
            The last hidden state, (tokens, hidden), in the memory of the active backend, and the offsets of its
            sequences, int32 (sequences + 1,), in host memory.

        Raises:
            ValueError: for a wrong sequence; the message names it, the place and what was expected.
        """
        hidden, cu_seqlens = self.packed_states(input_ids, seen)
        return value_of(hidden), cu_seqlens

    def packed_states(self, input_ids: Sequence[Any], seen: Sequence[Any] | None = None) -> tuple[Tensor, np.ndarray]:
        """Return the results of `encode_packed`; under a tape the hidden state is a Variable."""
        with kernels.on_device_of(input_ids):
            run = Pass.begin(input_ids)
            inputs, cu_seqlens = self.encoder.adapter.pack_sequences(run, input_ids, seen)
            return self.encoder(self._with_seeds(run), inputs), cu_seqlens


def _keywords(function: Callable[..., Any]) -> list[str]:
    """Return the keyword-only arguments."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def _check_float16() -> None:
    """Raise ValueError if the active backend, or the only one that "auto" finds here, does not compute in float16."""
    backend, no_gpu = kernels.get_backend(), kernels.unavailable_reason("cupy")
    if backend == "numba" or (backend == "auto" and no_gpu):
        raise ValueError(
            "dtype is 'float16', which backend 'numba' does not support: load the model with dtype='float32' or "
            "'bfloat16'" + (f" (float16 is for CUDA, which cannot run here: {no_gpu})" if no_gpu else "")
        )
