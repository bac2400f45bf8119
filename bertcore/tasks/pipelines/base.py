"""The base of all pipelines: loading, windows of texts, batches by tokens, answers in the order of the inputs."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np

from bertcore import kernels
from bertcore.arguments import DType, check_count, check_mapping
from bertcore.checkpoint import resolve
from bertcore.kernels import checks
from bertcore.models.model import Model, NewlyInitialisedWarning
from bertcore.tasks.encoder_pool import backend_of
from bertcore.tasks.long_texts import Cutting, Text, Window, first_windows, windows_of, with_last
from bertcore.tasks.texts import BATCH_TOKENS, CutTexts, checked_text, grouped, in_batches, progress_bar
from bertcore.tokenization import AutoTokenizer
from bertcore.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

Answers: TypeAlias = dict[str, Any] | list[dict[str, Any]]  # of one input: one, or several
Arrays: TypeAlias = Mapping[str, np.ndarray]  # the arguments of a model, by name
PADDINGS = "longest", "max_length", "do_not_pad"
CLASSIFIERS = (
    *("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice"),
    *("ForEntityClassification", "ForEntityPairClassification", "ForEntitySpanClassification"),
)


def listed_names(item: Mapping[str, Any]) -> str:
    """Return the keys of an input, for an error message."""
    return f"{', '.join(map(repr, item)):.200}" or "none"


@dataclass(frozen=True)
class CallOptions:
    """Options of every call.

    Attributes:
        truncation: treatment of texts longer than the model accepts: "warn" cuts them and warns once, with counts;
            True cuts them; "error" rejects them; "chunk" reads them whole, in overlapping windows.
        max_length: number of tokens of a row, including special tokens; by default the model's maximum.
        stride: for "chunk", the number of tokens that neighbouring windows share; by default a quarter of a window.
        padding: "max_length" pads rows to `max_length`; otherwise they are padded to the longest of their batch.
        batch_tokens, batch_size: maximum number of tokens and rows computed at once; they do not change the result.
        device: "cpu" (or -1) or "cuda" (or 0), where the model computes; by default the active backend decides.
        show_progress_bar: whether to show a bar; by default on a terminal, if the work takes long.

    As in transformers, `tokenizer_kwargs` (or `tokenize_kwargs`) is a dictionary of such options.
    """

    truncation: bool | str = "warn"
    max_length: int | None = None
    stride: int | None = None
    padding: bool | str = True
    batch_tokens: int = BATCH_TOKENS
    batch_size: int | None = None
    device: str | int | torch.device | None = None
    show_progress_bar: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.padding, bool):
            checks.choice("padding", self.padding, PADDINGS)
        check_count("batch_tokens", self.batch_tokens)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        backend_of(self.device)
        Cutting(self.truncation, self.max_length, self.stride)


@dataclass(frozen=True)
class ItemText:
    """A text of an input: the input, its name in errors, the text, and whether it is the input's last one."""

    item: object
    name: str
    text: Text
    is_last: bool

    def __len__(self) -> int:
        return len(self.text)


