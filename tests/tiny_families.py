"""Every family in small: the presets' configs, shrunk."""

from typing import Any

import numpy as np

from bertcore.models.model import Model
from bertcore.models.registry import known_families
from bertcore.presets import PRESETS, preset_config

# The keys of all families -> a small value: three heads of 16, widths that are no multiple of 64.
SMALL = {
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("hidden_size", "dim", "d_model", "n_embd", "d_embed"), 48),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "n_heads", "n_head", "num_heads"), 3),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_inner", "d_ff"), 80),
    **dict.fromkeys(("d_head", "attention_head_size", "head_dim", "d_kv"), 16),
    **dict.fromkeys(("intra_bottleneck_size", "entity_emb_size"), 24),
    "vocab_size": 97,
    "entity_vocab_size": 23,
    "cutoffs": [20, 40, 70],
    "div_val": 2,
    "mem_len": 16,
}
IDS = {"bos_token_id": 3, "eos_token_id": 3, "cls_token_id": 3, "sep_token_id": 3, "pad_token_id": 5}  # at most


def tiny_config(name: str) -> dict[str, Any]:
    """The config of a preset with few layers, narrow, and with a vocabulary of 97 words."""
    config = preset_config(name)
    is_wide = config.get("embedding_size") == config.get("hidden_size")
    small = {key: SMALL[key] for key in config if key in SMALL}
    small |= {"embedding_size": 48 if is_wide else 24} if "embedding_size" in config else {}
    small |= {key: min(config[key], most) for key, most in IDS.items() if key in config}
    return config | small


def runnable(*names: str) -> list[str]:
    """Return the presets (by default one for each family) whose family exists."""
    first = {preset.config["model_type"]: name for name, preset in reversed(PRESETS.items())}
    families = known_families()
    return [name for name in names or first.values() if PRESETS[name].config["model_type"] in families]


def drawn_anew(model: Model, seed: int = 0) -> Model:
    """`model` with every parameter drawn so that its layers tell: biases that are not 0, norms that are not 1."""
    rng = np.random.default_rng(seed)

    def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) > 1:
            return rng.normal(0.0, 0.5 if "embeddings" in name else 1.2 / np.sqrt(shape[-1]), shape)
        return rng.normal(float(name.endswith("weight")), 0.2, shape)

    shapes = model.expected_tensors()
    model.load_state_dict({name: values(name, shape).astype(np.float32) for name, shape in shapes.items()})
    return model
