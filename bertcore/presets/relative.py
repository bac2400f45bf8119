"""Models with relative or rotary positions, with distance biases (Jina BERT v2), and left-to-right models, as data.

Configs of rotary models are spelled as transformers spells them today, which is not always as published.
"""

from dataclasses import replace

from .absolute import BERT, MLM, RTD
from .preset import BASE, LARGE, Preset, sizes

CAUSAL_LM = ("causal_lm",)

# --- relative positions ----------------------------------------------------------------------------------

_DEBERTA = BERT.vary(
    "deberta-base", "microsoft/deberta-base",
    {
        "model_type": "deberta", "vocab_size": 50265, "type_vocab_size": 0, "layer_norm_eps": 1e-7,
        "relative_attention": True, "max_relative_positions": -1, "position_biased_input": False,
        "pos_att_type": ["c2p", "p2c"], "pooler_dropout": 0, "pooler_hidden_act": "gelu",
    },
    year=2020, paper="arXiv:2006.03654", objective="MLM", pretraining_heads=MLM, tokenizer="byte-level BPE",
    own="disentangled attention: content and relative position apart", use="accurate labels and answers",
)  # fmt: skip
_DEBERTA_V3 = _DEBERTA.vary(
    "deberta-v3-base", "microsoft/deberta-v3-base",
    {
        "model_type": "deberta-v2", "vocab_size": 128100, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256,
        "norm_rel_ebd": "layer_norm", "share_att_key": True,
    },
    year=2021, paper="arXiv:2111.09543", objective=RTD, pretraining_heads=("replaced_tokens",),
    tokenizer="SentencePiece unigram", own="relative positions in log buckets, projections shared with content",
)  # fmt: skip
_XLNET = Preset(
    name="xlnet-base-cased", hub_id="xlnet/xlnet-base-cased",
    config={
        "model_type": "xlnet", "vocab_size": 32000, "n_layer": 12, "d_model": 768, "n_head": 12, "d_head": 64,
        "d_inner": 3072, "ff_activation": "gelu", "attn_type": "bi", "untie_r": True, "bi_data": False, "clamp_len": -1,
        "same_length": False, "dropout": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 5,
        "bos_token_id": 1, "eos_token_id": 2, "summary_type": "last", "summary_use_proj": True,
        "summary_activation": "tanh", "summary_last_dropout": 0.1,
    },
    year=2019, paper="arXiv:1906.08237", objective="permutation LM", pretraining_heads=CAUSAL_LM,
    tokenizer="SentencePiece unigram", own="two-stream attention, relative positions, memory of earlier segments",
    category="general", use="labels of long texts, read segment by segment",
)  # fmt: skip
_MPNET = replace(
    BERT, name="mpnet-base", hub_id="microsoft/mpnet-base",
    config={
        **{key: value for key, value in BERT.config.items() if key != "type_vocab_size"},
        "model_type": "mpnet", "vocab_size": 30527, "max_position_embeddings": 514,
        "relative_attention_num_buckets": 32, "layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0,
        "eos_token_id": 2,
    },
    year=2020, paper="arXiv:2004.09297", objective="masked and permuted LM", pretraining_heads=MLM,
    own="a bias for each head and bucket of relative positions; no segments", use="the base of embedding models",
)  # fmt: skip
_RELATIVE = (
    _DEBERTA,
    _DEBERTA.vary("deberta-large", "microsoft/deberta-large", LARGE),
    _DEBERTA_V3.vary("deberta-v3-small", "microsoft/deberta-v3-small", sizes(6, 768, 12)),
    _DEBERTA_V3,
    _DEBERTA_V3.vary("deberta-v3-large", "microsoft/deberta-v3-large", LARGE),
    _DEBERTA_V3.vary(
        "deberta-v2-xlarge", "microsoft/deberta-v2-xlarge",
        {**sizes(24, 1536, 24), "attention_head_size": 64, "conv_kernel_size": 3, "conv_act": "gelu"},
        year=2020, paper="arXiv:2006.03654", objective="MLM", pretraining_heads=MLM,
        own="as deberta-v3, and a convolution beside the first layer",
    ),
    _XLNET,
    _XLNET.vary(
        "xlnet-large-cased", "xlnet/xlnet-large-cased",
        {"n_layer": 24, "d_model": 1024, "n_head": 16, "d_inner": 4096},
    ),
    _MPNET,
)  # fmt: skip

