"""The operations that model code calls: the kernels, and small array expressions, each with its gradient rule.

All work on packed tokens: activations are (tokens, features), with cu_seqlens where sequences matter. dense.py has
linear maps, normalisation and activations, attention.py all attention, rows.py what takes, cuts, joins and adds rows
and columns, losses.py the losses.
"""

from bertcore.nn.functional.attention import (
    attend_to_all_alike,
    attention,
    entity_aware_attention,
    rotary,
    segment_scores,
    self_attention,
    split_heads,
)
from bertcore.nn.functional.dense import activation, affine, gated_activation, layer_norm, linear, rms_norm
from bertcore.nn.functional.losses import (
    binary_cross_entropy,
    cross_entropy,
    log_softmax,
    mean_squared_error,
    soft_cross_entropy,
)
from bertcore.nn.functional.rows import (
    add,
    average_rows,
    average_sequences,
    concatenate,
    merge_rows,
    mix_rows,
    reshape,
    scale,
    sequence_spans,
    slice_columns,
    slice_rows,
    take_neighbours,
    take_rows,
    transpose,
    widened,
)

__all__ = [
    "activation",
    "add",
    "affine",
    "attend_to_all_alike",
    "attention",
    "average_rows",
    "average_sequences",
    "binary_cross_entropy",
    "concatenate",
    "cross_entropy",
    "entity_aware_attention",
    "gated_activation",
    "layer_norm",
    "linear",
    "log_softmax",
    "mean_squared_error",
    "merge_rows",
    "mix_rows",
    "reshape",
    "rms_norm",
    "rotary",
    "scale",
    "segment_scores",
    "self_attention",
    "sequence_spans",
    "slice_columns",
    "slice_rows",
    "soft_cross_entropy",
    "split_heads",
    "take_neighbours",
    "take_rows",
    "transpose",
    "widened",
]
