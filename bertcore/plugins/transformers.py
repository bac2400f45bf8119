"""Attention for models of transformers: `register_attention` (needs transformers and PyTorch).

    from bertcore.plugins.transformers import register_attention

    register_attention()
    model = transformers.AutoModel.from_pretrained("bert-base-uncased", attn_implementation="bertcore")

It has gradients. Tensors on a GPU use the CUDA kernels (through CuPy), which has not been run on a GPU yet.
Attention weights are not returned: output_attentions needs "eager".
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from bertcore.kernels.torch import attention

MOST_SEED = 2**63 - 1


def register_attention(name: str = "bertcore") -> None:
    """Register the kernels' attention as `attn_implementation=name`, for all models with selectable attention."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)  # boolean, or None without masked tokens


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention with the signature of transformers.

    Args:
        module: its `is_causal` applies if neither the argument nor a mask is given.
        query, key, value: (batch, heads, length, head_dim), float32 or float64; keys and values may have fewer heads
            than queries.
        attention_mask: boolean, or added to the scores, or None.
        scaling: factor of the scores; 1 / sqrt(head_dim) by default.
        dropout: probability; its seed is drawn from PyTorch's generator.
        position_bias: added to the scores; has a gradient.

    Returns:
        (batch, length, heads, head_dim), and None in place of the weights.

    Raises:
        ValueError: if softcap is given, which the kernels do not support.
    """
    if options.get("softcap") is not None:
        raise ValueError(f"softcap is {options['softcap']}, expected None: this attention does not support it")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    is_causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    terms = {"attn_mask": attention_mask, "bias": position_bias, "is_causal": is_causal, "scale": scaling}
    seed = int(torch.randint(MOST_SEED, ())) if dropout else 0
    output = attention(query, key, value, **terms, dropout_p=dropout, dropout_seed=seed)
    return output.transpose(1, 2).contiguous(), None
