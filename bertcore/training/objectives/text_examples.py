"""Conversion of texts into examples and batches, for every objective."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from bertcore.arguments import check_numbers
from bertcore.tokenization.tokenizer import Tokenizer
from bertcore.training.collators import is_cut
from bertcore.training.data.batches import LABELS

Documents = Iterable[Iterable[str]]


class ColumnCollator:
    """Batches of (examples, columns, length) from examples of several texts, with an optional label.

    Examples are mappings of texts; their names are free, but must be the same in all, in the same order. "label",
    "labels", "score" or "scores" is the label: a number, or a list of numbers of one length in all examples.

    Args:
        tokenizer: cuts the texts to `max_length` and pads them to the longest.
        max_length: in tokens, special ones included; by default the tokenizer's model_max_length, if it has one.
        encoder: the encoder whose model reads the batches; texts are lower-cased if it asks for that.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int | None = None, encoder: Any = None):
        self.tokenizer, self.max_length, self.encoder = tokenizer, max_length, encoder

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the batch: input_ids and the model's other inputs, (examples, columns, length), and labels.

        Raises:
            ValueError: without examples, texts, or one column of labels; for an example whose names differ from the
                first's.
            TypeError: for a column that is not a text.
        """
        if not examples:
            raise ValueError("examples is empty, expected at least one")
        names = list(examples[0])
        columns, labels = split_names(names)
        for index, example in enumerate(examples):
            if list(example) != names:
                raise ValueError(f"examples[{index}] has {', '.join(example)}, expected {', '.join(names)}")
            wrong = [name for name in columns if not isinstance(example[name], str)]
            if wrong:
                kind = type(example[wrong[0]]).__name__
                raise TypeError(f"examples[{index}][{wrong[0]!r}] is {kind}, expected a text")
        texts = [example[name] for example in examples for name in columns]
        rows = self.rows(texts, len(columns))
        batch = {name: array.reshape(len(examples), len(columns), -1) for name, array in rows.items()}
        for name in labels:
            values = [example[name] for example in examples]
            are_flags = all(isinstance(value, bool | np.bool_) for value in values)
            batch["labels"] = check_numbers("labels", np.array(values, int) if are_flags else values)
        return batch

    def rows(self, texts: list[str], columns: int) -> Mapping[str, np.ndarray]:
        """Return the model's inputs, (texts, length), for the texts of examples with this many columns."""
        return self.tokenized(texts)

    def tokenized(self, *texts: list[str]) -> Mapping[str, np.ndarray]:
        """Return texts, or pairs of texts in two lists, cut and padded, (rows, length)."""
        if self.encoder is not None:
            texts = tuple([self.encoder.prepared(text, "") for text in column] for column in texts)
        cuts = {"truncation": is_cut(self.tokenizer, self.max_length), "max_length": self.max_length}
        return self.tokenizer(*texts, padding=True, return_tensors="np", **cuts)


