"""The members with relative positions, and those that read from left to right, as data."""

from dataclasses import replace

from bertcore.presets.absolute import BERT, MLM, RTD
from bertcore.presets.preset import LARGE, Preset, sizes

CAUSAL_LM = ("causal_lm",)

# --- relative positions ----------------------------------------------------------------------------------

_DEBERTA = BERT.but(
    "deberta-base",
    "microsoft/deberta-base",
    {
        "model_type": "deberta",
        "vocab_size": 50265,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": True,
        "max_relative_positions": -1,
        "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"],
        "pooler_dropout": 0,
        "pooler_hidden_act": "gelu",
    },
    year=2020,
    paper="arXiv:2006.03654",
    objective="MLM",
    pretraining_heads=MLM,
    tokenizer="byte-level BPE",
    own="disentangled attention: content and relative position apart",
)
_DEBERTA_V3 = _DEBERTA.but(
    "deberta-v3-base",
    "microsoft/deberta-v3-base",
    {
        "model_type": "deberta-v2",
        "vocab_size": 128100,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    },
    year=2021,
    paper="arXiv:2111.09543",
    objective=RTD,
    pretraining_heads=("replaced_tokens",),
    tokenizer="SentencePiece unigram",
    own="relative positions in log buckets, projections shared with content",
)
_XLNET = Preset(
    name="xlnet-base-cased",
    hub_id="xlnet/xlnet-base-cased",
    config={
        "model_type": "xlnet",
        "vocab_size": 32000,
        "n_layer": 12,
        "d_model": 768,
        "n_head": 12,
        "d_head": 64,
        "d_inner": 3072,
        "ff_activation": "gelu",
        "attn_type": "bi",
        "untie_r": True,
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "dropout": 0.1,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "summary_last_dropout": 0.1,
    },
    year=2019,
    paper="arXiv:1906.08237",
    objective="permutation LM",
    pretraining_heads=CAUSAL_LM,
    tokenizer="SentencePiece unigram",
    own="two-stream attention, relative positions, memory of earlier segments",
)
_MPNET = replace(
    BERT,
    name="mpnet-base",
    hub_id="microsoft/mpnet-base",
    config={key: value for key, value in BERT.config.items() if key != "type_vocab_size"}
    | {
        "model_type": "mpnet",
        "vocab_size": 30527,
        "max_position_embeddings": 514,
        "relative_attention_num_buckets": 32,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    year=2020,
    paper="arXiv:2004.09297",
    objective="masked and permuted LM",
    pretraining_heads=MLM,
    own="a bias for each head and bucket of relative positions; no segments",
)
_RELATIVE = (
    _DEBERTA,
    _DEBERTA.but("deberta-large", "microsoft/deberta-large", LARGE),
    _DEBERTA_V3.but("deberta-v3-small", "microsoft/deberta-v3-small", sizes(6, 768, 12)),
    _DEBERTA_V3,
    _DEBERTA_V3.but("deberta-v3-large", "microsoft/deberta-v3-large", LARGE),
    _DEBERTA_V3.but(
        "deberta-v2-xlarge", "microsoft/deberta-v2-xlarge",
        {**sizes(24, 1536, 24), "attention_head_size": 64, "conv_kernel_size": 3, "conv_act": "gelu"},
        year=2020, paper="arXiv:2006.03654", objective="MLM", pretraining_heads=MLM,
        own="as deberta-v3, and a convolution beside the first layer",
    ),
    _XLNET,
    _XLNET.but(
        "xlnet-large-cased", "xlnet/xlnet-large-cased",
        {"n_layer": 24, "d_model": 1024, "n_head": 16, "d_inner": 4096},
    ),
    _MPNET,
)  # fmt: skip

# --- the other branch: left to right -----------------------------------------------------------------------

_GPT2 = Preset(
    name="gpt2",
    hub_id="openai-community/gpt2",
    config={
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    year=2019,
    paper="Language Models are Unsupervised Multitask Learners",
    objective="causal LM",
    pretraining_heads=CAUSAL_LM,
    tokenizer="byte-level BPE",
    own="a decoder: each token sees those before it; layer norms before the blocks",
)
_TRANSFORMER_XL = Preset(
    name="transfo-xl-wt103",
    hub_id="transfo-xl/transfo-xl-wt103",
    config={
        "model_type": "transfo-xl",
        "vocab_size": 267735,
        "cutoffs": [20000, 40000, 200000],
        "n_layer": 18,
        "d_model": 1024,
        "d_embed": 1024,
        "n_head": 16,
        "d_head": 64,
        "d_inner": 4096,
        "div_val": 4,
        "pre_lnorm": False,
        "mem_len": 1600,
        "clamp_len": 1000,
        "same_length": True,
        "proj_share_all_but_first": True,
        "attn_type": 0,
        "adaptive": True,
        "untie_r": True,
        "tie_word_embeddings": True,
        "dropout": 0.1,
        "dropatt": 0.0,
        "init_std": 0.02,
        "proj_init_std": 0.01,
        "layer_norm_epsilon": 1e-5,
        "eos_token_id": 0,
    },
    year=2019,
    paper="arXiv:1901.02860",
    objective="causal LM",
    pretraining_heads=CAUSAL_LM,
    tokenizer="words",
    own="recurrence over segments, relative positions, adaptive softmax; XLNet's ancestor",
)

RELATIVE_OR_CAUSAL = (*_RELATIVE, _GPT2, _TRANSFORMER_XL)
