"""The tokenizers library's object, made safe for threads and for fork.

Truncation is a setting of that object, so that two calls with different ones would have to take turns. Instead, each
truncation gets a copy of the object, made once; the copies share the vocabulary.

The library's thread pool does not survive a fork. From 0.22.2 on, the library works without threads in the child
(earlier it also printed a warning), unless TOKENIZERS_PARALLELISM says true: then the child waits forever for missing
threads. So the variable is set to false in a child whose parent has used the pool.
"""

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bertcore.arguments import printable

from .inputs import Truncation

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import Encoding

PARALLEL_TEXTS = 16  # fewer texts are encoded one by one: no thread pool is started for a single sentence
# Characters or token ids beyond which the pool is used nevertheless: calls without it keep the interpreter, and with it
# all other Python threads, waiting (0.3 s for 250,000 characters).
PARALLEL_SIZE = 1 << 12
MOST_COPIES = 32  # each is small, but callers may use ever new lengths
PIECE = 1 << 15  # characters of a long text that are tokenized at a time

_pool_used = False


class Engine:
    """Encoder of texts, or pairs of texts, by `plain`, which must not change; threads may share it."""

    def __init__(self, plain: "tokenizers.Tokenizer"):
        plain.no_truncation()
        plain.no_padding()
        self.plain = plain
        self._copies: dict[Truncation, tokenizers.Tokenizer] = {}

    def __getstate__(self):
        return {"plain": self.plain, "_copies": {}}

    def encode(
        self,
        inputs: list[tuple],
        truncation: Truncation | None,
        add_special_tokens: bool,
        split: bool = False,
        offsets: bool = True,
    ) -> list["Encoding"]:
        """Encode each input, a tuple of one text or two; with `split`, texts are lists of words.

        Without `offsets`, the encodings of many texts have none, and take 0.85 of the time.
        """
        tokenizer = self._truncating(truncation)
        options = {"is_pretokenized": split, "add_special_tokens": add_special_tokens}
        with library_errors(tokenizer):
            size = sum(len(text) for texts in inputs for text in texts)
            if len(inputs) < PARALLEL_TEXTS and size <= PARALLEL_SIZE:
                return [tokenizer.encode(*texts, **options) for texts in inputs]
            _note_pool()
            encode_batch = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
            return encode_batch([texts if len(texts) > 1 else texts[0] for texts in inputs], **options)

    def merged(self, encodings: list["Encoding"]) -> "Encoding":
        """Join the encodings of one text's parts."""
        return type(encodings[0]).merge(encodings, growing_offsets=True)

    def post_process(self, encodings: list["Encoding"], truncation: Truncation | None, special: bool) -> "Encoding":
        """Cut one encoding or two, and put the special tokens around them."""
        try:
            with library_errors():
                return self._truncating(truncation).post_process(*encodings, add_special_tokens=special)
        except Exception as error:  # the library raises Exception itself for a text that is too short to be cut
            raise ValueError(f"a text cannot be cut as truncation asks: {error}") from error

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """Return the text of token ids that are in the vocabulary."""
        with library_errors(self.plain):
            if len(ids) <= PARALLEL_SIZE:
                return self.plain.decode(ids, skip_special_tokens=skip_special_tokens)
            _note_pool()
            return self.plain.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

    def beginnings(self, texts: list[str], cut: Truncation) -> list[tuple[list[int], bool]]:
        """Return the first token ids of each text with special tokens, and whether the text was cut.

        The library tokenizes a whole text before it cuts it, in about 150 bytes for each character. So a text of many
        pieces is tokenized piece by piece until it has enough tokens. Pieces end before a space: the tokens are those
        of the whole text, unless PIECE characters in a row hold no space at all.
        """
        is_long = [len(text) > 2 * PIECE and cut.side != "left" for text in texts]
        short_texts = [(text,) for text, long in zip(texts, is_long, strict=True) if not long]
        short = iter(self.encode(short_texts, cut, True, offsets=False))
        found = []
        for text, long in zip(texts, is_long, strict=True):
            encoding = self._beginning(text, cut) if long else next(short)
            ids = encoding.ids
            found.append((ids, len(ids) == cut.max_length and bool(encoding.overflowing)))
        return found

    def _beginning(self, text: str, cut: Truncation) -> "Encoding":
        parts, tokens = [], 0
        for piece in _pieces(text):
            (part,) = self.encode([(piece,)], None, False)
            parts.append(part)
            tokens += len(part)
            if tokens > cut.max_length:
                break
        return self.post_process([self.merged(parts)], cut, True)

    def _truncating(self, truncation: Truncation | None) -> "tokenizers.Tokenizer":
        if truncation is None:
            return self.plain
        found = self._copies.get(truncation)
        if found is None:
            found = copied(self.plain)
            options = {"strategy": truncation.strategy, "direction": truncation.side}
            found.enable_truncation(truncation.max_length, stride=truncation.stride, **options)
            if len(self._copies) >= MOST_COPIES:
                self._copies.clear()
            self._copies[truncation] = found  # another thread may store an equal copy at the same time
        return found


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        stop = start + PIECE
        if stop < len(text):  # before the spaces between two words: tokenizers disagree on other white space
            before = text[start : max(start, text.rfind(" ", start, stop))].rstrip()
            stop = start + (len(before) or PIECE)
        yield text[start:stop]
        start = stop


class library_errors:  # a function of contextlib costs three times as much, once for each text
    """Turn the library's unspecific errors in the block into RuntimeError, or ValueError for a text beyond its limits.

    A panic of its Rust code has a class that passes every `except Exception`; other failures are of the class Exception
    itself. A tokenizer.json that contradicts itself, or lacks the unknown token that it names, can cause both.
    """

    def __init__(self, tokenizer: "tokenizers.Tokenizer | None" = None):
        self._tokenizer = tokenizer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if kind is Exception or (kind is not None and kind.__name__ == "PanicException"):
            said = printable(str(error))
            if kind is not Exception and "limit" in said:
                problem = f"takes too many steps of a regular expression of the tokenizer: {said}"
                raise ValueError(f"a text {problem}{_expressions(self._tokenizer)}") from error
            raise RuntimeError(f"the tokenizers library failed, as it does on a broken tokenizer: {said}") from error


def _expressions(tokenizer: "tokenizers.Tokenizer | None") -> str:
    """Return the tokenizer's regular expressions in JSON, as the end of an error message."""
    parts = [getattr(tokenizer, name, None) for name in ("normalizer", "pre_tokenizer", "decoder")]
    states = "".join(part.__getstate__().decode() for part in parts if part is not None)
    found = re.findall(r'"Regex":("(?:[^"\\]|\\.)*")', states)
    return f"; its regular expressions are {', '.join(found):.200}" if found else ""


def copied(tokenizer: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """Copy a tokenizer over the same vocabulary in memory (deepcopy would write and read it as JSON)."""
    copy = type(tokenizer)(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(tokenizer, part) is not None:
            setattr(copy, part, getattr(tokenizer, part))
    # In the order of their ids, added tokens keep their ids.
    copy.add_tokens([token for _, token in sorted(tokenizer.get_added_tokens_decoder().items())])
    return copy


def _note_pool() -> None:
    global _pool_used
    _pool_used = True


def _forget_pool() -> None:
    if _pool_used:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


if hasattr(os, "register_at_fork"):  # missing on Windows
    os.register_at_fork(after_in_child=_forget_pool)
