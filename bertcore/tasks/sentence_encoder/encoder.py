"""SentenceEncoder: a published sentence encoder, from its folder to embeddings."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.checkpoint import CheckpointError, resolve
from bertcore.models.auto import AutoModel
from bertcore.tasks.batching import batches, grouped, windows
from bertcore.tasks.progress import progress_bar
from bertcore.tasks.sentence_encoder.pooling import cosine_similarity, normalized, pool
from bertcore.tasks.sentence_encoder.settings import read_settings
from bertcore.tokenization import AutoTokenizer

BATCH_TOKENS = 4096
MOST_TOKENS = 2**31 - 1  # of a text, for models without positions of their own: offsets are int32


class TextsCutWarning(UserWarning):
    """Texts were longer than the encoder's limit: only their first tokens are embedded."""


@dataclass(frozen=True)
class _Options:
    """What one call asks for, checked."""

    prompt: str
    normalize: bool
    batch_tokens: int
    backend: str


class SentenceEncoder:
    """Turns each text into one vector, as sentence-transformers does.

    Args:
        folder: a model as sentence-transformers publishes it (modules.json: Transformer, Pooling and, if there,
            Normalize). A plain model's folder, without modules.json, gets mean pooling and no normalisation, as it does
            in sentence-transformers. Or its id on the Hugging Face hub ("ORGANISATION/NAME").
        dtype: of the weights and the computation, as for AutoModel ("float32", "bfloat16", "int8", ...; by default that
            of a checkpoint of low precision, and float32 of any other); embeddings are float32.
        task: the task whose adapter is added to the weights, as for AutoModel; an encoder has one, or none, so that
            queries and passages need one each. The words that a task puts before its texts are for `prompt`.
        max_seq_length: cut texts to this many tokens, special ones included; by default as published. At least the
            number of special tokens, at most the model's positions.
        revision, token, cache_dir, local_files_only: for an id on the hub, as `checkpoint.resolve` has them.

    Attributes:
        settings: those of the folder (pooling, normalize, prompts, ...).
        max_seq_length: where texts are cut, in tokens.
        embedding_dimension: the length of an embedding.
        task: the task, as given.
        model, tokenizer: the parts.

    Raises:
        CheckpointError: which file of the folder is wrong or which module is not supported.
        ValueError: a `max_seq_length` out of range; an unknown task.

    The first call that cuts texts ends with a TextsCutWarning that says how many.

    One encoder may be used by several threads at once.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        *,
        dtype: str | None = None,
        task: str | None = None,
        max_seq_length: int | None = None,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | os.PathLike | None = None,
        local_files_only: bool = False,
    ):
        hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        self.task = task
        self.settings = read_settings(resolve(folder, "sentence_encoder", **hub))
        options = {"dtype": dtype, "task": task, "add_pooling_layer": False}
        self.model = AutoModel.from_pretrained(self.settings.model_folder, **options)
        self.tokenizer = AutoTokenizer.from_pretrained(self.settings.model_folder)
        self._check_width()
        self.max_seq_length = self._max_seq_length(max_seq_length)
        self._has_warned = False
        self.embedding_dimension = self.model.spec.hidden_size * len(self.settings.pooling)

    def _check_width(self) -> None:
        width = self.model.spec.hidden_size
        key, stated = self.settings.width or ("", width)
        if stated != width:
            raise CheckpointError(
                f"{self.settings.pooling_file}: {key} is {stated}, expected {width}, the model's hidden_size"
            )

    def _max_seq_length(self, wanted: int | None) -> int:
        least = max(1, self.tokenizer.num_special_tokens_to_add())  # an empty text has these
        positions = self.model.spec.longest_sequence or MOST_TOKENS
        expected = f"expected {least} (the special tokens of a text) to {positions}, the model's positions"
        if wanted is None:
            published = self.settings.max_seq_length or self.tokenizer.model_max_length
            if min(published, positions) < least:
                raise CheckpointError(f"{self.settings.model_folder}: max_seq_length is {published}, {expected}")
            return min(published, positions)
        if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer) or not least <= wanted <= positions:
            raise ValueError(f"max_seq_length is {wanted!r}, {expected}")
        return int(wanted)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        normalize: bool | None = None,
        task: str | None = None,
        batch_tokens: int = BATCH_TOKENS,
        show_progress: bool | None = None,
    ) -> np.ndarray:
        """Embed one text or many.

        Args:
            texts: one string, or several; an empty string is a text like any other.
            prompt: text to put before each.
            prompt_name: the name of one of the model's own prompts (`settings.prompts`); by default the model's
                default prompt, if it has one.
            normalize: whether to scale embeddings to length 1; by default as published.
            task: the task that the texts are for, which has to be the encoder's own.
            batch_tokens: how many tokens are computed at once; bounds the memory, does not change the result.
            show_progress: True or False; by default on a terminal, when the work takes long.

        Returns:
            float32 (dim,) for one string, (texts, dim) for several, in their order; (0, dim) for none.

        Raises:
            TypeError: which of `texts` is not a string; a prompt, prompt name or `normalize` of another type.
            ValueError: a text with a lone surrogate, an unknown prompt name, a `batch_tokens` that is not positive, a
                task whose adapter is not in the weights.
        """
        many = [texts] if isinstance(texts, str) else list(_checked(texts))
        embeddings = np.empty((len(many), self.embedding_dimension), np.float32)
        done = 0
        options = self._options(prompt, prompt_name, normalize, task, batch_tokens)
        with progress_bar(len(many), show_progress) as advance:
            for rows in self._windows_of_rows(many, advance, options):
                embeddings[done : done + len(rows)] = rows
                done += len(rows)
        return embeddings[0] if isinstance(texts, str) else embeddings

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        normalize: bool | None = None,
        task: str | None = None,
        batch_tokens: int = BATCH_TOKENS,
        show_progress: bool | None = None,
    ) -> Iterator[np.ndarray]:
        """Embed texts as they come: an iterator over their float32 (dim,) embeddings, in their order.

        Memory is bounded by `batch_tokens`, however many texts there are: a few batches' worth of them are read, sorted
        by length, computed and handed out before the next are read. The backend is the one in force at this call; the
        arguments are those of `encode`.
        """
        checked = _checked(texts)
        options = self._options(prompt, prompt_name, normalize, task, batch_tokens)
        return self._rows(checked, show_progress, options)

    def similarity(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """The cosine of every embedding in `left` (n, dim) with every one in `right` (m, dim): (n, m).

        Raises ValueError for other shapes.
        """
        return cosine_similarity(left, right)

    def _options(
        self, prompt: str | None, prompt_name: str | None, normalize: bool | None, task: str | None, batch_tokens: int
    ) -> _Options:
        if task is not None and task != self.task:
            has = "no task's adapter" if self.task is None else f"the adapter for {self.task!r}"
            raise ValueError(
                f"task is {task!r}, but this encoder has {has} in its weights: make another one, "
                f"SentenceEncoder(folder, task={task!r})"
            )
        if isinstance(batch_tokens, bool) or not isinstance(batch_tokens, int | np.integer) or batch_tokens < 1:
            raise ValueError(f"batch_tokens is {batch_tokens!r}, expected a positive integer")
        if normalize is not None and not isinstance(normalize, bool | np.bool_):
            raise TypeError(f"normalize is {normalize!r}, expected True, False or None")
        return _Options(
            prompt=self._prompt(prompt, prompt_name),
            normalize=self.settings.normalize if normalize is None else bool(normalize),
            batch_tokens=int(batch_tokens),
            backend=kernels.get_backend(),
        )

    def _prompt(self, prompt: str | None, prompt_name: str | None) -> str:
        for argument, value in (("prompt", prompt), ("prompt_name", prompt_name)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{argument} is {value!r}, expected a string or None")
        if prompt is not None:
            if prompt_name is not None:
                raise ValueError(f"prompt and prompt_name ({prompt_name!r}) are both given, expected one of them")
            return prompt
        name = self.settings.default_prompt_name if prompt_name is None else prompt_name
        if name is not None and name not in self.settings.prompts:
            known = ", ".join(self.settings.prompts) or "none"
            raise ValueError(f"prompt_name is {name!r}, this model has {known}")
        return "" if name is None else self.settings.prompts[name]

    def _rows(self, texts: Iterable[str], show_progress: bool | None, options: _Options) -> Iterator[np.ndarray]:
        with progress_bar(None, show_progress) as advance:
            yield from chain.from_iterable(self._windows_of_rows(texts, advance, options))

    def _windows_of_rows(
        self, texts: Iterable[str], advance: Callable[[int], object], options: _Options
    ) -> Iterator[np.ndarray]:
        """The embeddings of neighbouring texts, (some, dim) float32, window by window."""
        cut = _CutTexts(self)
        sequences = chain.from_iterable(self._tokenize(group, options.prompt, cut) for group in grouped(texts))
        for window in windows(sequences, options.batch_tokens):
            rows = np.empty((len(window), self.embedding_dimension), np.float32)
            for indices in batches([len(sequence) for sequence in window], options.batch_tokens):
                # Set batch by batch: a block that stayed open across a yield would leak into the caller's code.
                with kernels.use_backend(options.backend):
                    hidden, cu_seqlens = self.model.encode_packed([window[index] for index in indices])
                pooled = pool(hidden, cu_seqlens, self.settings.pooling)
                rows[indices] = normalized(pooled) if options.normalize else pooled
                advance(len(indices))
            yield rows
        cut.warn()

    def _tokenize(self, texts: list[str], prompt: str, cut: "_CutTexts") -> list[np.ndarray]:
        texts = [prompt + text for text in texts]
        if self.settings.do_lower_case:
            texts = [text.lower() for text in texts]
        found = self.tokenizer.encode_beginnings(texts, self.max_seq_length)
        cut.count(was_cut for _, was_cut in found)
        return [np.array(ids, np.int32) for ids, _ in found]


class _CutTexts:
    """Counts the texts of a call, and those of them that were cut, for one warning of each encoder."""

    def __init__(self, encoder: SentenceEncoder):
        self._encoder, self._texts, self._cut = encoder, 0, 0

    def count(self, was_cut: Iterable[bool]) -> None:
        flags = list(was_cut)
        self._texts += len(flags)
        self._cut += sum(flags)

    def warn(self) -> None:
        """Warn when there is something to tell and this encoder has not yet told it."""
        encoder = self._encoder
        if not self._cut or encoder._has_warned:
            return
        encoder._has_warned = True
        length, positions = encoder.max_seq_length, encoder.model.spec.longest_sequence
        more = f"; the model takes up to {positions} (max_seq_length)" if positions and positions > length else ""
        warnings.warn(
            f"{self._cut} of {self._texts} texts were cut to {length} tokens{more}. This warning is given once",
            TextsCutWarning,
            stacklevel=4,
        )


def _checked(texts: Any) -> Iterator[str]:
    """The texts one by one, each seen to be a string."""
    expected = "expected a string or a list of strings"
    if isinstance(texts, str | bytes | Mapping | Set) or not isinstance(texts, Iterable):
        hint = "; decode it first" if isinstance(texts, bytes) else ""
        raise TypeError(f"texts is {type(texts).__name__}, {expected}{hint}")
    if isinstance(texts, np.ndarray) and texts.ndim == 0:  # which says of itself that it can be iterated over
        raise TypeError(f"texts is an array without axes, {expected}")
    return (_string(index, text) for index, text in enumerate(texts))


def _string(index: int, text: Any) -> str:
    if not isinstance(text, str):
        hint = ": decode it first" if isinstance(text, bytes) else ""
        raise TypeError(f"texts[{index}] is {type(text).__name__}, expected str{hint}")
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"texts[{index}] is not valid Unicode: a lone surrogate at {error.start}") from error
    return text
