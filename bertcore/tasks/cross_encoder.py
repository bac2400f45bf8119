"""CrossEncoder: score pairs of texts with a published reranker or another classifier of pairs."""

from __future__ import annotations

import functools
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from bertcore.arguments import DType, check_count, naming_nearest, older_names
from bertcore.checkpoint import CheckpointError, read_config
from bertcore.checkpoint.files import CONFIG_NAME, write_json
from bertcore.kernels import checks
from bertcore.tasks.encoders import Encoder, EncoderOptions, EncoderPool, ReadingOptions, converted, locking_folder
from bertcore.tasks.folder import (
    MODELS,
    MODULES_NAME,
    SavedSettings,
    check_kinds,
    module_entries,
    read_modules,
    read_transformer,
    saved_settings,
    update_json,
)
from bertcore.tasks.long_texts import ReadOptions
from bertcore.tasks.search import ranking
from bertcore.tasks.sequence_scores import SequenceScores, sigmoid, softmax, unchanged
from bertcore.tasks.texts import checked_text, checked_texts, lower_cased, progress_bar

Pair = Sequence[str]


class PairOptions(ReadingOptions, total=False):
    """Arguments of `CrossEncoder.predict_stream` other than the pairs, their prompt and `batch_size`."""

    activation_fn: str | Callable[[Any], Any] | None


