"""From raw texts to the ids that objectives make examples of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

AT_ONCE = 256  # texts that are tokenised together: 1.6 times as fast as documents of one to three one by one


def document_ids(tokenizer: Any, documents: Iterable[Iterable[str]]) -> Iterator[list[list[int]]]:
    """For each document the ids of its texts, without special tokens; texts without any are left out.

    Raises TypeError for a document that is a string, and not several.
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


def _ids_of(tokenizer: Any, documents: list[list[str]]) -> Iterator[list[list[int]]]:
    texts = [text for document in documents for text in document]
    options = dict.fromkeys(
        ("add_special_tokens", "truncation", "return_attention_mask", "return_token_type_ids"), False
    )
    rows = iter(tokenizer(texts, **options)["input_ids"])
    for document in documents:
        yield [ids for ids in islice(rows, len(document)) if ids]


def stream_pieces(tokenizer: Any, documents: Iterable[Iterable[str]], end: int, size: int) -> Iterator[list[int]]:
    """The ids of all documents one after the other, each followed by `end`, in pieces of `size`; what is left comes
    last. A document without ids has no end."""
    left: list[int] = []
    for document in document_ids(tokenizer, documents):
        ids = left + [token for text in document for token in text] + ([end] if document else [])
        whole = len(ids) - len(ids) % size
        for start in range(0, whole, size):
            yield ids[start : start + size]
        left = ids[whole:]
    if left:
        yield left


def check_room(max_length: int, special: int, least: int = 1) -> int:
    """How many tokens of texts fit into `max_length` beside the special ones.

    Raises ValueError if they are fewer than `least`.
    """
    if not isinstance(max_length, int) or isinstance(max_length, bool) or max_length < special + least:
        raise ValueError(f"max_length is {max_length!r}, expected at least {special + least}: {special} special tokens")
    return max_length - special


class SpecialTokens:
    """What a tokenizer puts around the ids of one text, or of two (`texts`)."""

    def __init__(self, tokenizer: Any, texts: int = 1):
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
        """How many of them stand before the text of that number."""
        first = next(place for place, (source, _, _) in enumerate(self._slots) if source == text)
        return sum(source is None for source, _, _ in self._slots[:first])

    def around(self, *texts: list[int]) -> dict[str, list[int]]:
        """An example of the ids of the texts: input_ids, and token_type_ids where the model takes them."""
        ids: list[int] = []
        types: list[int] = []
        for source, token, kind in self._slots:
            part = [token] if source is None else texts[source]
            ids += part
            types += [kind] * len(part)
        return {"input_ids": ids} | ({"token_type_ids": types} if self._has_types else {})
