"""From raw texts to the ids that objectives make examples of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

AT_ONCE = 256  # texts that are tokenised together


def token_ids(tokenizer: Any, texts: Iterable[str]) -> Iterator[list[int]]:
    """The ids of each text without special tokens; texts without any are left out."""
    texts = iter(texts)
    while some := list(islice(texts, AT_ONCE)):
        yield from filter(None, tokenizer(some, add_special_tokens=False, truncation=False)["input_ids"])


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

    def around(self, *texts: list[int]) -> dict[str, list[int]]:
        """An example of the ids of the texts: input_ids, and token_type_ids where the model takes them."""
        ids: list[int] = []
        types: list[int] = []
        for source, token, kind in self._slots:
            part = [token] if source is None else texts[source]
            ids += part
            types += [kind] * len(part)
        return {"input_ids": ids} | ({"token_type_ids": types} if self._has_types else {})