# --- the other branch: left to right -----------------------------------------------------------------------

_GPT2 = Preset(
    name="gpt2", hub_id="openai-community/gpt2",
    config={
        "model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_layer": 12, "n_embd": 768, "n_head": 12,
        "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "bos_token_id": 50256, "eos_token_id": 50256,
    },
    year=2019, paper="Language Models are Unsupervised Multitask Learners", objective="causal LM",
    pretraining_heads=CAUSAL_LM, tokenizer="byte-level BPE",
    own="a decoder: each token sees those before it; layer norms before the blocks",
    category="generation", use="text that continues a beginning",
)  # fmt: skip
_TRANSFORMER_XL = Preset(
    name="transfo-xl-wt103", hub_id="transfo-xl/transfo-xl-wt103",
    config={
        "model_type": "transfo-xl", "vocab_size": 267735, "cutoffs": [20000, 40000, 200000], "n_layer": 18,
        "d_model": 1024, "d_embed": 1024, "n_head": 16, "d_head": 64, "d_inner": 4096, "div_val": 4, "pre_lnorm": False,
        "mem_len": 1600, "clamp_len": 1000, "same_length": True, "proj_share_all_but_first": True, "attn_type": 0,
        "adaptive": True, "untie_r": True, "tie_word_embeddings": True, "dropout": 0.1, "dropatt": 0.0,
        "init_std": 0.02, "proj_init_std": 0.01, "layer_norm_epsilon": 1e-5, "eos_token_id": 0,
    },
    year=2019, paper="arXiv:1901.02860", objective="causal LM", pretraining_heads=CAUSAL_LM, tokenizer="words",
    own="recurrence over segments, relative positions, adaptive softmax; XLNet's ancestor",
    category="generation", use="the probability of very long texts",
)  # fmt: skip

# The encoder of T5, whose shape sentence-t5-base and gtr-t5-base have.
_SENTENCE_T5 = Preset(
    name="sentence-t5-base", hub_id="sentence-transformers/sentence-t5-base",
    config={
        "model_type": "t5", "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12,
        "num_heads": 12, "feed_forward_proj": "relu", "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6, "dropout_rate": 0.1, "pad_token_id": 0,
        "eos_token_id": 1,
    },
    year=2021, paper="arXiv:2108.08877", objective="denoising of spans, then contrastive",
    pretraining_heads=("denoising",), tokenizer="SentencePiece unigram",
    own="T5's encoder: biases of relative position shared by all layers, scores without a scale",
    category="embeddings", use="matching and labels of sentences",
)  # fmt: skip
_BERT_HASH = BERT.vary(
    "bert-hash-nano", "NeuML/bert-hash-nano",
    sizes(2, 128, 2) | {"model_type": "bert_hash", "projections": 16},
    year=2025, paper="NeuML/bert-hash-nano", objective="MLM", pretraining_heads=MLM,
    own="embeddings of words in 16 dimensions, mapped to 128: under a million parameters",
    category="small", use="the smallest devices",
)  # fmt: skip

RELATIVE_OR_CAUSAL = (*_RELATIVE, _SENTENCE_T5, _BERT_HASH, _GPT2, _TRANSFORMER_XL)

# --- rotary positions -----------------------------------------------------------------------------------


def _rope(theta: float, factor: float | None = None) -> dict[str, object]:
    """Return rope_parameters; a factor means NTK's static scaling, which transformers calls "linear"."""
    if factor is None:
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / 64)}


