"""What a tokenizer's call returns."""

import numpy as np


class BatchEncoding(dict):
    """Token ids and what belongs to them, by name: a dict of lists, or of NumPy arrays; `batch.input_ids` works too.

    One text gives flat lists, a list of texts lists of lists. `encodings` has one entry of the tokenizers library for
    each row; `tokens`, `word_ids` and `sequence_ids` read it.
    """

    def __init__(self, values, encodings):
        super().__init__(values)
        self.encodings = encodings

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self)}") from None

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens of one row, special ones and padding included."""
        return self.encodings[batch_index].tokens

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token of one row, which word of its text it comes from; None for special tokens."""
        return self.encodings[batch_index].word_ids

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token of one row, whether it is from text (0) or text_pair (1); None for special tokens."""
        return self.encodings[batch_index].sequence_ids


def as_array(name: str, rows: list) -> np.ndarray:
    """Rows of equal length as an int64 array; ValueError when their lengths differ."""
    if name in ("overflow_to_sample_mapping", "length"):
        return np.array(rows, np.int64)
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise ValueError(
            f"{name} has rows of {min(lengths)} to {max(lengths)} tokens, which make no array; pass padding=True"
        )
    tail = (2,) if name == "offset_mapping" else ()
    return np.array(rows, np.int64).reshape(len(rows), *lengths or (0,), *tail)
