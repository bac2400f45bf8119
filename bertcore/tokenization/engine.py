"""The tokenizers library's object, made safe for threads and for fork.

Truncation is a setting of that object, so that two calls with different ones would have to take turns. Instead, each
truncation gets a copy of the object, made once; the copies share the vocabulary.

The library's thread pool does not survive a fork. From 0.22.2 on, the library goes without threads in the child by
itself (earlier it also printed a warning), unless TOKENIZERS_PARALLELISM says true: then the child waits for ever for
threads that are not there (measured with 0.23.3). So the variable is set to false in a child whose parent has used the
pool.
"""

import os
from contextlib import contextmanager

from .options import Truncation

# Fewer texts than this are encoded one by one: no thread pool is started for a single sentence.
PARALLEL_TEXTS = 16
# Copies kept; each is small, but a caller may come with ever new lengths.
MOST_COPIES = 32

_pool_used = False


class Engine:
    """Encodes texts, or pairs of texts, with a truncation; any number of threads may call it.

    plain: the `tokenizers.Tokenizer`; it must not be changed afterwards.
    """

    def __init__(self, plain):
        plain.no_truncation()
        plain.no_padding()
        self.plain = plain
        self._copies: dict[Truncation, object] = {}

    def __getstate__(self):
        return {"plain": self.plain, "_copies": {}}

    def encode(
        self, inputs: list[tuple], truncation: Truncation | None, add_special_tokens: bool, split: bool = False
    ) -> list:
        """The library's encoding of each input: a tuple of one text or two; when `split`, texts are lists of words."""
        tokenizer = self.plain if truncation is None else self._truncating(truncation)
        options = {"is_pretokenized": split, "add_special_tokens": add_special_tokens}
        with library_errors():
            if len(inputs) < PARALLEL_TEXTS:
                return [tokenizer.encode(*texts, **options) for texts in inputs]
            global _pool_used
            _pool_used = True
            return tokenizer.encode_batch([texts if len(texts) > 1 else texts[0] for texts in inputs], **options)

    def merged(self, encodings: list):
        """Encodings of one text's parts as one."""
        return type(encodings[0]).merge(encodings, growing_offsets=True)

    def post_process(self, encodings: list, truncation: Truncation | None, add_special_tokens: bool):
        """One encoding or two, cut and with the special tokens around them."""
        tokenizer = self.plain if truncation is None else self._truncating(truncation)
        try:
            with library_errors():
                return tokenizer.post_process(*encodings, add_special_tokens=add_special_tokens)
        except Exception as error:  # the library raises Exception itself where a text is too short to be cut
            raise ValueError(f"a text cannot be cut as truncation asks: {error}") from error

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """The text of token ids that are in the vocabulary."""
        with library_errors():
            return self.plain.decode(ids, skip_special_tokens=skip_special_tokens)

    def _truncating(self, truncation: Truncation):
        found = self._copies.get(truncation)
        if found is None:
            found = _copy(self.plain)
            found.enable_truncation(
                truncation.max_length, stride=truncation.stride, strategy=truncation.strategy, direction=truncation.side
            )
            if len(self._copies) >= MOST_COPIES:
                self._copies.clear()
            self._copies[truncation] = found  # a thread that was as fast puts an equal one
        return found


@contextmanager
def library_errors():
    """A block in which what the library raises without a kind of its own is a RuntimeError.

    A panic of its Rust code has a class that passes every `except Exception`; other failures are of the class Exception
    itself. A tokenizer.json that contradicts itself, or lacks the unknown token that it names, can bring both about.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"the tokenizers library failed, as it does on a broken tokenizer: {error}") from error


def _copy(tokenizer):
    """The same tokenizer over the same vocabulary in memory (deepcopy would write and read it as JSON)."""
    copy = type(tokenizer)(tokenizer.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(tokenizer, part) is not None:
            setattr(copy, part, getattr(tokenizer, part))
    # In the order of their ids, added tokens get the ids they have.
    copy.add_tokens([token for _, token in sorted(tokenizer.get_added_tokens_decoder().items())])
    return copy


def _forget_pool() -> None:
    if _pool_used:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forget_pool)