class CrossEncoder(Encoder):
    """Score pairs of texts, as sentence-transformers does: both texts go through the model together.

    Args:
        model_name_or_path: a sequence classifier (config.json, weights, a tokenizer), or its id on the Hugging Face
            hub.
        num_labels: number of scores per pair. If the checkpoint has no head, a new random one of this size is added, to
            be trained; by default the checkpoint must have a head.
        dtype: dtype of weights and computation, as for AutoModel; scores are float32.
        max_length: cut pairs to this many tokens, special ones included, from the longer text first; by default as
            published.
        activation_fn: function applied to the logits: "identity", "sigmoid", "softmax", "relu", "tanh", or a function
            of (pairs, labels) float32. By default as published, or else the sigmoid for one label and the identity for
            several.
        options: see `Encoder`.

    Attributes:
        num_labels, labels: number of scores of a pair, and their names.
        scores: computes the logits of texts and pairs.

    Raises:
        CheckpointError: a file is invalid, the checkpoint has no classifier's head, or its activation is unknown.
        ValueError: `max_length` is out of range, or the activation is unknown.
    """

    _method = "predict"

    @locking_folder
    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str],
        num_labels: int | None = None,
        *,
        dtype: DType | None = None,
        max_length: int | None = None,
        activation_fn: str | Callable[[Any], Any] | None = None,
        **options: Unpack[EncoderOptions],
    ):
        opened = self._open(model_name_or_path, "cross-encoder", options)
        self._is_new = num_labels is not None
        self._where = where = _model_folder(opened, self._is_new)
        settings = read_transformer(where, "sequence-classification" if num_labels is None else None)
        self.scores = SequenceScores(
            where,
            dtype=dtype,
            max_seq_length=max_length,
            published_length=settings["max_seq_length"],
            do_lower_case=settings["do_lower_case"],
            num_labels=num_labels,
        )
        self.model, self.tokenizer = self.scores.model, self.scores.tokenizer
        self.num_labels = self.scores.num_labels
        self.labels = list(self.model.config.id2label.values())
        if activation_fn is None:
            config = SavedSettings(where / CONFIG_NAME, read_config(where))
            activation_fn = published_activation(saved_settings(opened), config, self.num_labels)
        chosen_activation(activation_fn)
        self._activation = activation_fn

    @property
    def activation_fn(self) -> str | Callable[[Any], Any]:
        """The current function as it was given; for a name, PyTorch's module if PyTorch is loaded, else the name."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(self._activation, str):
            return self._activation
        return getattr(torch.nn, _class_name(self._activation))()

    @activation_fn.setter
    def activation_fn(self, activation_fn: str | Callable[[Any], Any]) -> None:
        chosen_activation(activation_fn)
        self._activation = activation_fn

    @property
    def max_length(self) -> int:
        """Length that pairs are cut to, in tokens."""
        return self.scores.max_seq_length

    @max_length.setter
    def max_length(self, length: int) -> None:
        self.scores.max_seq_length = self.tokenizer.model_max_length = check_count("max_length", length)

    max_seq_length = max_length

    def cut_length(self, processing_kwargs: Mapping[str, Any] | None) -> int:
        return self.scores.cut_length(processing_kwargs)

    def prepared(self, text: str, prompt: str) -> str:
        """Return a text as the model reads it, after the prompt: in lower case if the model asks for it."""
        return lower_cased(prompt + text) if self.scores.do_lower_case else prompt + text

    def _model_folder(self) -> Path:
        return self._where

    def _saved_where(self) -> Path:
        return Path() if self._is_new else super()._saved_where()

    def _fill(self, target: Path, where: Path) -> None:
        super()._fill(target, where)
        if self._is_new:  # the folder may hold another kind of model
            self._write_modules(target)

    def _write_modules(self, target: Path) -> None:
        write_json(target / MODULES_NAME, module_entries({"": f"{MODELS}.Transformer"}))
        for file in target.glob("sentence_*_config.json"):
            update_json(file, {"transformer_task": "sequence-classification"})

    def _saved_settings(self) -> dict[str, Any]:
        name = self._activation if isinstance(self._activation, str) else type(self._activation).__name__.lower()
        module = "linear" if name == "identity" else "activation"
        said = {"activation_fn": f"torch.nn.modules.{module}.{_class_name(name)}"} if name in ACTIVATIONS else {}
        return {"model_type": "CrossEncoder"} | said

    @staticmethod
    def is_singular_input(inputs: Any) -> bool:
        """Return whether `inputs` is a single pair of texts."""
        is_row = isinstance(inputs, list | tuple) or (isinstance(inputs, np.ndarray) and inputs.ndim > 0)
        return is_row and len(inputs) > 0 and isinstance(inputs[0], str)

    @older_names(sentences="inputs")
    @naming_nearest(*PairOptions.__annotations__)
    def predict(
        self,
        inputs: Pair | Iterable[Pair],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        *,
        apply_softmax: bool = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        pool: EncoderPool | None = None,
        chunk_size: int | None = None,
        **options: Unpack[PairOptions],
    ) -> Any:
        """Score one pair of texts or many.

        Args:
            inputs: (text, text), or several of them.
            prompt_name, prompt, batch_size, options: arguments of `predict_stream`, which also documents the errors.
            apply_softmax: whether to apply a softmax to the scores of several labels, after the activation.
            convert_to_numpy: False gives a list of PyTorch's tensors.
            convert_to_tensor: True gives a tensor of PyTorch.
            pool: the processes of `start_multi_process_pool` to compute with; a list as `device` starts a pool.
            chunk_size: number of pairs sent to a process of the pool at once.

        Returns:
            float32 (pairs,) for a model with one label, else (pairs, labels), in the order of the pairs; for a single
            pair a scalar, or (labels,).
        """
        checks.boolean("apply_softmax", apply_softmax)
        is_one = self.is_singular_input(inputs)
        many = list(_checked([inputs] if is_one else inputs))
        given: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, "batch_size": batch_size, **options}
        parts = self._in_processes(many, pool, chunk_size, given)
        found = self.predict_stream(many, **given) if parts is None else chain.from_iterable(parts)
        shape = (len(many),) if self.num_labels == 1 else (len(many), self.num_labels)
        scores = np.array(list(found), np.float32).reshape(shape)
        if apply_softmax and self.num_labels > 1:
            scores = softmax(scores).astype(np.float32)
        return converted(scores, convert_to_numpy, convert_to_tensor, is_one)

    @naming_nearest(*PairOptions.__annotations__)
    def predict_stream(
        self,
        inputs: Iterable[Pair],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        batch_size: int | None = None,
        activation_fn: str | Callable[[Any], Any] | None = None,
        **options: Unpack[ReadingOptions],
    ) -> Iterator[np.ndarray]:
        """Return an iterator over the float32 scores of pairs, (labels,) or scalars, in order; pairs may be a stream.

        Memory is bounded by `batch_tokens`, however many pairs there are. The backend is the one active at this call.

        Args:
            inputs: pairs (text, text).
            prompt, prompt_name: text to put before the first text of each pair, or the name of one of the model's
                prompts; by default the model's default prompt, if it has one.
            batch_size: maximum pairs computed at once, in addition to `batch_tokens`; neither changes the result.
            activation_fn: replaces the model's activation for this call.
            options: see `ReadingOptions`.

        Raises:
            TypeError: an entry of `inputs` is not a pair of strings.
            ValueError: a text is not valid Unicode, a prompt name or activation is unknown, `batch_tokens`,
                `truncation`, `stride` or `merge` is invalid, or a pair is too long for truncation "error".
        """
        checked, bar = _checked(inputs), options.pop("show_progress_bar", None)
        before = self.prompt(prompt, prompt_name)
        how = self._reading(ReadOptions, before, batch_size=batch_size, **{"merge": "max"} | options)
        count = len(inputs) if isinstance(inputs, Sequence) else None
        activation = chosen_activation(self._activation if activation_fn is None else activation_fn)

        def scores() -> Iterator[np.ndarray]:
            rows = ((how.prompt + first, second) for first, second in checked)
            with progress_bar(count, bar) as advance:
                for logits in self.scores.logits(rows, how, advance):
                    found = np.asarray(activation(logits[None]), np.float32)
                    if found.shape != (1, self.num_labels):
                        raise ValueError(f"activation_fn returned shape {found.shape}, expected {(1, self.num_labels)}")
                    found = found[0]
                    yield found[0] if self.num_labels == 1 else found

        return scores()

    @naming_nearest(*PairOptions.__annotations__)
    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        *,
        pool: EncoderPool | None = None,
        chunk_size: int | None = None,
        **options: Unpack[PairOptions],
    ) -> list[dict[str, Any]]:
        """Rank documents by how well they answer the query, best first; ties keep their order.

        Args:
            query: a text.
            documents: the texts to rank.
            top_k: number of documents to return; all by default.
            return_documents: whether to return the texts as well.
            prompt_name, prompt, batch_size, pool, chunk_size, options: as for `predict`.

        Returns:
            {"corpus_id": index in `documents`, "score": float} and, with `return_documents`, "text", for each.

        Raises:
            TypeError: a query or document is not a string, or `top_k` is not an integer.
            ValueError: the model has several labels, or `top_k` is below 1.
        """
        if self.num_labels != 1:
            raise ValueError(f"the model has {self.num_labels} labels; rank needs one: use predict")
        top_k = None if top_k is None else check_count("top_k", top_k)
        query, texts = checked_text("query", query), list(checked_texts(documents, "documents"))
        pairs = [(query, text) for text in texts]
        scores = self.predict(pairs, prompt_name, prompt, batch_size, pool=pool, chunk_size=chunk_size, **options)
        return ranking(scores, texts, top_k, return_documents)


def _model_folder(folder: Path, is_start: bool) -> Path:
    """Return the folder of config.json: `folder`, or the folder of its only module (the first, for a new model)."""
    modules = read_modules(folder)
    if modules is None:
        return folder
    if is_start and modules and modules[0].kind == "Transformer":
        return modules[0].folder
    check_kinds(folder, modules, ("Transformer",))
    if len(modules) != 1:
        raise CheckpointError(f"{folder / MODULES_NAME} has {len(modules)} modules, expected one Transformer")
    return modules[0].folder


def _checked(inputs: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Yield the pairs one by one after checking that each is two strings."""
    if isinstance(inputs, str | bytes | dict) or not np.iterable(inputs):
        raise TypeError(f"inputs is {type(inputs).__name__}, expected a list of pairs of strings")

    def checked() -> Iterator[tuple[str, str]]:
        for index, pair in enumerate(inputs):
            if isinstance(pair, str | bytes) or not isinstance(pair, Sequence | np.ndarray) or len(pair) != 2:
                raise TypeError(f"inputs[{index}] is {reprlib.repr(pair)}, expected two strings")
            first, second = (checked_text(f"inputs[{index}][{side}]", text) for side, text in enumerate(pair))
            yield first, second

    return checked()


