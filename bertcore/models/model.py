"""Models: an encoder, with or without a head, from lists of ids to the named outputs."""

from __future__ import annotations

import inspect
import os
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Self

import numpy as np

from bertcore import checkpoint, kernels
from bertcore.arguments import DTYPES, INT8, DType, check_count, warn_caller
from bertcore.checkpoint.files import checkpoint_folder, locked
from bertcore.kernels import checks
from bertcore.kernels.linear import LOW_PRECISION
from bertcore.models.adapter import Encoded
from bertcore.models.encoder import Encoder
from bertcore.models.named_parameters import NamedParameters
from bertcore.models.outputs import ModelOutput
from bertcore.models.registry import family_of
from bertcore.models.spec import Config, ConfigReader
from bertcore.nn.forms import bfloat16
from bertcore.nn.layers import Embedding
from bertcore.nn.parameter import Parameter
from bertcore.passes import Pass, Seeds, Trace, mixed_seed
from bertcore.tape import Tensor, value_of


class NewlyInitialisedWarning(UserWarning):
    """A checkpoint lacks a head, or the pooler, that the model has."""


class Model(NamedParameters):
    """The base of all models: parameters, loading and saving, and the pass through the encoder.

    Attributes:
        config: the config as published, without how the weights are stored; its keys are attributes, too.
        spec: what it says of the encoder.
        dtype: one of DTYPES.
        newly_initialised: the names of the parameters that the checkpoint did not hold (a head, the pooler).
        training: whether dropout is applied; see `train`.
        passes: how many passes dropped since the seed was given; a pass that is to drop the same again is given the
            same number.
        is_part: whether it is a part of another model, by whose names its parameters go, and which saves it.
        predicts_next_words: whether labels of tokens are compared with the scores of the token before.
    """

    newly_initialised: Sequence[str] = ()
    training = False
    passes = 0
    is_part = False
    predicts_next_words = False
    _dropout_seed = 0
    _architecture = ""  # how transformers' names of the class end
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
        """The beginning of the encoder's parameters in a model with a head: "bert"."""
        return self.family.name_rules.prefix.removesuffix(".")

    @classmethod
    def class_for_config(cls, config: Mapping[str, Any]) -> type[Self]:
        """The class that stands for this one in the family of `config`."""
        return family_of(config).models.get(cls.__name__, cls)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | os.PathLike,
        *,
        dtype: DType | None = None,
        task: str | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike | None = None,
        local_files_only: bool = False,
        **options: Any,
    ) -> Self:
        """Load a published checkpoint: config.json beside model.safetensors or pytorch_model.bin (or their shards).

        Args:
            folder: where the files are, one file of weights with config.json beside it, or the model's id on the
                Hugging Face hub ("ORGANISATION/NAME"). What exists here wins.
            dtype: "float32", "float64", "bfloat16", "int8" or "int8_weight_only" for the CPU; "float32", "float16" or
                "bfloat16" for CUDA. On the CPU, low precision is for inference: the weights of linear maps are kept in
                that form, prepared here for the backend in force, and the tables of embeddings in bfloat16; activations
                and results are float32. int8_weight_only takes the memory of int8 and computes in float32. The default
                is the checkpoint's for one written in low precision (`bertcore quantize`, `save_pretrained`), and
                float32 for any other, whatever its file holds. Another dtype than the checkpoint's converts; int8
                values are then multiplied by their scales.
            task: the task whose adapter is added to the weights, in a checkpoint that has one for each of several
                (jina-embeddings-v3: "retrieval.query", ...); none by default, as in the published model.
            revision, token, cache_dir, local_files_only: for an id on the hub, as for `checkpoint.resolve`.
            options: those of the class (add_pooling_layer of AutoModel, num_labels of classifiers).

        Raises:
            CheckpointError (a ValueError): what is wrong with which file, key of its config, or tensor.
            TypeError, ValueError: a wrong option; an unknown task; int8 on CUDA; float16 on Numba.
            BackendUnavailable: for low precision on the CPU, if the backend in force cannot run here.

        A head, or the pooler, that the checkpoint lacks altogether is newly initialised, with a warning that names it.
        """
        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        folder = checkpoint.resolve(folder, **hub)
        with locked(checkpoint_folder(folder), shared=True):  # both files of one save
            config, stored_dtype = checkpoint.split_dtype(folder, cls._read_config(folder))
            with checkpoint.naming_config(folder):
                model = cls._made(config, options, Model.from_pretrained)
            opened = model.family.name_rules.published(checkpoint.open_checkpoint(folder))
        rules, expected, opened = model.family.name_rules, model.expected_tensors(), model._with_adapter(opened, task)
        grouped = stored_dtype == "int8_weight_only"
        scales = {
            "scales": model.expected_scales(grouped=grouped),
            "scale_dtype": bfloat16() if grouped else np.float32,
            "keeps_float16": grouped and dtype not in (None, stored_dtype),  # of GGUF: other dtypes are then exact
        }
        arrays = checkpoint.load_parameters(opened, expected, rules, optional=rules.heads, **scales)
        absent = [name for name in expected if name not in arrays]
        if absent:
            warn_caller(
                f"{folder} does not hold {', '.join(absent)}: newly initialised, train before use",
                NewlyInitialisedWarning,
            )
        model.newly_initialised = absent
        rng, spread = np.random.default_rng(0), model.spec.initializer_range

        def fill(parameter: Parameter, precision: str) -> None:
            parameter.fill(ChainMap(parameter.initial_tensors(absent, rng, spread, precision), arrays), precision)

        model._fill(fill, (stored_dtype or "float32") if dtype is None else dtype)
        return model

    @classmethod
    def _read_config(cls, folder: str | os.PathLike) -> dict[str, Any]:
        return checkpoint.read_config(folder)

    @classmethod
    def _made(cls, config: Mapping[str, Any], options: Mapping[str, Any], method: Callable[..., Any]) -> Self:
        """A model of the config, without values; TypeError for an option that neither its class nor `method` takes."""
        kind = cls.class_for_config(config)
        known = _keywords(kind)
        for name in options:
            if name not in known:
                takes = ", ".join(known + _keywords(method))
                raise TypeError(f"{cls.__name__} got an unexpected keyword argument {name!r}, expected one of {takes}")
        return kind(config, **options)

    def _with_adapter(self, opened: checkpoint.Checkpoint, task: str | None) -> checkpoint.Checkpoint:
        """The checkpoint with the adapter for `task`, where its config tells of adapters."""
        adapters = self.family.adapters(ConfigReader(self.config))
        if task is not None and task not in adapters.tasks:
            known = ", ".join(adapters.tasks) or "none: there are no adapters for tasks"
            raise ValueError(f"task is {task!r}, known are {known}")
        if not adapters.tasks or (adapters.folder is not None and task is None):
            return opened
        if adapters.folder is not None:
            return checkpoint.PeftCheckpoint(opened, opened.source.parent / adapters.folder / task)
        return checkpoint.AdaptedCheckpoint(opened, task and adapters.tasks.index(task), adapters.scale)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | str, *, dtype: DType = "float32", seed: int = 0, **options: Any
    ) -> Self:
        """A new model with random weights: normal with the config's initializer_range, biases 0, norms' weights 1.

        `config` is a config as published, or the name of a preset (`bertcore info` lists them). `dtype` and errors are
        those of `from_pretrained`.
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
        """A context with the backend decided that low precision is prepared for; other dtypes need none yet."""
        if self.dtype == "float16":
            _check_float16()
        if self.dtype not in LOW_PRECISION:
            return nullcontext()
        backend = kernels.resolve_backend(None, on_gpu=False)
        if self.dtype in INT8 and backend == "cupy":
            raise ValueError(
                f"dtype is {self.dtype!r}, which runs on the CPU alone (backends numpy and numba), not on 'cupy'"
            )
        return kernels.use_backend(backend)

    def get_input_embeddings(self) -> Embedding:
        """Return the table of the words' embeddings; its `weight` is (vocab_size, features).

        Raises ValueError for Transformer-XL, whose words stand in several tables.
        """
        words = getattr(self.encoder.embeddings, "words", None)
        if words is None:
            raise ValueError(f"the model is of {self.config['model_type']}, expected a family with one table of words")
        return words

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> Embedding:
        """Give the vocabulary `new_num_tokens` tokens, for a tokenizer with added ones; return the new embeddings.

        Args:
            new_num_tokens: the new number, at least 1; as it is by default. Rows beyond it are dropped.
            pad_to_multiple_of: round the number up to a multiple of this.
            mean_resizing: new rows are the mean of the old ones; otherwise they are random as in a new model.

        A decoder's weight and bias get the same number of rows. Optimisers made before must be made again. Raises
        ValueError for a low precision, and for Transformer-XL, whose words stand in several tables.
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
            if rows.shape[0] == old_rows.shape[0]:  # a part of MobileBERT's decoder has a column for each token
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
        """From now on dropout is applied, at the rates of the config; returns the model.

        Dropped elements are a function of `seed` and of the number of passes since it was given; without a seed the
        numbers go on. They do not depend on the number of threads. Raises TypeError or ValueError for a seed that is
        not an integer of 64 bits.
        """
        if seed is not None:
            self._dropout_seed, self.passes = checks.seed("seed", seed), 0
        self.training = True
        return self

    def eval(self) -> Self:
        """From now on nothing is dropped; returns the model."""
        self.training = False
        return self

    def gradient_checkpointing_enable(self) -> None:
        """Run each layer again in the backward instead of keeping its intermediate results.

        A third more time, and the memory of one layer instead of all (Chen et al. 2016, arXiv:1604.06174). The
        gradients have the same bits.
        """
        self.encoder.recomputes_layers = True

    def gradient_checkpointing_disable(self) -> None:
        """From now on layers keep what their backward needs."""
        self.encoder.recomputes_layers = False

    @property
    def is_gradient_checkpointing(self) -> bool:
        """True if layers run again in the backward."""
        return self.encoder.recomputes_layers

    def _with_seeds(self, run: Pass) -> Pass:
        """Return the pass, which drops if the model is in training; one that is dropped is counted."""
        if not self.training:
            return run
        self.passes += 1
        return replace(run, seeds=Seeds(mixed_seed(self._dropout_seed, self.passes)))

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write config.json and model.safetensors; bertcore and transformers load them back to the same outputs.

        A config is spelled as transformers does today, whatever spelling was read; an adapter is in the weights.

        The files of a bfloat16 or int8 model are as small as the model, and load without `dtype`; their format is in
        `bertcore.checkpoint.config`.
        """
        if self.is_part:
            raise ValueError("this model is a part of another one: call save_pretrained of that")
        tensors = self.state_dict()
        if self.dtype in INT8:
            tensors = {name: array for parameter in self.parameters() for name, array in parameter.tensors()}
        checkpoint.save_checkpoint(folder, self.config_to_save(), tensors, config_name=self._config_name)

    def config_to_save(self) -> dict[str, Any]:
        """The config that stands beside its weights, with the dtype and the name of transformers' class."""
        ending = self.family.endings.get(self._architecture, self._architecture)
        config = {**self.family.config_to_save(self.config, self.spec)}
        config["architectures"] = [self.family.architecture + ending]
        tied = [copy.removesuffix(".weight") for copy, _ in self.family.name_rules.tied if copy.endswith(".weight")]
        return checkpoint.with_dtype(config, self.dtype, unquantized=tied, smoothed=self._is_smoothed())

    def _is_smoothed(self) -> bool:
        if self.dtype != "int8":
            return False
        return any(name.endswith(checkpoint.INPUT_SCALE) for it in self.parameters() for name, _ in it.tensors())

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        *,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        output_projections: bool | Collection[int] = False,
        **targets: Any,
    ) -> ModelOutput:
        """Run the model on a batch.

        Args:
            input_ids: (sequences, length) integers: lists, or a NumPy or CuPy array.
            attention_mask: 1 for real tokens, 0 for padding, (sequences, length); all real by default.
            token_type_ids: (sequences, length), zero by default.
            position_ids: (sequences, length); by default counted from each sequence's first real token.
            output_hidden_states, output_attentions: whether to return those too; by default as the config's keys say.
            output_projections: the same; True, or the numbers, from 1 on, of layers: the others have None.
            targets: the head's labels, which each class documents, and the inputs of this family alone
                (`family.inputs`).

        Returns:
            The output of the class; what belongs to padding is zero.

        Raises:
            TypeError, ValueError: which argument is wrong, where, and what was expected.
        """
        own = {}
        for name in self.family.inputs:
            if name in targets:
                own[name] = targets.pop(name)
        if targets:
            self._check_targets(targets)
        given = input_ids, attention_mask, token_type_ids, position_ids
        own["keep_padding"] = self._keeps_padding(targets)
        if not isinstance(output_projections, bool):
            self._check_layers(output_projections)
        states = self.config.get("output_hidden_states") if output_hidden_states is None else output_hidden_states
        probabilities = self.config.get("output_attentions") if output_attentions is None else output_attentions
        trace = Trace.asked(bool(states), bool(probabilities), output_projections)
        return self._pass(*given, read=lambda encoded: self._output(encoded, **targets), trace=trace, **own)

    def _pass(self, *given: Any, read: Callable[[Encoded], Any], trace: Trace, **options: Any) -> Any:
        """Return read(encoded batch); the adapter packs `given` and `options`."""
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
        wrong = [number for number in output_projections if number not in known]
        if wrong:
            raise ValueError(f"output_projections has {wrong[0]!r}, expected {expected}")

    def _check_targets(self, targets: Mapping[str, Any]) -> None:
        unknown = [name for name in targets if name not in self._targets]
        if unknown:
            takes = [*self._targets, *self.family.inputs]
            known = f"; it takes {', '.join(takes)}, too" if takes else ""
            raise TypeError(f"{type(self).__name__} got an unexpected argument {unknown[0]!r}{known}")

    def _output(self, encoded: Encoded, **targets: Any) -> ModelOutput:
        raise NotImplementedError(f"{type(self).__name__} is not a model of its own")

    def encode_packed(self, input_ids: Sequence[Any], seen: Sequence[Any] | None = None) -> tuple[Any, np.ndarray]:
        """Encode sequences of any lengths side by side, without padding on the way in or out.

        Args:
            input_ids: the ids of each sequence, lists or 1-D integer arrays; token types are 0.
            seen: booleans of each sequence, (tokens,): a token of False gets a hidden state of its own, but no token
                attends to it, as to ColBERT's [MASK] tokens; all are seen by default.

        Returns:
            The last hidden state, (tokens, hidden), in the memory of the backend in force, and the offsets of the
            sequences in it, int32 (sequences + 1,), in host memory.

        Raises:
            ValueError: which sequence is wrong, where, and what was expected.
        """
        hidden, cu_seqlens = self.packed_states(input_ids, seen)
        return value_of(hidden), cu_seqlens

    def packed_states(self, input_ids: Sequence[Any], seen: Sequence[Any] | None = None) -> tuple[Tensor, np.ndarray]:
        """Return what `encode_packed` returns; under a tape the hidden state is a Variable."""
        with kernels.on_device_of(input_ids):
            run = Pass.begin(input_ids)
            inputs, cu_seqlens = self.encoder.adapter.pack_sequences(run, input_ids, seen)
            return self.encoder(self._with_seeds(run), inputs), cu_seqlens


def _keywords(function: Callable[..., Any]) -> list[str]:
    """The arguments that are given by their names alone."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


def _check_float16() -> None:
    """ValueError where the backend in force, or the only one that "auto" can find here, does not compute in float16."""
    backend, no_gpu = kernels.get_backend(), kernels.unavailable_reason("cupy")
    if backend == "numba" or (backend == "auto" and no_gpu):
        raise ValueError(
            "dtype is 'float16', in which backend 'numba' does not compute: load the model with dtype='float32' or "
            "'bfloat16'" + (f" (float16 is for CUDA, which cannot run here: {no_gpu})" if no_gpu else "")
        )