def split_names(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the columns of texts and the one of labels, if any. Raises ValueError for other numbers of columns."""
    columns, labels = ([name for name in names if (name in LABELS) == is_label] for is_label in (False, True))
    if not columns or len(labels) > 1:
        expected = f"texts and at most one of {', '.join(LABELS)}"
        raise ValueError(f"an example has {', '.join(map(str, names)) or 'no column'}, expected {expected}")
    return columns, labels


AT_ONCE = 256  # texts that are tokenized together: faster than short documents one by one


def document_ids(tokenizer: Tokenizer, documents: Documents) -> Iterator[list[list[int]]]:
    """Yield for each document the ids of its texts, without special tokens; texts without any are left out.

    Raises TypeError for a document that is a string.
    """
    waiting: list[list[str]] = []
    for document in documents:
        if isinstance(document, str):
            raise TypeError(f"documents has {document!r:.60}, expected lists of strings")
        waiting.append(list(document))
        if sum(map(len, waiting)) >= AT_ONCE or len(waiting) == AT_ONCE:
            yield from _ids_of(tokenizer, waiting)
            waiting = []
    yield from _ids_of(tokenizer, waiting)


def _ids_of(tokenizer: Tokenizer, documents: list[list[str]]) -> Iterator[list[list[int]]]:
    texts = [text for document in documents for text in document]
    left_out = "add_special_tokens", "truncation", "return_attention_mask", "return_token_type_ids"
    rows = iter(tokenizer(texts, **dict.fromkeys(left_out, False))["input_ids"])
    for document in documents:
        yield [ids for ids in islice(rows, len(document)) if ids]


def stream_pieces(tokenizer: Tokenizer, documents: Documents, end: int, size: int) -> Iterator[list[int]]:
    """Yield the ids of all documents in turn, each followed by `end`, in pieces of `size`; the rest comes last.

    A document without ids adds nothing.
    """
    left: list[int] = []
    for document in document_ids(tokenizer, documents):
        ids = left + [token for text in document for token in text] + ([end] if document else [])
        whole = len(ids) - len(ids) % size
        for start in range(0, whole, size):
            yield ids[start : start + size]
        left = ids[whole:]
    if left:
        yield left


def text_limit(max_length: int, special: int, least: int = 1) -> int:
    """Return the number of text tokens that fit into `max_length` beside the special ones.

    Raises ValueError if they are fewer than `least`.
    """
    if not isinstance(max_length, int) or isinstance(max_length, bool) or max_length < special + least:
        raise ValueError(f"max_length is {max_length!r}, expected at least {special + least}: {special} special tokens")
    return max_length - special


class SpecialTokens:
    """The special tokens that a tokenizer puts around the ids of one text, or of two (`texts`)."""

    def __init__(self, tokenizer: Tokenizer, texts: int = 1):
        words = [tokenizer.mask_token or tokenizer.unk_token or "a"] * texts  # any text of at least one token
        probe = tokenizer(*words, return_token_type_ids=True)
        self._has_types = "token_type_ids" in tokenizer.model_input_names
        self._slots: list[tuple[int | None, int | None, int]] = []  # (which text or None, special token, token type)
        for source, token, kind in zip(probe.sequence_ids(), probe["input_ids"], probe["token_type_ids"], strict=True):
            slot = (source, None if source is not None else token, kind)
            if source is None or slot not in self._slots:  # a text of several tokens has one slot
                self._slots.append(slot)

    def __len__(self) -> int:
        return sum(source is None for source, _, _ in self._slots)

    def before(self, text: int = 0) -> int:
        """Return the number of special tokens before the text of this number."""
        first = next(place for place, (source, _, _) in enumerate(self._slots) if source == text)
        return sum(source is None for source, _, _ in self._slots[:first])

    def around(self, *texts: list[int]) -> dict[str, list[int]]:
        """Return an example of the ids of the texts: input_ids, and token_type_ids if the model takes them."""
        ids: list[int] = []
        types: list[int] = []
        for source, token, kind in self._slots:
            part = [token] if source is None else texts[source]
            ids += part
            types += [kind] * len(part)
        return {"input_ids": ids} | ({"token_type_ids": types} if self._has_types else {})


class EncoderCollator(ColumnCollator):
    """A `ColumnCollator` whose first column has queries and whose others have documents, as an encoder reads them."""

    def __init__(self, encoder: Any):
        super().__init__(encoder.tokenizer, encoder=encoder)

    def rows(self, texts: list[str], columns: int) -> Mapping[str, np.ndarray]:
        rows: list[Any] = [None] * len(texts)
        prompts = {"query": self.encoder.query_prompt, "document": self.encoder.document_prompt}
        for side, (task, prompt) in enumerate(prompts.items()):
            places = [place for place in range(len(texts)) if min(place % columns, 1) == side]
            found = self.token_rows([texts[place] for place in places], task, prompt)
            for place, (row, _) in zip(places, found, strict=True):
                rows[place] = row
        return self.arrays(rows, columns)

    def token_rows(self, texts: list[str], task: str, prompt: str) -> Iterable[tuple[Any, bool]]:
        """Return the encoder's row of each text, and whether it was cut."""
        raise NotImplementedError

    def arrays(self, rows: list[Any], columns: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of rows, (texts, length)."""
        raise NotImplementedError


class PairCollator(ColumnCollator):
    """Batches of pairs for cross-encoders, from examples of a query and documents.

    Examples are mappings whose first text is the query; other columns are documents, or lists of documents. "label",
    "labels", "score" or "scores" is a number, or a list of numbers, as many as documents for most losses.

    Args:
        tokenizer: joins and cuts the pairs, and pads them to the longest.
        max_length, encoder: as for `ColumnCollator`.
    """

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        """Return the batch. Raises ValueError without examples or documents, TypeError for values other than texts."""
        if not examples:
            raise ValueError("examples is empty, expected at least one")
        queries, documents = zip(*(self._texts(index, example) for index, example in enumerate(examples)), strict=True)
        rows = list(self.lists(documents))
        pairs = [(query, text) for query, texts in zip(queries, rows, strict=True) for text in texts]
        batch = dict(self.tokenized(*map(list, zip(*pairs, strict=True))))
        labels = [np.atleast_1d(example[name]) for example in examples for name in LABELS if name in example]
        for index, (own, texts) in enumerate(zip(labels, documents, strict=False)):
            if not 0 <= len(texts) - len(own) <= 1:
                expected = f"expected {len(texts)}, one for each document"
                raise ValueError(f"examples[{index}] has {len(own)} labels, {expected}")
        if labels:
            batch["labels"] = np.concatenate(labels)
        return batch | {"lists": np.repeat(np.arange(len(rows)), [len(texts) for texts in rows])}

    def lists(self, documents: Sequence[list[str]]) -> Iterator[list[str]]:
        yield from documents

    def _texts(self, index: int, example: Mapping[str, Any]) -> tuple[str, list[str]]:
        query, *columns = [value for name, value in example.items() if name not in LABELS]
        lists = [each if isinstance(each, list | tuple | np.ndarray) else [each] for each in columns]
        documents = [text for texts in lists for text in texts]
        for text in (query, *documents):
            if not isinstance(text, str):
                raise TypeError(f"examples[{index}] has {text!r:.60}, expected texts")
        if not documents:
            raise ValueError(f"examples[{index}] has no document, expected at least one")
        return query, documents
