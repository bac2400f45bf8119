"""SentenceEncoder: embed texts with a published sentence encoder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from bertcore import kernels
from bertcore.arguments import DType, check_count, naming_nearest, older_names
from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.files import CONFIG_NAME, write_json
from bertcore.kernels import checks
from bertcore.kernels.arrays import Array
from bertcore.models.auto import AutoModel
from bertcore.tasks.encoders import (
    EncoderOptions,
    EncoderPool,
    ReadingOptions,
    WindowOptions,
    as_tensors,
    converted,
    locking_folder,
)
from bertcore.tasks.folder import MODELS, MODULES_NAME, Module, module_entries
from bertcore.tasks.long_texts import MergedWindows, ReadOptions
from bertcore.tasks.quantization import PRECISIONS, quantize_embeddings
from bertcore.tasks.reading import PromptedReader, by_route
from bertcore.tasks.sentence_encoder.modules import Settings, StaticModel, pool, read_maps, read_settings, unknown_id
from bertcore.tasks.similarity import SIMILARITIES, normalized
from bertcore.tasks.texts import MOST_TOKENS, CutTexts, checked_texts, listed_texts, progress_bar


@dataclass(frozen=True, kw_only=True)
class Options(ReadOptions):
    """The checked options of one call of `encode`."""

    skipped: int  # number of first tokens that are not pooled
    dimensions: int | None  # number of first dimensions that are kept; None for all
    normalize_embeddings: bool = False  # whether embeddings are scaled to length 1 at the end
    # see `quantize_embeddings`
    precision: str = "float32"
    ranges: np.ndarray | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.boolean("normalize_embeddings", self.normalize_embeddings)
        checks.choice("precision", self.precision, PRECISIONS)


class StreamOptions(ReadingOptions, total=False):
    """Arguments of `SentenceEncoder.encode` that `encode_stream` takes."""

    prompt: str | None
    prompt_name: str | None
    batch_size: int | None
    normalize_embeddings: bool
    truncate_dim: int | None
    precision: str
    ranges: np.ndarray | None
    task: str | None


class SentenceEncoder(PromptedReader):
    """Turn each text into one vector, as sentence-transformers does.

    Args:
        model_name_or_path: a model as sentence-transformers publishes it (modules.json: Transformer and Pooling, or a
            StaticEmbedding, then any of Dense, LayerNorm and Normalize). A plain model's folder, without modules.json,
            gets mean pooling and no normalisation, as in sentence-transformers. A Router has separate modules for
            queries and documents. Or the model's id on the Hugging Face hub ("ORGANISATION/NAME").
        dtype: dtype of weights and computation, as for AutoModel ("float32", "bfloat16", "int8", ...; by default a
            low-precision checkpoint's own, otherwise float32); embeddings are float32.
        task: the task whose adapter is added to the weights, as for AutoModel. An encoder has at most one, so queries
            and passages may need two encoders. The text that a task puts before its inputs is a `prompt`.
        max_seq_length: cut texts to this many tokens, including special tokens; by default as published. At least the
            number of special tokens, at most the number of the model's positions.
        truncate_dim: keep only the first dimensions (Matryoshka embeddings); by default as published, or all.
        similarity_fn_name: "cosine", "dot", "euclidean" or "manhattan"; by default as published, or "cosine".
        unknown: for static embeddings, "drop" leaves out unknown words, "mean" pools their vector like the others; by
            default "drop" for Model2Vec's files and "mean" for sentence-transformers', as in these libraries.
        options: see `Encoder`.

    Attributes:
        settings: settings of the folder (pooling, normalize, ...).
        task, max_seq_length, truncate_dim, similarity_fn_name: as given, or else as published.
        has_warned: whether this encoder has warned that texts were cut.

    Raises:
        CheckpointError: a file of the folder is invalid, or a module is not supported.
        ValueError: `max_seq_length` or `truncate_dim` is out of range, or the task or similarity is unknown.
    """

    @locking_folder
    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str],
        *,
        dtype: DType | None = None,
        task: str | None = None,
        max_seq_length: int | None = None,
        truncate_dim: int | None = None,
        similarity_fn_name: str | None = None,
        unknown: Literal["drop", "mean"] | None = None,
        **options: Unpack[EncoderOptions],
    ):
        self.task, self.truncate_dim = task, None
        self._open(model_name_or_path, "sentence encoder", options)

        def load(reader: SentenceEncoder, modules: list[Module] | None, models: dict[Path, Any]) -> None:
            reader.load_parts(read_settings(self.folder, modules), dtype, max_seq_length, unknown, models)

        self._load_routes(load)
        settings = self.settings
        self.similarity_fn_name = settings.similarity if similarity_fn_name is None else similarity_fn_name
        self.truncate_dim = settings.truncate_dim if truncate_dim is None else check_count("truncate_dim", truncate_dim)

    def load_parts(
        self,
        settings: Settings,
        dtype: str | None,
        max_seq_length: int | None,
        unknown: str | None = None,
        models: dict[Path, Any] | None = None,
    ) -> None:
        """Load the model, the tokenizer and the maps; `models` has those already loaded, by folder."""
        self.settings, models, folder = settings, {} if models is None else models, settings.model_folder
        if self.routes is not None:  # the options apply to the routes that have them
            dtype, unknown = (None, unknown) if settings.is_static else (dtype, None)
        if folder not in models:
            models[folder] = self._load_model(dtype)
        self.model: Any = models[folder]
        length = (settings.max_seq_length or MOST_TOKENS, "bare") if settings.is_static else (settings.max_seq_length,)
        self._load_tokenizer(folder, max_seq_length, *length)
        checks.choice("unknown", unknown, ("drop", "mean", None) if settings.is_static else (None,))
        self._dropped = unknown_id(self.tokenizer) if (unknown or settings.unknown) == "drop" else None
        hidden = self.model.spec.hidden_size
        key, stated = settings.width or ("", hidden)
        if stated != hidden:
            raise CheckpointError(f"{settings.pooling_file}: {key} is {stated}, expected {hidden}, the hidden_size")
        width = hidden * len(settings.pooling)
        of_maps = "float64" if self.model.dtype == "float64" else "float32"
        self._maps, self._width = read_maps(settings.maps, width, of_maps)

    def _load_model(self, dtype: str | None) -> AutoModel | StaticModel:
        folder = self.settings.model_folder
        if not self.settings.is_static:
            return AutoModel.from_pretrained(folder, dtype=dtype, task=self.task, add_pooling_layer=False)
        for name, value, only in (("dtype", dtype, "float32"), ("task", self.task, None)):
            if value not in (None, only):
                raise ValueError(f"{name} is {value!r}, expected {only or 'None'}: these are static embeddings")
        return StaticModel(folder)

    @by_route
    @older_names(sentences="inputs")
    @naming_nearest(*WindowOptions.__annotations__)
    def encode(
        self,
        inputs: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | Sequence[str] | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: EncoderPool | None = None,
        chunk_size: int | None = None,
        *,
        ranges: np.ndarray | None = None,
        task: str | None = None,
        **options: Unpack[WindowOptions],
    ) -> Any:
        """Embed one text or many.

        Args:
            inputs: one string or several; an empty string is allowed.
            prompt_name: name of one of `prompts`; by default the model's default prompt, if it has one.
            prompt: text to put before each.
            batch_size: maximum texts computed at once, in addition to `batch_tokens`; neither changes the result.
            show_progress_bar: whether to show a bar; by default on a terminal, if the work takes long.
            output_value: "sentence_embedding"; "token_embeddings" for the hidden states of a text's tokens, including
                special tokens, (tokens, hidden); None for both and the model's inputs, in a dict for each text.
            precision: "float32", "int8", "uint8", "binary" or "ubinary"; see `quantize_embeddings`.
            convert_to_numpy: False gives a list of PyTorch's tensors.
            convert_to_tensor: True gives one tensor of PyTorch.
            device: "cpu" or "cuda"; by default the encoder's. A list of them starts a process for each.
            normalize_embeddings: whether to scale embeddings to length 1, even if the published model does not.
            truncate_dim: keep only the first dimensions; by default the encoder's value. Published scaling to length 1
                happens before the cut; `normalize_embeddings=True` scales again.
            pool: the processes of `start_multi_process_pool` to compute with.
            chunk_size: number of texts sent to a process of the pool at once.
            ranges: (2, dim), minimum and maximum of each dimension, for int8 and uint8; by default computed from this
                call's embeddings.
            task: the task of the texts, which must be the encoder's; or "query" or "document", as passed by
                `encode_query` and `encode_document`, which all encoders accept. With a Router, the name of a route.
            options: see `WindowOptions`.

        Returns:
            float32 (dim,) for one string, (texts, dim) for several, in their order; int8 or uint8 for other precisions,
            with ceil(dim / 8) columns for "binary" and "ubinary". A list of hidden states or of dicts for several texts
            with another `output_value`.

        Raises:
            TypeError: a text is not a string, or an argument has another type or is unknown.
            ValueError: a text has a lone surrogate, a prompt name or precision is unknown, a number is not positive,
                ranges would come from a single text, or the task is not the encoder's.
        """
        many = listed_texts(inputs)
        given: dict[str, Any] = {
            "prompt": prompt, "prompt_name": prompt_name, "batch_size": batch_size, "device": device, "task": task,
            "normalize_embeddings": normalize_embeddings, "truncate_dim": truncate_dim, **options,
        }  # fmt: skip
        precision = "float32" if precision is None else precision
        checks.choice("precision", precision, PRECISIONS)
        checks.choice("output_value", output_value, ("sentence_embedding", "token_embeddings", None))
        if output_value is None and precision != "float32":
            raise ValueError(f"precision is {precision!r}, expected 'float32' with output_value None")
        is_one = isinstance(inputs, str)
        if output_value != "sentence_embedding":
            found = self._token_embeddings(many, output_value is None, given)
            if found and precision != "float32":
                ends = np.cumsum([len(states) for states in found[:-1]], dtype=int)
                found = np.split(quantize_embeddings(np.concatenate(found), precision, ranges=ranges), ends)
            found = found if convert_to_numpy and not convert_to_tensor else as_tensors(found)
            return found[0] if is_one else found
        parts = self._in_processes(many, pool, chunk_size, given)
        if parts is None:
            embeddings = self._embedded(many, show_progress_bar, precision=precision, ranges=ranges, **given)
        else:
            embeddings = np.concatenate(parts) if parts else np.empty((0, self.embedding_dimension), np.float32)
        if precision != "float32":
            embeddings = quantize_embeddings(embeddings, precision, ranges=ranges)
        return converted(embeddings, convert_to_numpy, convert_to_tensor, is_one)

    def _embedded(self, texts: list[str], show_progress_bar: bool | None, **options: Any) -> np.ndarray:
        """Return the float32 embeddings of texts, (texts, dim), computed in this process."""
        checked = self._checked(**options)
        width = min(self._width, checked.dimensions or self._width)
        embeddings, done = np.empty((len(texts), width), np.float32), 0
        with progress_bar(len(texts), show_progress_bar) as advance:
            for rows in self._windows_of_rows(texts, advance, checked):
                embeddings[done : done + len(rows)] = rows
                done += len(rows)
        return embeddings

    def encode_multi_process(self, sentences: list[str], pool: EncoderPool, **options: Any) -> np.ndarray:
        """Embed texts in the processes of a pool; `options` as for `encode`."""
        return self.encode(sentences, pool=pool, **options)

    @by_route
    @naming_nearest(*StreamOptions.__annotations__)
    def encode_stream(self, inputs: Iterable[str], **options: Unpack[StreamOptions]) -> Iterator[np.ndarray]:
        """Return an iterator over the float32 (dim,) embeddings of texts, in their order; texts may be a stream.

        Memory is bounded by `batch_tokens`, however many texts there are: a few batches are read, sorted by length,
        computed and returned before the next are read. The backend is the one that is active at this call. Arguments
        and errors are as for `encode`, except that int8 and uint8 need `ranges`.
        """
        bar = options.pop("show_progress_bar", None)
        given, checked = checked_texts(inputs, "inputs"), self._checked(**options)
        precision, ranges = checked.precision, checked.ranges
        if precision in ("int8", "uint8") and ranges is None:
            raise ValueError(f"precision is {precision!r}, for which a stream needs ranges, (2, dim)")

        def embeddings() -> Iterator[np.ndarray]:
            with progress_bar(None, bar) as advance:
                for rows in self._windows_of_rows(given, advance, checked):
                    yield from rows if precision == "float32" else quantize_embeddings(rows, precision, ranges=ranges)

        return embeddings()

    def skipped_tokens(self, prompt: str) -> int:
        """Return the number of a text's first tokens that are not pooled: those of the prompt, unless it is pooled."""
        return 0 if self.settings.include_prompt else self.prompt_tokens(prompt)

    def _checked(
        self,
        prompt: str | None = None,
        prompt_name: str | None = None,
        *,
        task: str | None = None,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> Options:
        """Check the options of a call; those that are not in `ReadingOptions` are fields of `Options`."""
        if self.routes is None and task not in (None, self.task, "query", "document"):
            has = "no task's adapter" if self.task is None else f"the adapter for {self.task!r}"
            raise ValueError(
                f"task is {task!r}, but this encoder has {has} in its weights: create another one, "
                f"SentenceEncoder(folder, task={task!r})"
            )
        dimensions = self.truncate_dim if truncate_dim is None else check_count("truncate_dim", truncate_dim)
        before = self.prompt(prompt, prompt_name)
        skipped = self.skipped_tokens(before)
        found = self._reading(Options, before, skipped=skipped, dimensions=dimensions, **options)
        if found.cutting.reads_all and found.prompt and not self.settings.include_prompt:
            raise ValueError("truncation is 'chunk', expected another value: this encoder does not pool its prompt")
        if found.cutting.reads_all and self.settings.is_static:
            raise ValueError("truncation is 'chunk', but static embeddings have no limit of tokens")
        return found

    def _token_embeddings(self, texts: list[str], with_all: bool, options: dict[str, Any]) -> list[Any]:
        """Return each text's hidden states, or a dict of hidden states, embedding and model inputs."""
        checked = self._checked(**options)
        whole = MergedWindows(checked.merge)
        found = list(chain.from_iterable(self._read(texts, self.hidden_states, whole, checked, lambda count: None)))
        if not with_all:
            return found
        ids, embeddings = [row for row, _ in self._rows(texts, checked)], self.encode(texts, **options)
        own = {"prompt_length": checked.skipped or None, "modality": "text"}
        types = "token_type_ids" in self.tokenizer.model_input_names
        return [
            {"token_embeddings": states, "sentence_embedding": embedding, "input_ids": row}
            | {"attention_mask": np.ones_like(row)}
            | ({"token_type_ids": np.zeros_like(row)} if types else {})
            | own
            for states, embedding, row in zip(found, embeddings, ids, strict=True)
        ]

    def similarity(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Return the similarity (n, m) of every row of `embeddings1` (n, dim) with every one of `embeddings2` (m, dim).

        `similarity_fn_name` selects "cosine", "dot", or minus the "euclidean" or "manhattan" distance. Raises
        ValueError for other shapes.
        """
        return SIMILARITIES[self.similarity_fn_name].of_all(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Return the similarity (n,) of rows at the same index, both (n, dim). Raises ValueError for other shapes."""
        return SIMILARITIES[self.similarity_fn_name].of_pairs(embeddings1, embeddings2)

    def set_pooling_include_prompt(self, include_prompt: bool) -> None:
        """Set whether the tokens of a prompt are pooled with those of the text."""
        for reader in self.readers.values() or [self]:
            reader.settings = replace(reader.settings, include_prompt=checks.boolean("include_prompt", include_prompt))

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Keep only the first dimensions within a with block."""
        before = self.truncate_dim
        self.truncate_dim = None if truncate_dim is None else check_count("truncate_dim", truncate_dim)
        try:
            yield
        finally:
            self.truncate_dim = before

    @property
    def embedding_dimension(self) -> int:
        """The length of an embedding."""
        return min(self._width, self.truncate_dim or self._width)

    @property
    def drops_unknown(self) -> bool:
        """True if no vector of an unknown word is pooled."""
        return self._dropped is not None or unknown_id(self.tokenizer) is None

    def _saved_settings(self) -> dict[str, Any]:
        return {"similarity_fn_name": self.similarity_fn_name, "truncate_dim": self.truncate_dim}

    def _write_modules(self, target: Path) -> None:
        if self.settings.is_static:
            return
        kinds = {"": f"{MODELS}.Transformer", "1_Pooling": f"{MODELS}.Pooling"}
        write_json(target / MODULES_NAME, module_entries(kinds))
        pooling = {"word_embedding_dimension": self.model.spec.hidden_size, "pooling_mode_mean_tokens": True}
        write_json(target / "1_Pooling" / CONFIG_NAME, pooling)

    def _save_model(self, folder: Path) -> None:
        if self.settings.is_static:
            files = [file for file in self.settings.model_folder.iterdir() if file.is_file() and file.name[0] != "."]
            for file in files:  # without folders: the new one may be among them
                shutil.copyfile(file, folder / file.name)
        else:
            super()._save_model(folder)

    def _windows_of_rows(
        self, texts: Iterable[str], advance: Callable[[int], object], options: Options
    ) -> Iterator[np.ndarray]:
        """Yield the embeddings of neighbouring texts, (texts, dim) float32, window by window."""
        whole = MergedWindows(options.merge)
        for rows in self._read(texts, lambda batch: self.pooled(batch, options.skipped), whole, options, advance):
            yield self.finished(np.array(rows), options.normalize_embeddings or None, options.dimensions)

    def pooled(self, batch: list[np.ndarray], skipped: int = 0) -> np.ndarray:
        """Return the vectors of a batch of token ids after pooling and the modules that follow it, (texts, dim).

        The first `skipped` tokens of each text are not pooled.
        """
        hidden, cu_seqlens = self.model.encode_packed(batch)
        return self.pooled_states(hidden, cu_seqlens, skipped)

    def pooled_states(self, hidden: Array, cu_seqlens: np.ndarray, skipped: int) -> np.ndarray:
        """Return the vectors pooled from packed hidden states, (tokens, hidden), with these offsets."""
        rows = pool(hidden, cu_seqlens, self.settings.pooling, skipped)
        for apply in self._maps:
            rows = apply(rows)
        return kernels.to_host(rows)

    def finished(self, rows: np.ndarray, normalize: bool | None, dimensions: int | None) -> np.ndarray:
        """Return pooled vectors as embeddings, (texts, dim) float32: scaled as published, cut, scaled on request."""
        if self.settings.normalize and (normalize is None or normalize):
            rows = normalized(rows)
        rows = rows[:, :dimensions]
        if normalize and (dimensions or not self.settings.normalize):
            rows = normalized(rows)
        return rows.astype(np.float32, copy=False)

    def hidden_states(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        """Return the hidden states of each text of a batch of token ids, (tokens, hidden) float32."""
        hidden, cu_seqlens = self.model.encode_packed(batch)
        rows = kernels.to_host(hidden).astype(np.float32, copy=False)
        return [part.copy() for part in np.split(rows, cu_seqlens[1:-1])] if batch else []

    def _cut_texts(self, max_length: int | None) -> CutTexts:
        positions, is_static = self.model.spec.longest_sequence, self.settings.is_static
        return CutTexts(self, max_length, positions, reads_windows=not is_static)
