"""Calls of attention's implementations and of its contract with plain arguments, for the tests of it."""

from dataclasses import fields

import numpy as np

from bertcore import kernels
from bertcore.kernels.attention.arguments import Scoring, check_window

OF_RELATIVE = [field.name for field in fields(kernels.RelativePositions)]


def scoring(cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, scale):
    return Scoring(cu_seqlens, cu_seqlens_k, attn_mask, bias, is_causal, check_window(None), None, scale)


def forward(module, query, key, value, *options):
    """(output, lse, probabilities); options: offsets, masks, is_causal, scale, return_probs, compute_dtype."""
    *of_scores, return_probs, compute_dtype = options
    return module.attention(query, key, value, scoring(*of_scores), return_probs, False, compute_dtype)[:3]


def backward(module, grad_output, query, key, value, output, lse, *options):
    """The gradients of query, key, value and bias."""
    return module.attention_backward(grad_output, query, key, value, output, lse, scoring(*options))[:4]


def relative_attention(*content, **arguments):
    """`kernels.attention` with the fields of its `RelativePositions` among the arguments; one sequence by default."""
    return kernels.attention(**_folded(dict(zip(("query", "key", "value"), content, strict=False)) | arguments))


def relative_attention_backward(grad_output, **arguments):
    """The gradients by name."""
    grads = kernels.attention_backward(grad_output, **_folded(arguments))
    terms = {name: getattr(grads.relative, name) for name in OF_RELATIVE if "ids" not in name and "rows" not in name}
    return {"query": grads.query, "key": grads.key, "value": grads.value, **terms}


def _folded(arguments):
    terms = {name: arguments.pop(name) for name in OF_RELATIVE if name in arguments}
    if "cu_seqlens" not in arguments:
        arguments["cu_seqlens"] = np.array([0, len(arguments["query"])])
        arguments["cu_seqlens_k"] = np.array([0, len(arguments["key"])])
    return arguments | {"relative": kernels.RelativePositions(**terms)}


def relative_forward(
    module, query, key, value, position_key, position_query, query_for_position, distance_rows,
    segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask, scale,
):  # fmt: skip
    """(output, lse, probabilities) of an implementation, of packed arrays (tokens, heads, head_dim)."""
    query, key, value, query_for_position, segment_scores = (
        None if array is None else array.transpose(1, 0, 2)[None]
        for array in (query, key, value, query_for_position, segment_scores)
    )
    segment_ids, segment_ids_k = (None if ids is None else ids[None] for ids in (segment_ids, segment_ids_k))
    relative = kernels.RelativePositions(
        distance_rows, position_key, position_query, query_for_position, None, segment_ids, segment_ids_k,
        segment_scores,
    )  # fmt: skip
    of_scores = scoring(cu_seqlens, cu_seqlens_k, attn_mask, None, False, scale)._replace(relative=relative)
    output, lse, probs, _ = module.attention(query, key, value, of_scores, True, False, None)
    return output[0].transpose(1, 0, 2), lse[0], probs
