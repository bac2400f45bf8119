"""The members with rotary positions, as data."""

from bertcore.presets.absolute import MLM
from bertcore.presets.preset import Preset, sizes

_MODERNBERT = Preset(
    name="modernbert-base",
    hub_id="answerdotai/ModernBERT-base",
    config={
        "model_type": "modernbert",
        "vocab_size": 50368,
        **sizes(22, 768, 12, 1152),
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "local_attention": 128,
        "norm_eps": 1e-5,
        "initializer_range": 0.02,
        "pad_token_id": 50283,
        "bos_token_id": 50281,
        "eos_token_id": 50282,
        "cls_token_id": 50281,
        "sep_token_id": 50282,
        "classifier_pooling": "mean",
    },
    year=2024,
    paper="arXiv:2412.13663",
    objective="MLM",
    pretraining_heads=MLM,
    tokenizer="byte-level BPE",
    own="norms first, rotary positions, gated feed-forwards, two layers of three local; 8,192 tokens",
)
_ETTIN = {"year": 2025, "paper": "arXiv:2507.11412", "own": "ModernBERT's shape from small to large, open data"}
_MMBERT = _MODERNBERT.but(
    "mmbert-base",
    "jhu-clsp/mmBERT-base",
    {
        "vocab_size": 256000,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "cls_token_id": 1,
        "sep_token_id": 1,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 160000.0} for kind in ("full_attention", "sliding_attention")
        },
    },
    year=2025,
    paper="arXiv:2509.06888",
    own="ModernBERT's shape, over 1,800 languages, one theta",
)

ROTARY = (
    _MODERNBERT,
    _MODERNBERT.but("modernbert-large", "answerdotai/ModernBERT-large", sizes(28, 1024, 16, 2624)),
    _MODERNBERT.but("ettin-17m", "jhu-clsp/ettin-encoder-17m", sizes(7, 256, 4, 384), **_ETTIN),
    _MODERNBERT.but("ettin-32m", "jhu-clsp/ettin-encoder-32m", sizes(10, 384, 6, 576), **_ETTIN),
    _MODERNBERT.but("ettin-68m", "jhu-clsp/ettin-encoder-68m", sizes(19, 512, 8, 768), **_ETTIN),
    _MODERNBERT.but("ettin-1b", "jhu-clsp/ettin-encoder-1b", sizes(28, 1792, 28, 3840), **_ETTIN),
    _MMBERT.but("mmbert-small", "jhu-clsp/mmBERT-small", sizes(22, 384, 6, 1152)),
    _MMBERT,
)