# --- ModernBERT's shape: config.json of ModernBERT-base and -large -------------------------------------------

_MODERNBERT = Preset(
    name="modernbert-base", hub_id="answerdotai/ModernBERT-base",
    config={
        "model_type": "modernbert", "vocab_size": 50368, **sizes(22, 768, 12, 1152), "hidden_activation": "gelu",
        "max_position_embeddings": 8192, "local_attention": 128, "norm_eps": 1e-5, "initializer_range": 0.02,
        "pad_token_id": 50283, "bos_token_id": 50281, "eos_token_id": 50282, "cls_token_id": 50281,
        "sep_token_id": 50282, "classifier_pooling": "mean",
    },
    year=2024, paper="arXiv:2412.13663", objective="MLM", pretraining_heads=MLM, tokenizer="byte-level BPE",
    own="norms first, rotary positions, gated feed-forwards, two of three layers local; 8,192 tokens",
    category="general", use="long texts and code",
)  # fmt: skip
# Ettin's config.json (its 32m's, which other models' configs quote) has one theta for all layers, and 7,999 positions.
_ONE_THETA = {"rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), _rope(160000.0))}
_ETTIN = _MODERNBERT.vary(
    "ettin-17m", "jhu-clsp/ettin-encoder-17m", sizes(7, 256, 4, 384) | _ONE_THETA | {"max_position_embeddings": 7999},
    year=2025, paper="arXiv:2507.11412", own="ModernBERT's shape from small to large, one theta, open data",
    category="small", use="long texts, at a size of choice",
)  # fmt: skip
# As its authors trained it last (github.com/JHU-CLSP/mmBERT, configs/mmBERT-base-decay.yaml), with Gemma 2's
# vocabulary. Not in that file, and not verified: cls_token_id and how classes are pooled.
_MMBERT = _MODERNBERT.vary(
    "mmbert-base", "jhu-clsp/mmBERT-base",
    {
        "vocab_size": 256000, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "cls_token_id": 1,
        "sep_token_id": 1, **_ONE_THETA,
    },
    year=2025, paper="arXiv:2509.06888", own="ModernBERT's shape, over 1,800 languages, one theta",
    category="multilingual", use="long texts in many languages", languages="1,833",
)  # fmt: skip

# --- EuroBERT: the defaults of transformers, which fit 210m, and the authors' conversion script ----------

_EUROBERT = Preset(
    name="eurobert-210m", hub_id="EuroBERT/EuroBERT-210m",
    config={
        "model_type": "eurobert", "vocab_size": 128256, **BASE, "num_key_value_heads": 12, "hidden_act": "silu",
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "initializer_range": 0.02,
        "rope_parameters": _rope(250000.0), "bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 128001,
        "mask_token_id": 128002, "tie_word_embeddings": False,
    },
    year=2025, paper="arXiv:2503.05500", objective="MLM", pretraining_heads=MLM, tokenizer="byte-level BPE",
    own="Llama's layers without causality: root-mean-square norms, grouped keys and values; 8,192 tokens",
    category="multilingual", use="long texts and code in large languages", languages="15",
)  # fmt: skip

# --- BERT's order, rotary: the defaults of transformers, and the theta and factor that published configs say ------

# Texts beyond 2,048 tokens need rotary_scaling_factor 2, which callers must pass (the model's page).
_NOMIC_BERT = Preset(
    name="nomic-embed-text-v1", hub_id="nomic-ai/nomic-embed-text-v1",
    config={
        "model_type": "nomic_bert", "vocab_size": 30528, **BASE, "hidden_act": "silu", "max_position_embeddings": 2048,
        "type_vocab_size": 2, "layer_norm_eps": 1e-12, "initializer_range": 0.02, "pad_token_id": 0,
        "rope_parameters": _rope(1000.0),
    },
    year=2024, paper="arXiv:2402.01613", objective="MLM, then contrastive", pretraining_heads=MLM,
    tokenizer="WordPiece, lower case", own="rotary positions, gated feed-forwards, no biases in linear layers",
    category="embeddings", use="search",
)  # fmt: skip
_GTE = Preset(
    name="gte-multilingual-base", hub_id="Alibaba-NLP/gte-multilingual-base",
    config={
        "model_type": "gte", "vocab_size": 250048, **BASE, "hidden_act": "gelu", "max_position_embeddings": 8192,
        "type_vocab_size": 1, "layer_norm_eps": 1e-12, "initializer_range": 0.02, "pad_token_id": 1,
        "rope_parameters": _rope(20000.0, 8.0),
    },
    year=2024, paper="arXiv:2407.19669", objective="MLM, then contrastive", pretraining_heads=MLM,
    tokenizer="SentencePiece unigram", own="rotary positions, gated feed-forwards; 8,192 tokens, 70 languages",
    category="embeddings", use="search in long texts of many languages", languages="70",
)  # fmt: skip
_GTE_ENGLISH = {
    "vocab_size": 30528, "type_vocab_size": 0, "pad_token_id": 0, "rope_parameters": _rope(500000.0, 2.0),
}  # fmt: skip
_OF_GTE_ENGLISH = {
    "tokenizer": "WordPiece, lower case", "own": "as gte-multilingual-base, for English",
    "use": "search in long texts", "languages": "English",
}  # fmt: skip
_JINA_V3 = Preset(
    name="jina-embeddings-v3", hub_id="jinaai/jina-embeddings-v3",
    config={
        "model_type": "jina_embeddings_v3", "vocab_size": 250002, **LARGE, "hidden_act": "gelu",
        "max_position_embeddings": 8194, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "initializer_range": 0.02,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "rope_parameters": _rope(20000.0),
    },
    year=2024, paper="arXiv:2409.10173", objective="MLM, then contrastive, then an adapter for each task",
    pretraining_heads=MLM, tokenizer="SentencePiece unigram",
    own="XLM-R with rotary positions, and adapters of tasks; 8,192 tokens",
    category="embeddings", use="search, matching and labels, with an adapter for each", languages="89",
)  # fmt: skip
# config.json of jina-embeddings-v2-base-en; the code that it names is not run.
_JINA_V2 = Preset(
    name="jina-embeddings-v2-base-en", hub_id="jinaai/jina-embeddings-v2-base-en",
    config={
        "model_type": "bert", "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        "vocab_size": 30528, **BASE, "hidden_act": "gelu", "feed_forward_type": "geglu",
        "position_embedding_type": "alibi", "max_position_embeddings": 8192, "type_vocab_size": 2,
        "layer_norm_eps": 1e-12, "initializer_range": 0.02, "pad_token_id": 0,
    },
    year=2023, paper="arXiv:2310.19923", objective="MLM, then contrastive", pretraining_heads=MLM,
    tokenizer="WordPiece, lower case",
    own="distance biases instead of positions, gated feed-forwards; 8,192 tokens",
    category="embeddings", use="search in long texts",
)  # fmt: skip
_EMBEDDING_GEMMA = Preset(
    name="embeddinggemma-300m", hub_id="google/embeddinggemma-300m",
    config={
        "model_type": "gemma3_text", "vocab_size": 262144, **sizes(24, 768, 3, 1152), "num_key_value_heads": 1,
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 2048,
        "query_pre_attn_scalar": 256, "sliding_window": 512, "use_bidirectional_attention": True,
        "rms_norm_eps": 1e-6, "initializer_range": 0.02, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
    },
    year=2025, paper="arXiv:2509.20354", objective="causal LM, then denoising, then contrastive",
    pretraining_heads=CAUSAL_LM, tokenizer="SentencePiece BPE",
    own="Gemma 3's layers, bidirectional: four norms each, five of six layers local; 2,048 tokens",
    category="embeddings", use="search, matching and labels", languages="100",
)  # fmt: skip
_NEOBERT = Preset(
    name="neobert", hub_id="chandar-lab/NeoBERT",
    config={
        "model_type": "neobert", "vocab_size": 30522, **sizes(28, 768, 12), "max_length": 4096, "norm_eps": 1e-5,
        "embedding_init_range": 0.02, "decoder_init_range": 0.02, "pad_token_id": 0,
    },
    year=2025, paper="arXiv:2502.19587", objective="MLM", pretraining_heads=MLM, tokenizer="WordPiece, lower case",
    own="deeper than wide: norms first, rotary positions, gated feed-forwards; 4,096 tokens",
    category="general", use="long texts",
)  # fmt: skip
_JINA_V5 = replace(
    _EUROBERT,
    name="jina-embeddings-v5-text-nano", hub_id="jinaai/jina-embeddings-v5-text-nano",
    config={
        **_EUROBERT.config, "model_type": "jina_embeddings_v5",
        "task_names": ["retrieval", "text-matching", "clustering", "classification"],
    },
    year=2026, paper="arXiv:2602.15547", objective="MLM, then distilled, then an adapter for each task",
    own="EuroBERT with an adapter for each task, pooled at the last token; 8,192 tokens",
    category="embeddings", use="search, matching and labels, with an adapter for each",
)  # fmt: skip

ROTARY = (
    _MODERNBERT,
    _MODERNBERT.vary("modernbert-large", "answerdotai/ModernBERT-large", sizes(28, 1024, 16, 2624)),
    _ETTIN,
    _ETTIN.vary("ettin-32m", "jhu-clsp/ettin-encoder-32m", sizes(10, 384, 6, 576)),
    _ETTIN.vary("ettin-68m", "jhu-clsp/ettin-encoder-68m", sizes(19, 512, 8, 768)),
    _ETTIN.vary("ettin-1b", "jhu-clsp/ettin-encoder-1b", sizes(28, 1792, 28, 3840), category="general"),
    _MMBERT.vary("mmbert-small", "jhu-clsp/mmBERT-small", sizes(22, 384, 6, 1152)),
    _MMBERT,
    _EUROBERT,
    _EUROBERT.vary("eurobert-610m", "EuroBERT/EuroBERT-610m", sizes(26, 1152, 18, 4096) | {"num_key_value_heads": 6}),
    _EUROBERT.vary("eurobert-2.1b", "EuroBERT/EuroBERT-2.1B", sizes(32, 2304, 18, 6144) | {"num_key_value_heads": 6}),
    _NOMIC_BERT,
    _NOMIC_BERT.vary("nomic-embed-text-v1.5", "nomic-ai/nomic-embed-text-v1.5", {}),
    _GTE,
    _GTE.vary("gte-base-en-v1.5", "Alibaba-NLP/gte-base-en-v1.5", _GTE_ENGLISH, **_OF_GTE_ENGLISH),
    _GTE.vary(
        "gte-large-en-v1.5", "Alibaba-NLP/gte-large-en-v1.5",
        _GTE_ENGLISH | LARGE | {"type_vocab_size": 2, "rope_parameters": _rope(160000.0, 2.0)}, **_OF_GTE_ENGLISH,
    ),
    _GTE.vary(
        "snowflake-arctic-embed-m-v2.0", "Snowflake/snowflake-arctic-embed-m-v2.0",
        {"rope_parameters": _rope(160000.0)},
        paper="arXiv:2412.04506", own="as gte-multilingual-base, with unscaled positions",
    ),
    _EMBEDDING_GEMMA,
    _NEOBERT,
    _JINA_V5,
    _JINA_V3,
    _JINA_V2,
    _JINA_V2.vary("jina-embeddings-v2-small-en", "jinaai/jina-embeddings-v2-small-en", sizes(4, 512, 8)),
)  # fmt: skip
