"""Models with absolute positions, as data."""

from .preset import BASE, LARGE, Preset, sizes

_COMMON = {
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "initializer_range": 0.02,
}  # fmt: skip
_CONTINUED = "MLM + NSP, continued from BERT"
MLM = ("masked_lm",)
RTD = "replaced token detection, beside a small generator's MLM"

# --- BERT and models of its shape ---------------------------------------------------------------------

BERT = Preset(
    name="bert-base-uncased", hub_id="google-bert/bert-base-uncased",
    config={
        "model_type": "bert", "vocab_size": 30522, **BASE, **_COMMON, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    },
    year=2018, paper="arXiv:1810.04805", objective="MLM + NSP", pretraining_heads=("masked_lm", "next_sentence"),
    tokenizer="WordPiece, lower case", own="the encoder that the others vary",
    category="general", use="a baseline: labels, entities and answers",
)  # fmt: skip
_CASED = "WordPiece, cased"
_DISTILLED = {"objective": "distillation", "pretraining_heads": ("distillation",), "category": "small"}
_SHAPED_LIKE_BERT = (
    BERT,
    BERT.vary("bert-large-uncased", "google-bert/bert-large-uncased", LARGE),
    BERT.vary(
        "bert-base-multilingual-cased", "google-bert/bert-base-multilingual-cased", {"vocab_size": 119547},
        tokenizer=_CASED, own="104 languages in one vocabulary",
        category="multilingual", use="labels and entities in many languages", languages="104",
    ),
    BERT.vary(
        "mini-bert", "", {**sizes(3, 192, 4), "vocab_size": 8192, "max_position_embeddings": 64},
        objective="MLM", pretraining_heads=MLM, own="small, to try things with: 8,192 words, 64 positions",
        category="small", use="pretraining from scratch on a CPU", languages="any",
    ),
    BERT.vary(
        "scibert", "allenai/scibert_scivocab_uncased", {"vocab_size": 31090},
        year=2019, paper="arXiv:1903.10676", own="scientific papers, vocabulary made from them",
        category="domain", use="scientific papers",
    ),
    BERT.vary(
        "biobert", "dmis-lab/biobert-v1.1", {"vocab_size": 28996},
        year=2019, paper="arXiv:1901.08746", objective=_CONTINUED, tokenizer=_CASED, own="PubMed abstracts",
        category="domain", use="biomedical papers",
    ),
    BERT.vary(
        "clinicalbert", "emilyalsentzer/Bio_ClinicalBERT", {"vocab_size": 28996},
        year=2019, paper="arXiv:1904.03323", objective="MLM + NSP, continued from BioBERT", tokenizer=_CASED,
        own="hospital notes (MIMIC-III)", category="domain", use="clinical notes",
    ),
    BERT.vary(
        "finbert", "ProsusAI/finbert", {},
        year=2019, paper="arXiv:1908.10063", objective=_CONTINUED, own="financial news; classifies sentiment",
        category="domain", use="the sentiment of financial news",
    ),
    BERT.vary(
        "legalbert", "nlpaueb/legal-bert-base-uncased", {},
        year=2020, paper="arXiv:2010.02559", own="laws, court cases and contracts, vocabulary made from them",
        category="domain", use="laws, cases and contracts",
    ),
    BERT.vary(
        "spanbert", "SpanBERT/spanbert-base-cased", {"vocab_size": 28996},
        year=2019, paper="arXiv:1907.10529", tokenizer=_CASED, own="masks contiguous spans, one segment, no NSP",
        objective="MLM of spans + span boundary objective", pretraining_heads=("masked_lm", "span_boundary"),
        category="spans and entities", use="answers, and relations between spans",
    ),
    BERT.vary(
        "minilm-l6-h384", "nreimers/MiniLM-L6-H384-uncased", sizes(6, 384, 12),
        year=2020, paper="arXiv:2002.10957", **_DISTILLED, own="every second layer of minilm-l12-h384",
        use="fast labels; the base of small embedding models",
    ),
    BERT.vary(
        "minilm-l12-h384", "microsoft/MiniLM-L12-H384-uncased", sizes(12, 384, 12),
        year=2020, paper="arXiv:2002.10957", **_DISTILLED,
        own="the teacher's last attention distributions and value relations",
        use="fast labels; the base of small embedding models",
    ),
    BERT.vary(
        "tinybert-4l-312", "huawei-noah/TinyBERT_General_4L_312D", sizes(4, 312, 12, 1200),
        year=2019, paper="arXiv:1909.10351", **_DISTILLED,
        own="the teacher's embeddings, hidden states and attention scores, layer by layer",
        use="very small models, distilled for one task",
    ),
    BERT.vary(
        "tinybert-6l-768", "huawei-noah/TinyBERT_General_6L_768D", sizes(6, 768, 12),
        year=2019, paper="arXiv:1909.10351", **_DISTILLED, own="as tinybert-4l-312, at the teacher's width",
        use="models at half of BERT's cost, distilled for one task",
    ),
)  # fmt: skip

