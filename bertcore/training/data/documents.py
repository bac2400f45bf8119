"""Documents of records, each a list of sentences or lines, as objectives take them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertcore.training.data.files import Record, wrong_record

LONGEST_DOCUMENT = 1 << 20  # characters


class Documents:
    """The documents of records; every loop over it reads them again.

    An empty line of a text file ends a document, and so does the end of the file; every other record is a document of
    its own: its column of text. A document of more than a million characters comes in parts, so that a file without an
    empty line is never whole in memory.

    Args:
        records: `Records`, a Hugging Face dataset, or any iterable of mappings.
        column: the name of the text in records that are no lines.
        language: documents are split into sentences by the rules of this language ("en", "de", ...; needs sentencex);
            None leaves their lines as they are.

    A document is a list of strings without white space around them; empty ones, and empty documents, are left out.

    Raises:
        TypeError: for what is no iterable.
        MalformedRecord (a ValueError): in a loop, for a record without a text in the column.
        ImportError: if sentences are asked for and sentencex is not installed.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]], *, column: str = "text", language: str | None = None):
        if not isinstance(records, Iterable) or isinstance(records, str | bytes | Mapping):
            raise TypeError(f"records is {type(records).__name__}, expected an iterable of records: Records(paths)")
        self.records, self.column, self.language = records, column, language
        if language is not None:
            split_sentences("", language)

    def __iter__(self) -> Iterator[list[str]]:
        for lines in self._lines():
            pieces = lines if self.language is None else split_sentences("\n".join(lines), self.language)
            document = [piece.strip() for piece in pieces]
            if document := [piece for piece in document if piece]:
                yield document

    def _lines(self) -> Iterator[list[str]]:
        """The lines of each document."""
        waiting: list[str] = []
        length, file = 0, None
        for number, record in enumerate(self.records):
            text = self._text(number, record)
            is_line = isinstance(record, Record) and record.is_line
            goes_on = is_line and text.strip() and record.file == file and length + len(text) <= LONGEST_DOCUMENT
            if waiting and not goes_on:
                yield waiting
                waiting, length = [], 0
            if is_line:
                waiting.append(text)
                length, file = length + len(text), record.file
            else:
                yield text.splitlines()
        if waiting:
            yield waiting

    def _text(self, number: int, record: Mapping[str, Any]) -> str:
        if isinstance(record, Record) and record.is_line:
            return record["text"]
        text = record.get(self.column) if isinstance(record, Mapping) else None
        if not isinstance(text, str):
            raise wrong_record(record, number, f"has no text named {self.column!r}")
        return text


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a text with the white space between them: joined, they are the text.

    By the rules of sentencex (https://github.com/wikimedia/sentencex) for the language, a code of two or three letters;
    it has rules of their own for some 30, and takes the nearest for others.
    """
    try:
        sentencex = importlib.import_module("sentencex")
    except ImportError as error:
        raise ImportError("sentences need sentencex: pip install 'bertcore[training]'") from error
    if not isinstance(language, str) or not language:
        raise TypeError(f"language is {language!r}, expected a code such as 'en'")
    return list(sentencex.segment(language, text))
