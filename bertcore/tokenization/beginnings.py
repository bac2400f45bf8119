"""The first tokens of texts of any length, in memory that does not grow with them.

The library tokenizes a whole text before it cuts it, in about 150 bytes for each of its characters.
"""

from collections.abc import Iterator

from .engine import Engine
from .options import Truncation

PIECE = 1 << 15  # characters


def beginnings(engine: Engine, texts: list[str], cut: Truncation) -> list[tuple[list[int], bool]]:
    """The token ids of each text, cut from the right and with special tokens, and whether it was cut.

    A text of many pieces is tokenized piece by piece until it has the tokens that are wanted. Pieces end before a
    space: the tokens are those of the whole text, but where PIECE characters in a row hold no space at all.
    """
    short = [number for number, text in enumerate(texts) if len(text) <= 2 * PIECE or cut.side == "left"]
    found = dict(zip(short, engine.encode([(texts[number],) for number in short], cut, True), strict=True))
    for number in range(len(texts)):
        if number not in found:
            found[number] = _beginning(engine, texts[number], cut)
    rows = [(found[number].ids, found[number]) for number in range(len(texts))]
    return [(ids, len(ids) == cut.max_length and bool(encoding.overflowing)) for ids, encoding in rows]


def _beginning(engine: Engine, text: str, cut: Truncation):
    parts, tokens = [], 0
    for piece in _pieces(text):
        (part,) = engine.encode([(piece,)], None, False)
        parts.append(part)
        tokens += len(part)
        if tokens > cut.max_length:
            break
    return engine.post_process([engine.merged(parts)], cut, True)


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        stop = start + PIECE
        if stop < len(text):  # before the spaces between two words: what else counts as one, tokenizers disagree on
            before = text[start : max(start, text.rfind(" ", start, stop))].rstrip()
            stop = start + (len(before) or PIECE)
        yield text[start:stop]
        start = stop