# --- RoBERTa and models of its shape ------------------------------------------------------------------

_ROBERTA = BERT.vary(
    "roberta-base", "FacebookAI/roberta-base",
    {
        "model_type": "roberta", "vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1,
        "layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    },
    year=2019, paper="arXiv:1907.11692", objective="MLM, masks drawn anew each time", pretraining_heads=MLM,
    tokenizer="byte-level BPE", own="no NSP, no segments, positions start after the padding id",
    use="labels, entities and answers, better pretrained than BERT",
)  # fmt: skip
_XLM_ROBERTA = _ROBERTA.vary(
    "xlm-roberta-base", "FacebookAI/xlm-roberta-base", {"model_type": "xlm-roberta", "vocab_size": 250002},
    paper="arXiv:1911.02116", objective="MLM in 100 languages", tokenizer="SentencePiece unigram",
    own="RoBERTa with 250,002 pieces",
    category="multilingual", use="labels in many languages, learned from one of them", languages="100",
)  # fmt: skip
_LUKE = _ROBERTA.vary(
    "luke-base", "studio-ousia/luke-base",
    {
        "model_type": "luke", "vocab_size": 50267, "entity_vocab_size": 500000, "entity_emb_size": 256,
        "use_entity_aware_attention": True,
    },
    year=2020, paper="arXiv:2010.01057", objective="MLM of words and entities",
    pretraining_heads=("masked_lm", "masked_entities"), tokenizer="byte-level BPE + entities",
    own="entity embeddings, separate queries for words and entities",
    category="spans and entities", use="types of entities, and relations between them",
)  # fmt: skip
_SHAPED_LIKE_ROBERTA = (
    _ROBERTA,
    _ROBERTA.vary("roberta-large", "FacebookAI/roberta-large", LARGE),
    _ROBERTA.vary(
        "codebert", "microsoft/codebert-base", {},
        year=2020, paper="arXiv:2002.08155", objective="MLM + replaced token detection",
        pretraining_heads=("masked_lm", "replaced_tokens"), own="pairs of text and code",
        category="domain", use="code and its documentation", languages="English, 6 programming languages",
    ),
    _ROBERTA.vary(
        "camembert-base", "almanach/camembert-base",
        {"model_type": "camembert", "vocab_size": 32005, "bos_token_id": 5, "eos_token_id": 6},
        paper="arXiv:1911.03894", objective="MLM of whole words", tokenizer="SentencePiece unigram", own="French",
        use="labels, entities and answers in French", languages="French",
    ),
    _XLM_ROBERTA,
    _XLM_ROBERTA.vary("xlm-roberta-large", "FacebookAI/xlm-roberta-large", LARGE),
    _LUKE,
    _LUKE.vary("luke-large", "studio-ousia/luke-large", LARGE),
)  # fmt: skip

# --- smaller embeddings, shared or fewer layers --------------------------------------------------------

_ALBERT = BERT.vary(
    "albert-base-v2", "albert/albert-base-v2",
    {
        "model_type": "albert", "vocab_size": 30000, "embedding_size": 128, "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.1,
        "num_hidden_groups": 1, "inner_group_num": 1, "bos_token_id": 2, "eos_token_id": 3,
    },
    year=2019, paper="arXiv:1909.11942", objective="MLM + sentence order",
    pretraining_heads=("masked_lm", "sentence_order"), tokenizer="SentencePiece unigram",
    own="one layer's parameters for all layers, narrow embeddings",
    use="few parameters to store or send",
)  # fmt: skip
_ELECTRA = BERT.vary(
    "electra-small-discriminator", "google/electra-small-discriminator",
    {"model_type": "electra", "embedding_size": 128, **sizes(12, 256, 4)},
    year=2020, paper="arXiv:2003.10555", objective=RTD, pretraining_heads=("replaced_tokens",),
    own="detects replaced tokens; narrow embeddings; no pooler",
    category="small", use="labels and answers, accurate for its cost",
)  # fmt: skip
_GENERATES = {
    "objective": "MLM, beside its discriminator", "pretraining_heads": MLM, "category": "pretraining",
    "own": "makes the tokens that its discriminator detects", "use": "the generator while an ELECTRA is pretrained",
}  # fmt: skip
_WIDE, _WIDER = {"embedding_size": 768}, {"embedding_size": 1024}
_ELECTRA_SIZES = {"base": _WIDE | BASE, "large": _WIDER | LARGE}
_GENERATOR_SIZES = {"small": {}, "base": _WIDE, "large": _WIDER | sizes(24, 256, 4)}
_DISTILBERT = Preset(
    name="distilbert-base-uncased", hub_id="distilbert/distilbert-base-uncased",
    config={
        "model_type": "distilbert", "vocab_size": 30522, "n_layers": 6, "dim": 768, "n_heads": 12, "hidden_dim": 3072,
        "activation": "gelu", "dropout": 0.1, "attention_dropout": 0.1, "max_position_embeddings": 512,
        "sinusoidal_pos_embds": False, "initializer_range": 0.02, "pad_token_id": 0,
    },
    year=2019, paper="arXiv:1910.01108", objective="MLM + distillation of logits and hidden states",
    pretraining_heads=MLM, tokenizer="WordPiece, lower case", own="every second layer of BERT, no segments, no pooler",
    category="small", use="labels and entities at half of BERT's cost",
)  # fmt: skip
_MOBILEBERT = BERT.vary(
    "mobilebert-uncased", "google/mobilebert-uncased",
    {
        "model_type": "mobilebert", **sizes(24, 512, 4, 512), "hidden_act": "relu", "hidden_dropout_prob": 0.0,
        "embedding_size": 128, "trigram_input": True, "use_bottleneck": True, "intra_bottleneck_size": 128,
        "use_bottleneck_attention": False, "key_query_shared_bottleneck": True, "num_feedforward_networks": 4,
        "normalization_type": "no_norm", "classifier_activation": True,
    },
    year=2020, paper="arXiv:2004.02984", objective="MLM + NSP + transfer layer by layer",
    own="bottlenecks, four feed-forwards a layer, scale and shift for layer norm, trigram embeddings",
    category="small", use="phones and other small devices",
)  # fmt: skip
_SMALLER = (
    _ALBERT,
    _ALBERT.vary("albert-large-v2", "albert/albert-large-v2", LARGE),
    _ALBERT.vary("albert-xlarge-v2", "albert/albert-xlarge-v2", sizes(24, 2048, 16)),
    _ALBERT.vary("albert-xxlarge-v2", "albert/albert-xxlarge-v2", sizes(12, 4096, 64)),
    _DISTILBERT,
    _MOBILEBERT,
    _ELECTRA,
    *(
        _ELECTRA.vary(f"electra-{size}-discriminator", f"google/electra-{size}-discriminator", more, category="general")
        for size, more in _ELECTRA_SIZES.items()
    ),
    *(
        _ELECTRA.vary(f"electra-{size}-generator", f"google/electra-{size}-generator", changes, **_GENERATES)
        for size, changes in _GENERATOR_SIZES.items()
    ),
)

ABSOLUTE: tuple[Preset, ...] = (*_SHAPED_LIKE_BERT, *_SHAPED_LIKE_ROBERTA, *_SMALLER)