class Pipeline:
    """A model, a tokenizer and one task, from inputs to answers; created by `bertcore.pipeline`.

    A call with one input (a string, or the form that the task documents) returns its answer; with a list, a list of
    answers; and with an iterator, a generator of answers in the same order that reads a few batches ahead, so that
    memory does not grow with the number of inputs.

    The options of a call, documented by each task, may be passed to `pipeline` as defaults.

    Attributes:
        model, tokenizer: the parts.
        options: defaults of a call's options.
        has_warned: whether this pipeline has warned that texts were cut.

    Several threads may use one pipeline at once.
    """

    task: ClassVar[str] = ""
    options_class: ClassVar[type[CallOptions]] = CallOptions
    model_classes: ClassVar[tuple[type[Model], ...]] = ()  # the first is loaded
    _head: ClassVar[str] = ""  # description of the head that a checkpoint must have
    _model_options: ClassVar[Mapping[str, Any]] = {}
    _most_shared: ClassVar[int | None] = None
    _keys: ClassVar[tuple[str, ...]] = ()  # of an input of two texts

    def __init__(self, model: Model[Any], tokenizer: Tokenizer, **options: Any):
        self.model, self.tokenizer = model, tokenizer
        self.has_warned = False
        self.options = self.options_class()
        self.options = self._options(options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.model!r}>"

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None,
                        dtype: DType | None = None, hub: Mapping[str, Any] | None = None,
                        **options: Any) -> Self:  # fmt: skip
        """Load the pipeline of a checkpoint.

        Raises ValueError for a checkpoint without the task's head, and CheckpointError like `Model.from_pretrained`.
        """
        folder = resolve(folder, "sentence_encoder", **(hub or {}))  # weights and tokenizer
        with warnings.catch_warnings():  # a missing head is an error here
            warnings.simplefilter("ignore", NewlyInitialisedWarning)
            model = cls.model_classes[0].from_pretrained(folder, dtype=dtype, **cls._model_options)
        if model.newly_initialised or cls._is_of_another_task(model):
            raise ValueError(f"{folder} has no {cls._head}, so it cannot do {cls.task}")
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(folder, **cls._tokenizer_options(model))
        return cls(model, tokenizer, **options)

    @classmethod
    def _is_of_another_task(cls, model: Model) -> bool:
        """Return whether the config names another task's classifier; in BERT's files, weight names are the same."""
        others = set(CLASSIFIERS) - {cls.model_classes[0].__name__.removeprefix("AutoModel")}
        stated = model.config.get("architectures")
        names = stated if isinstance(stated, list) else []
        return len(others) < len(CLASSIFIERS) and any(str(name).endswith(tuple(others)) for name in names)

    @classmethod
    def _tokenizer_options(cls, model: Model) -> dict[str, Any]:
        return {}

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Answer one input, a list or an iterator of inputs; see the class of the task."""
        return self._call(inputs, self._options(options))

    def _call(self, inputs: Any, options: Any) -> Any:
        if isinstance(inputs, str | Mapping if self._keys else str):
            (answer,) = self._answers([inputs], options, total=1, one=True)
            return answer
        self._check_several(inputs)
        if isinstance(inputs, Iterator) or not hasattr(inputs, "__len__"):
            return self._answers(inputs, options, total=None)
        return list(self._answers(inputs, options, total=len(inputs)))

    def _check_several(self, inputs: object) -> None:
        is_table = hasattr(inputs, "columns")  # iterating over it yields column names
        has_no_axis = isinstance(inputs, np.ndarray) and not inputs.ndim  # isinstance counts it as iterable
        if isinstance(inputs, bytes | Mapping) or not isinstance(inputs, Iterable) or has_no_axis or is_table:
            raise TypeError(f"inputs is {type(inputs).__name__}, expected {self._expected()}, or several")

    @property
    def id2label(self) -> Mapping[int, str]:
        return self.model.config.id2label

    # Overridden by tasks.

    def _expected(self) -> str:
        return "{" + ", ".join(f'"{key}": ...' for key in self._keys) + "}" if self._keys else "a string"

    def _pair(self, item: object, name: str) -> Iterator[str]:
        if not isinstance(item, Mapping):
            raise TypeError(f"{name} is {type(item).__name__}, expected {self._expected()}")
        if set(item) != set(self._keys):
            expected = " and ".join(map(repr, self._keys))
            raise ValueError(f"{name} has the keys {listed_names(item)}, expected {expected}")
        return (checked_text(f"{name}[{key!r}]", item[key]) for key in self._keys)

    def _texts(self, item: object, name: str, options: Any) -> list[Text]:
        """Return the model's texts for one input."""
        return [Text(checked_text(name, item, self._expected()))]

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: Any) -> Sequence[Any]:
        """Run the model on a batch of windows; return the result to keep for each window."""
        raise NotImplementedError

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: Any) -> Any:
        """Return the answer from the kept results of each text's windows."""
        raise NotImplementedError

    # From inputs to answers.

    def _options(self, given: Mapping[str, Any]) -> Any:
        names, given = [field.name for field in fields(self.options_class)], dict(given)
        for name in ("tokenizer_kwargs", "tokenize_kwargs"):
            given = check_mapping(name, given.pop(name, None) or {}) | given
        unknown = [name for name in given if name not in names]
        if unknown:
            raise TypeError(f"{self.task} got an unexpected option {unknown[0]!r}; it takes {', '.join(names)}")
        return replace(self.options, **given)

    def _cutting(self, options: CallOptions) -> Cutting:
        longest, positions = options.max_length, self.model.spec.longest_sequence
        stated = min(self.tokenizer.model_max_length, positions or self.tokenizer.model_max_length)
        if longest is None:
            longest = stated if stated < 1 << 40 else None  # files without a limit have a huge number
        elif positions is not None and longest > positions:
            raise ValueError(f"max_length is {longest}, expected at most {positions}, the model's positions")
        return Cutting(options.truncation, longest, options.stride, self._most_shared)

    def _answers(self, items: Iterable[Any], options: Any, total: int | None, one: bool = False) -> Iterator[Any]:
        """Yield the answers in order, computed on `device`, or by the backend that is current at this call."""
        cutting, backend = self._cutting(options), backend_of(options.device)
        return self._generate(items, options, cutting, backend, total, one)

    def _generate(self, items, options, cutting: Cutting, backend: str, total: int | None, one: bool) -> Iterator[Any]:
        longest = self.model.spec.longest_sequence
        cut = CutTexts(self, cutting.max_length, longest, argument="max_length", reads_windows=True)
        least = cutting.max_length if options.padding == "max_length" else None
        marks: deque[tuple[ItemText, bool]] = deque()  # the text of each row, and whether it is the text's last row
        kept: list[list[Any]] = [[]]  # of the current item, by text

        def compute(rows: list[Any]) -> Sequence[Any]:
            # Set for each batch: a with block open across a yield would change the caller's backend.
            with kernels.use_backend(backend):
                return self._read(rows, self._arrays(rows, least or 0), options)

        def rows() -> Iterator[Any]:
            for group in grouped(self._item_texts(items, options, one)):
                for each, (found, was_cut) in zip(group, self._rows(group, cutting), strict=True):
                    cut.count(was_cut and cutting.truncation == "warn")
                    for row, is_last in with_last(found):
                        marks.append((each, is_last))
                        yield row

        sizes = {"batch_tokens": options.batch_tokens, "batch_size": options.batch_size}
        with progress_bar(total, options.show_progress_bar) as advance:
            for results in in_batches(rows(), compute=compute, advance=lambda count: None, **sizes):
                for result in results:
                    each, is_last = marks.popleft()
                    kept[-1].append(result)
                    if is_last and each.is_last:
                        yield self._answer(each.item, each.name, kept, options)
                        advance(1)
                        kept = []
                    if is_last:
                        kept.append([])
        cut.warn()

    def _item_texts(self, items: Iterable[Any], options: CallOptions, one: bool) -> Iterator[ItemText]:
        for number, value in enumerate(items):
            name = "inputs" if one else f"inputs[{number}]"
            texts = self._texts(value, name, options)
            for place, text in enumerate(texts, 1):
                yield ItemText(value, name, text, is_last=place == len(texts))

    def _rows(self, texts: Sequence[ItemText], cutting: Cutting) -> Iterator[tuple[Iterator[Any], bool]]:
        """Yield the rows of each text, and whether it was cut."""
        for each, found in zip(texts, windows_of(self.tokenizer, [each.text for each in texts], cutting), strict=True):
            yield first_windows(found, cutting, each.name)

    def _arrays(self, found: Sequence[Window], least: int = 0) -> dict[str, np.ndarray]:
        """Return the rows as the model's arguments, padded on the right, int64 (rows, longest or `least`)."""
        shape = len(found), max(least, *map(len, found))
        ids, (mask, types) = np.full(shape, self.tokenizer.pad_token_id or 0, np.int64), np.zeros((2, *shape), np.int64)
        for row, window in enumerate(found):
            here = row, slice(len(window))
            ids[here], mask[here], types[here] = window.ids, 1, window.encoding.type_ids
        arrays = {"input_ids": ids, "attention_mask": mask}
        has_types = "token_type_ids" in self.tokenizer.model_input_names
        return arrays | ({"token_type_ids": types} if has_types else {})