Activation = Callable[[np.ndarray], np.ndarray]


# (pairs, labels) -> (pairs, labels), by the lower-case name of PyTorch's class.
ACTIVATIONS: dict[str, Activation] = {
    "identity": unchanged,
    "relu": functools.partial(np.maximum, 0),
    "sigmoid": sigmoid,
    "softmax": softmax,
    "tanh": np.tanh,
}
KNOWN = ", ".join(ACTIVATIONS)


def _class_name(activation: str) -> str:
    """Return the name of PyTorch's class."""
    return {"relu": "ReLU"}.get(activation, activation.capitalize())


def chosen_activation(activation_fn: str | Callable[[Any], Any]) -> Activation:
    """Return the function of that name, or the function itself.

    Raises ValueError for an unknown name, TypeError for anything else.
    """
    if isinstance(activation_fn, str):
        if activation_fn not in ACTIVATIONS:
            raise ValueError(f"activation_fn is {activation_fn!r}, expected a function or one of {KNOWN}")
        return ACTIVATIONS[activation_fn]
    if not callable(activation_fn):
        raise TypeError(f"activation_fn is {activation_fn!r}, expected a function or one of {KNOWN}")
    function: Any = activation_fn

    def of_tensors(logits: np.ndarray) -> np.ndarray:
        return function(sys.modules["torch"].from_numpy(logits)).detach().numpy()

    def of_either(logits: np.ndarray) -> np.ndarray:
        try:
            return function(logits)
        except (AttributeError, TypeError):  # such as torch.sigmoid's
            if "torch" not in sys.modules:
                raise
            return of_tensors(logits)

    return of_tensors if hasattr(activation_fn, "forward") else of_either


def published_activation(saved: SavedSettings, config: SavedSettings, num_labels: int) -> str:
    """Return the name of the activation that a model was published with.

    It is `activation_fn` of the whole model's settings or of the config's section "sentence_transformers", or the
    config's "sbert_ce_default_activation_function" (before version 4). The default is the sigmoid for one label and
    the identity for several.

    Raises CheckpointError for an unknown function.
    """
    section = config.get("sentence_transformers")
    section = SavedSettings(config.file, section if isinstance(section, dict) else {})
    names = (saved, "activation_fn"), (section, "activation_fn"), (config, "sbert_ce_default_activation_function")
    for settings, key in names:
        if (stated := settings.get(key)) is not None:
            name = stated.rpartition(".")[2].lower() if str(stated).startswith("torch.") else ""
            if name not in ACTIVATIONS:
                raise settings.wrong(key, f"one of PyTorch's {KNOWN}; activation_fn= chooses another")
            return name
    return "sigmoid" if num_labels == 1 else "identity"
