"""Attention with relative positions on the CPU. So far the definition itself stands in for the kernels."""

from . import reference


def relative_attention(
    query, key, value, position_key, position_query, query_for_position, distance_rows,
    segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask,
    scale, return_probs, return_components, compute_dtype,
):  # fmt: skip
    """(output, lse, probabilities or None, components or None)."""
    return reference.relative_attention(
        query, key, value, position_key, position_query, query_for_position, distance_rows,
        segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask,
        scale, return_probs, return_components, compute_dtype,
    )  # fmt: skip


def relative_attention_backward(
    grad_output, query, key, value, output, lse, position_key, position_query, query_for_position, distance_rows,
    segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask, scale,
):  # fmt: skip
    """The gradients of query, key, value, position_key, position_query, query_for_position and segment_scores."""
    return reference.relative_attention_backward(
        grad_output, query, key, value, output, lse, position_key, position_query, query_for_position, distance_rows,
        segment_ids, segment_ids_k, segment_scores, cu_seqlens, cu_seqlens_k, attn_mask, scale,
    )  # fmt: skip
