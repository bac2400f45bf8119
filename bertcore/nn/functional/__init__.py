"""The operations that model code calls: the kernels, and small array expressions, each with its gradient rule.

All work on packed tokens: activations are (tokens, features), with cu_seqlens where sequences matter. dense.py has
linear maps, normalisation and activations; attention.py attention; rows.py operations that take, slice, join and add
rows and columns; losses.py the losses.
"""

from bertcore.nn.functional.attention import attention, rotary, self_attention, split_heads
from bertcore.nn.functional.dense import (
    activation,
    affine,
    dropout,
    dropout_layer_norm,
    gated_activation,
    grouped_linear,
    layer_norm,
    linear,
    lstm,
    rms_norm,
)
from bertcore.nn.functional.losses import (
    binary_cross_entropy,
    cross_entropy,
    decoded_cross_entropy,
    log_softmax,
    mean_squared_error,
    soft_cross_entropy,
)
from bertcore.nn.functional.rows import (
    add,
    average_sequences,
    concatenate,
    reshape,
    scale,
    sequence_spans,
    shift,
    slice_columns,
    slice_rows,
    split_columns,
    take_neighbours,
    take_rows,
    transpose,
    unit_rows,
    widened,
)

__all__ = [
    "activation", "add", "affine", "attention", "average_sequences", "binary_cross_entropy", "concatenate",
    "cross_entropy", "decoded_cross_entropy", "dropout", "dropout_layer_norm", "gated_activation", "grouped_linear",
    "layer_norm", "linear", "log_softmax", "lstm", "mean_squared_error", "reshape", "rms_norm", "rotary", "scale",
    "self_attention", "sequence_spans", "shift", "slice_columns", "slice_rows", "soft_cross_entropy", "split_columns",
    "split_heads", "take_neighbours", "take_rows", "transpose", "unit_rows", "widened",
]  # fmt: skip
