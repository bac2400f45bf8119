"""Filling up rows that are already token ids: what a training loop does with texts that were tokenized before."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .batch import as_array
from .ids import as_ids
from .options import Padding

PADDED = ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask")


def as_columns(encoded: Any) -> tuple[dict[str, list], bool]:
    """A list of rows by name, or one row, or columns, as columns of Python lists; and whether it was one row.

    Raises TypeError for anything else, ValueError for rows of other names or columns of another count than the first.
    """
    if isinstance(encoded, list | tuple):
        if not all(isinstance(row, Mapping) for row in encoded):
            raise TypeError("encoded_inputs is a list of other things than rows, expected what a tokenizer returns")
        names = list(encoded[0]) if encoded else ["input_ids"]
        for number, row in enumerate(encoded):
            if set(row) != set(names):
                raise ValueError(f"encoded_inputs[{number}] has {', '.join(row)}, expected {', '.join(names)}")
        encoded = {name: [row[name] for row in encoded] for name in names}
    if not isinstance(encoded, Mapping) or "input_ids" not in encoded:
        raise TypeError("encoded_inputs has no input_ids, expected what a tokenizer returns, or a list of it")
    ids = encoded["input_ids"]
    single = len(ids) > 0 and not hasattr(ids[0], "__len__")
    columns = {name: [values] if single else list(values) for name, values in encoded.items()}
    for name, values in columns.items():
        if len(values) != len(columns["input_ids"]):
            raise ValueError(f"{name} has {len(values)} rows, expected {len(columns['input_ids'])}, as input_ids has")
        if name in PADDED:
            columns[name] = [as_ids(f"{name}[{row}]", value) for row, value in enumerate(values)]
    return columns, single


def fill_up(columns: dict[str, list], fill: Padding, values: Mapping[str, int]) -> dict[str, list]:
    """The columns with those of `PADDED` filled up, each with its value; others stay as they are."""
    if fill.strategy is None:
        return columns
    length = fill.target([len(row) for row in columns["input_ids"]])

    def filled(row: list[int], value: int) -> list[int]:
        more = [value] * (length - len(row))
        return row + more if fill.side == "right" else more + row

    return {
        name: [filled(row, values[name]) for row in rows] if name in PADDED else rows for name, rows in columns.items()
    }


def as_arrays(columns: dict[str, list]) -> dict[str, np.ndarray]:
    """The columns as arrays; ValueError naming one whose rows differ in length."""
    arrays = {}
    for name, rows in columns.items():
        try:
            arrays[name] = as_array(name, rows) if name in PADDED else np.array(rows)
        except ValueError as error:
            raise ValueError(f"{name} makes no array: {error}") from error
    return arrays
