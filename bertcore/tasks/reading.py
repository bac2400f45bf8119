"""Readers of texts: cut texts to the model's length or read them in windows, in batches of tokens."""

import copy
import functools
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from bertcore import kernels
from bertcore.arguments import older_names
from bertcore.checkpoint import CheckpointError
from bertcore.kernels import checks
from bertcore.models.model import NewlyInitialisedWarning
from bertcore.tasks.encoders import Encoder
from bertcore.tasks.folder import Module, Routes, read_routes, with_prompt
from bertcore.tasks.long_texts import MergedWindows, ReadOptions, Text, Window, merged_vectors
from bertcore.tasks.similarity import SIMILARITIES
from bertcore.tasks.texts import CutTexts, checked_text, grouped, in_batches, lower_cased, sequence_length
from bertcore.tokenization import AutoTokenizer, BatchEncoding
from bertcore.tokenization.tokenizer import Tokenizer

DOCUMENTS = "document", "passage", "corpus"  # names of the prompt for documents


def tokenizer_options(processing_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of the tokenizer's call in {"text": {...}, "common": {...}}."""
    given = {} if processing_kwargs is None else processing_kwargs
    options: dict[str, Any] = {}
    if not isinstance(given, Mapping) or not all(isinstance(more, Mapping) for more in given.values()):
        raise TypeError(f"processing_kwargs is {given!r}, expected options of the tokenizer, {{'text': {{...}}}}")
    for key, more in given.items():
        checks.choice("a key of processing_kwargs", key, ("text", "common"))
        options |= more
    return options


class TextReader:
    """A model with its tokenizer that reads texts in batches.

    Attributes:
        model, tokenizer: the parts.
        has_warned: whether it has warned that texts were cut.
    """

    model: Any
    tokenizer: Tokenizer
    readers: Mapping[str, Any] = {}  # of a Router's routes, by name
    token_rows: Callable[..., Iterable[tuple[Any, bool]]]  # (texts, prompt, length) -> (tokens, was cut) of each
    has_warned = False

    _text: Callable[[Any, str], Text]  # (text, prompt) -> the text that is read in windows
    _name = "inputs"  # name of the texts in errors

    def _load_trained(
        self, model_class: Any, folder: Path, dtype: str | None, kind: str, num_labels: int | None = None
    ) -> None:
        """Load a model. The checkpoint must have its head unless `num_labels` requests a head of that size."""
        if num_labels is not None:
            self.model = model_class.from_pretrained(folder, dtype=dtype, num_labels=num_labels)
            return
        with warnings.catch_warnings():  # a missing head is an error here
            warnings.simplefilter("ignore", NewlyInitialisedWarning)
            self.model = model_class.from_pretrained(folder, dtype=dtype)
        if missing := self.model.newly_initialised:
            raise CheckpointError(f"{folder} does not hold {', '.join(missing)}: expected a {kind}")

    def _load_tokenizer(self, folder: Path, wanted: int | None, published: int | None, row: str = "text") -> None:
        """Load the tokenizer and set `max_seq_length`: as given, else as published, else the tokenizer's.

        A row is a "text" or a "pair" with special tokens, or "bare" without.
        """
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        special = 0 if row == "bare" else self.tokenizer.num_special_tokens_to_add(pair=row == "pair")
        published, positions = published or self.tokenizer.model_max_length, self.model.spec.longest_sequence
        self._lengths = published, positions, special, folder
        self.max_seq_length = wanted

    @property
    def max_seq_length(self) -> int:
        """The length that texts are cut to, in tokens, including special tokens; None sets the published one."""
        return self._length

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        for reader in self.readers.values() or [self]:
            reader._length = sequence_length(value, *reader._lengths)

    def cut_length(self, processing_kwargs: Mapping[str, Any] | None) -> int:
        """Return the length that a call cuts texts to: "max_length" of its tokenizer options, or the reader's.

        Raises ValueError for other options than "max_length" and "truncation", which is True.
        """
        if processing_kwargs is None:
            return self._length
        options = tokenizer_options(processing_kwargs)
        for name, value in options.items():
            checks.choice("an option in processing_kwargs", name, ("max_length", "truncation"))
            if name == "truncation" and value is not True:
                raise ValueError(f"truncation in processing_kwargs is {value!r}, expected True")
        length = options.get("max_length")
        return self._length if length is None else sequence_length(length, *self._lengths)

    def _row(self, window: Window) -> Any:
        """Return the tokens of a window, as `token_rows` returns those of a text."""
        return np.array(window.ids, np.int32)

    def _size(self, text: Any) -> int:
        """Return the number of characters of a text."""
        return len(text)

    def _cut_texts(self, max_length: int | None) -> CutTexts:
        return CutTexts(self, max_length, self.model.spec.longest_sequence, reads_windows=True)

    def _rows(self, texts: list[Any], how: ReadOptions) -> Iterable[tuple[Any, bool]]:
        """Return the tokens of each text, cut as `how` says, and whether it was cut."""
        return self.token_rows(texts, how.prompt, how.cutting.max_length)

    def _read(
        self,
        texts: Iterable[Any],
        compute: Callable[[list[Any]], Iterable[Any]],
        whole: MergedWindows,
        how: ReadOptions,
        advance: Callable[[int], object],
    ) -> Iterator[list[Any]]:
        """Yield the results of `compute` for the tokens of the texts, in their order, in lists of neighbours.

        Memory is bounded by `batch_tokens`, however long texts are. `whole` merges the vectors of a text's windows.
        `advance` is called with the number of texts just completed.
        """
        cutting, sizes = how.cutting, (how.batch_tokens, how.batch_size)

        def of_batch(rows: list[Any]) -> Iterable[Any]:
            # Set for each batch: a with block that is open across a yield would change the backend of the caller.
            with kernels.use_backend(how.backend):
                return compute(rows)

        if cutting.reads_all:
            given = (self._text(text, how.prompt) for text in texts)

            def of_windows(windows: list[Window]) -> Iterable[Any]:
                return of_batch([self._row(window) for window in windows])

            for found in merged_vectors(given, self.tokenizer, cutting, whole, of_windows, *sizes):
                advance(len(found))
                yield found
            return
        cut, groups = self._cut_texts(cutting.max_length), grouped(texts, self._size)
        rows = chain.from_iterable(self._rows(group, how) for group in groups)
        kept = cut.counted(rows, self._name if cutting.truncation == "error" else None)
        yield from in_batches(kept, how.batch_tokens, of_batch, advance, how.batch_size)
        if cutting.truncation == "warn":
            cut.warn()


def by_route(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method with a keyword `task`: with a Router, the reader of the task's route runs it."""

    @functools.wraps(method)
    def call(self: "PromptedReader", *args: Any, **given: Any) -> Any:
        return method(self if self.routes is None else self.routed(given.get("task")), *args, **given)

    return call


SHARED = "_prompts", "_device", "_similarity_fn_name", "truncate_dim", "max_active_dims"  # by the readers of all routes


class PromptedReader(TextReader, Encoder):
    """A reader that puts prompts before texts, as sentence-transformers does; its `settings` have them.

    With a Router, `readers` has an encoder for each route; the one of the default route is this encoder itself.
    """

    settings: Any
    routes: Routes | None = None  # of a Router
    _dropped: int | None = None  # id of a token that is left out
    encode: Callable[..., Any]
    encode_stream: Callable[..., Iterator[Any]]
    similarity: Callable[..., Any]
    similarity_pairwise: Callable[..., Any]

    SUPPORTED_SIMILARITY_FN_NAMES: ClassVar[tuple[str, ...]] = tuple(SIMILARITIES)

    def _load_routes(self, load: Callable[[Any, list[Module] | None, dict[Path, Any]], None]) -> None:
        """Call `load(reader, modules, models)` for each route, sharing `models` by folder; once without a Router.

        Raises CheckpointError if the routes make embeddings of different lengths.
        """
        routes = self._find_routes()
        if routes is None or (routes.file is None and len(routes.modules) == 1):
            return load(self, routes and routes.modules[routes.first], {})
        self.routes = routes
        models: dict[Path, Any] = {}
        readers = {name: self if name == routes.first else copy.copy(self) for name in routes.modules}
        for name, reader in readers.items():
            load(reader, routes.modules[name], models)
        widths = {name: reader.embedding_dimension for name, reader in readers.items()}
        if len(set(widths.values())) > 1:
            made = ", ".join(f"{width} ({name})" for name, width in widths.items())
            raise CheckpointError(f"{routes.file or self.folder}: the routes make {made} dimensions, expected one size")
        for reader in readers.values():
            reader.readers = readers

    def _find_routes(self) -> Routes | None:
        return read_routes(self.folder)

    def routed(self, task: str | None) -> Self:
        """Return the encoder that reads texts with this task: the one of a Router's route, otherwise this one.

        Raises ValueError for a task without a route.
        """
        if self.routes is None:
            return self
        return self._shared_with(self.readers[self.routes.resolve(task)])

    def _shared_with(self, reader: Self) -> Self:
        reader.__dict__ |= {name: vars(self)[name] for name in SHARED if name in vars(self)}
        return reader

    def _model_folder(self) -> Path:
        return self.settings.model_folder

    def _module_folders(self) -> tuple[Path, ...]:
        return self.settings.folders

    def _fill(self, target: Path, where: Path) -> None:
        for reader in self.readers.values():
            if reader is not self:
                Encoder._fill(self._shared_with(reader), target, reader._model_folder().relative_to(self.folder))
        super()._fill(target, where)
        if self.routes is not None and self.routes.file is not None:
            shutil.copyfile(self.routes.file, target / self.routes.file.relative_to(self.folder))

    def prompt_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without a special token at its end."""
        if not prompt:
            return 0
        row = self.tokenizer(self.prepared("", prompt), return_special_tokens_mask=True)
        return len(row["input_ids"]) - row["special_tokens_mask"][-1]

    @property
    def similarity_fn_name(self) -> str:
        """The similarity that `similarity` computes: "cosine", "dot", "euclidean" or "manhattan"."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str) -> None:
        name = getattr(name, "value", name)  # of sentence-transformers' SimilarityFunction
        supported = self.SUPPORTED_SIMILARITY_FN_NAMES
        if name in ("maxsim", "meanmaxsim") and name not in supported:
            known = ", ".join(supported)
            raise ValueError(f"similarity_fn_name is {name!r}, which MultiVectorEncoder has, expected one of {known}")
        checks.choice("similarity_fn_name", name, supported)
        self._similarity_fn_name = name

    @older_names(sentences="inputs")
    def encode_query(
        self, inputs: str | Iterable[str], prompt_name: str | None = None, prompt: str | None = None, *more: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Encode with the model's query prompt ("query"), if it has one; `prompt` and `prompt_name` override it.

        `more` and `options` are those of `encode`.
        """
        return self._encode_as("query", ("query",), (inputs, prompt_name, prompt, *more), options)

    @older_names(sentences="inputs")
    def encode_document(
        self, inputs: str | Iterable[str], prompt_name: str | None = None, prompt: str | None = None, *more: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Encode with the model's document prompt ("document", "passage" or "corpus"), if it has one.

        `prompt` and `prompt_name` override it; `more` and `options` are those of `encode`.
        """
        return self._encode_as("document", DOCUMENTS, (inputs, prompt_name, prompt, *more), options)

    def _encode_as(self, task: str, names: tuple[str, ...], given: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call `encode`, by keywords (as its overrides expect) unless arguments after `prompt` came by position."""
        inputs, prompt_name, prompt, *more = given
        if prompt_name is None and prompt is None:
            prompt_name = self._prompts.first_of(*names)
        options = {"task": task} | options
        if more:
            return self.encode(inputs, prompt_name, prompt, *more, **options)
        return self.encode(inputs=inputs, prompt_name=prompt_name, prompt=prompt, **options)

    def encode_document_stream(self, inputs: Iterable[str], **options: Any) -> Iterator[Any]:
        """Return an iterator over the embeddings of documents, with the document prompt; documents may be a stream."""
        return self.encode_stream(inputs, **{"task": "document"} | with_prompt(options, self.document_prompt))

    @property
    def query_prompt(self) -> str:
        """The text that `encode_query` puts before each text."""
        return self._prompts.by_name.get("query", "")

    @property
    def document_prompt(self) -> str:
        """The text that `encode_document` puts before each text."""
        return self._prompts.by_name.get(self._prompts.first_of(*DOCUMENTS) or "", "")

    def get_embedding_dimension(self) -> int:
        """Return the length of an embedding."""
        return self.embedding_dimension

    get_sentence_embedding_dimension = get_embedding_dimension  # the name before sentence-transformers 6

    def prepared(self, text: str, prompt: str) -> str:
        """Return the tokenizer's input: prompt and text, in lower case if the model asks for it."""
        return lower_cased(prompt + text) if self.settings.do_lower_case else prompt + text

    def _text(self, text: str, prompt: str) -> Text:
        return Text(self.prepared(text, prompt))

    @by_route
    def preprocess(
        self,
        inputs: Iterable[Any],
        prompt: str | None = None,
        processing_kwargs: Mapping[str, Any] | None = None,
        *,
        task: str | None = None,
    ) -> BatchEncoding:
        """Return the model's inputs (input_ids, attention_mask, ...) by name, as NumPy arrays, int64 (texts, tokens).

        Rows are cut to `max_seq_length` and padded to the longest, as in sentence-transformers' method of this name.

        Args:
            inputs: texts, or pairs of texts.
            prompt: text to put before each.
            processing_kwargs: arguments of the tokenizer's call: {"text": {"max_length": 256, "truncation": True}}.
            task: chooses the route of a Router.

        Raises:
            TypeError: an input is neither a text nor a pair, or texts and pairs are mixed.
            ValueError: `processing_kwargs` has other keys than "text" and "common".
        """
        call: dict[str, Any] = {"padding": True, "truncation": True, "max_length": self.max_seq_length}
        call["add_special_tokens"] = self._lengths[2] > 0  # those of a text; none for static embeddings
        call |= tokenizer_options(processing_kwargs)
        if isinstance(inputs, str):
            raise TypeError("inputs is str, expected a list of strings, or of pairs of strings")
        rows = [list(each) if isinstance(each, list | tuple) else [each] for each in inputs]
        for number, row in enumerate(rows):
            if not len(row) == len(rows[0]) <= 2:
                raise TypeError(f"inputs[{number}] has {len(row)} texts, expected one in each, or two in each")
            for part, text in enumerate(row):
                checked_text(f"inputs[{number}]", text, "a string or a pair of strings")
                row[part] = self.prepared(text, "" if part or not prompt else prompt)
        columns = [list(column) for column in zip(*rows, strict=True)] or [[]]
        return self.tokenizer(*columns, **call | {"return_tensors": "np"})

    tokenize = preprocess

    def token_rows(
        self, texts: list[str], prompt: str = "", max_length: int | None = None
    ) -> list[tuple[np.ndarray, bool]]:
        """Return for each text the token ids of prompt and text, cut to `max_length`, and whether they were cut.

        The length is `max_seq_length` by default.
        """
        most = self.max_seq_length if max_length is None else max_length
        is_plain = not prompt and not self.settings.do_lower_case
        prepared = texts if is_plain else [self.prepared(text, prompt) for text in texts]
        if self.settings.is_static:  # without special tokens
            kept = slice(-most, None) if self.tokenizer.truncation_side == "left" else slice(most)
            rows = [(ids[kept], len(ids) > most) for ids in self.tokenizer.whole_ids(prepared)]
            dropped = self._dropped
            return [
                (np.array([each for each in ids if each != dropped] if dropped in ids else ids, np.int32), was_cut)
                for ids, was_cut in rows
            ]
        found = self.tokenizer.encode_beginnings(prepared, most)
        return [(np.array(ids, np.int32), was_cut) for ids, was_cut in found]
