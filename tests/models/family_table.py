"""One table of families: a small config of each and what is unusual about it, which parity and backend tests run over.

`test_family_parity.py` holds every row against transformers, `test_families.py` backends, dtypes, files and refused
configs against each other. What only one family has (inputs, keys, names) stands in its own test file.
"""

from tests.models.family_cases import EVEN, SIZES, FamilyCase, Variant, tied_to
from tests.models.rotary_table import EUROBERT, GEMMA3, GTE, JINA_EMBEDDINGS_V3, MODERNBERT, NOMIC_BERT, ULTRABERT

# Positions after padding's word 1.
OFFSET = SIZES | {"max_position_embeddings": 26, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
LONGEST_AFTER_PADDING = {"up to the longest": Variant({"max_position_embeddings": 13}, tuple(range(1, 12)))}


def roberta(model_type: str, **how: str) -> FamilyCase:
    """RoBERTa, or a family that has its layers."""
    return FamilyCase(
        OFFSET | {"model_type": model_type},
        {
            **LONGEST_AFTER_PADDING,
            "padding that is word 0": Variant({"pad_token_id": 0, "bos_token_id": 1}, (9, 4)),
            "token types": Variant({"type_vocab_size": 3, "hidden_act": "relu"}, (8, 5)),
            "padding among the words": Variant({}, padding="words"),
            "tokens, padding among the words": Variant({}, task="TokenClassification", padding="words"),
        },
        everything={"type_vocab_size": 3},
        counts="words",
            copies=tied_to("roberta.embeddings.word_embeddings", "lm_head.decoder", bias="lm_head.bias"),
        refused={"is_decoder": True, "position_embedding_type": "relative_key", "pad_token_id": None,
                 "max_position_embeddings": 2},
        **how,
    )  # fmt: skip


_MPNET = FamilyCase(
    {key: value for key, value in OFFSET.items() if key != "type_vocab_size"} | {"model_type": "mpnet"},
    {
        **LONGEST_AFTER_PADDING,
        "padding that is word 5": Variant({"pad_token_id": 5, "layer_norm_eps": 1e-2}, (9, 4)),
        "beyond the last bucket": Variant({"max_position_embeddings": 170, "num_hidden_layers": 1}, (163, 2, 131)),
        "padding among the words": Variant({}, task="TokenClassification", padding="words"),
        "buckets that no distance has": Variant({"relative_attention_num_buckets": 48}, (9, 4)),
    },
    counts="words",
    padding_word=1,
    copies=tied_to("mpnet.embeddings.word_embeddings", "lm_head.decoder", bias="lm_head.bias"),
    refused={"relative_attention_num_buckets": 31, "max_position_embeddings": 2, "is_decoder": True},
)
_ALBERT = FamilyCase(
    SIZES | {"model_type": "albert", "embedding_size": 17, "num_hidden_layers": 3},
    {
        "projection of the same width": Variant({"embedding_size": 39}, (9, 4)),
        "a group for each layer": Variant({"num_hidden_groups": 3}, (6, 9)),
        "groups that do not divide the layers": Variant({"num_hidden_layers": 5, "num_hidden_groups": 3}, (6, 2)),
        "groups that rounding shifts": Variant({"num_hidden_layers": 18, "num_hidden_groups": 14}, (5, 3)),
        "inner groups": Variant({"inner_group_num": 2, "num_hidden_groups": 2}, (6, 2)),
        "inner groups of one group": Variant({"inner_group_num": 3, "num_hidden_layers": 2}, (6, 2)),
    },
    everything={"inner_group_num": 2, "num_hidden_groups": 2},
    # In transformers num_labels sets the classes of sentence order, too, and has to be two.
    in_task={"PreTraining": {"num_labels": 2}},
    counts="columns",
    copies=tied_to("albert.embeddings.word_embeddings", "predictions.decoder", bias="predictions.bias"),
    refused={"num_hidden_groups": 4, "inner_group_num": 0, "num_hidden_layers": 6000, "embedding_size": -1},
)
_DISTILBERT = FamilyCase(
    {"model_type": "distilbert", "vocab_size": 61, "dim": 39, "n_heads": 3, "hidden_dim": 53, "n_layers": 2,
     "max_position_embeddings": 24, "num_labels": 3},
    {"sinusoids": Variant({"sinusoidal_pos_embds": True}, (6, 9))},
    keys={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers",
          "hidden_act": "activation"},
    counts="columns",
    copies=tied_to("distilbert.embeddings.word_embeddings", "vocab_projector"),
    refused={"dim": 0, "n_heads": "2", "n_layers": 10**9, "hidden_dim": -1, "activation": "gelu_10"},
)  # fmt: skip
_ELECTRA = FamilyCase(
    SIZES | {"model_type": "electra", "embedding_size": 17},
    {
        "embeddings as wide as the layers": Variant({"embedding_size": 39}, (1, 3), "PreTraining"),
        "wide embeddings": Variant({"embedding_size": 64, "type_vocab_size": 1}, (23, 17, 2, 13), "PreTraining"),
        "flags, padding on the left": Variant({}, task="PreTraining", padding="left"),
        # transformers' last token and mean are those of all columns, padding or not
        "summary of the first": Variant(
            {"summary_use_proj": False, "summary_activation": "tanh"}, (5, 9), "MultipleChoice"
        ),
        "summary of the last": Variant(
            {"summary_type": "last", "summary_activation": "relu"}, (9, 9), "MultipleChoice",
        ),
        "summary of all": Variant({"summary_type": "mean"}, (4, 4), "MultipleChoice"),
        "summary at an index": Variant(
            {"summary_type": "cls_index", "summary_use_proj": False}, (4, 4), "MultipleChoice"
        ),
    },
    counts="columns",
    copies=tied_to("electra.embeddings.word_embeddings", "generator_lm_head"),
    refused={"embedding_size": 0, "is_decoder": True, "summary_type": "attn", "summary_activation": "step",
             "summary_proj_to_labels": True, "summary_use_proj": 1},
)  # fmt: skip
LAYER_NORM = {"normalization_type": "layer_norm"}
_MOBILEBERT = FamilyCase(
    SIZES | {"model_type": "mobilebert", "embedding_size": 17, "intra_bottleneck_size": 26, "num_attention_heads": 2,
             "num_feedforward_networks": 3},
    {
        "one head, one token": Variant({"num_attention_heads": 1, "intra_bottleneck_size": 39}, (1, 1, 1)),
        "heads of 160, primes": Variant({"intra_bottleneck_size": 320, "num_hidden_layers": 1}, (23, 17, 2, 13)),
        "padding on the left": None,  # what stands before the first word is another neighbour in transformers
        "layer norms": Variant(LAYER_NORM | {"layer_norm_eps": 0.1}, (5, 3, 11), "PreTraining"),
        "no bottleneck": Variant({"use_bottleneck": False, "num_attention_heads": 3}, (5, 3, 11), "PreTraining"),
        "no bottleneck, layer norms": Variant(
            {"use_bottleneck": False, "num_attention_heads": 1, "key_query_shared_bottleneck": False} | LAYER_NORM,
            (4, 7), "PreTraining",
        ),
        "attention in the bottleneck": Variant({"use_bottleneck_attention": True}, (5, 3), "PreTraining"),
        "one bottleneck for all": Variant(
            {"use_bottleneck_attention": True, "key_query_shared_bottleneck": False}, (5, 3), "PreTraining"
        ),
        "attention to hidden states": Variant(
            {"key_query_shared_bottleneck": False, "intra_bottleneck_size": 39, "num_attention_heads": 3},
            (5, 3), "PreTraining",
        ),
        "one feed-forward": Variant({"num_feedforward_networks": 1}, (5, 3), "PreTraining"),
        "four feed-forwards": Variant({"num_feedforward_networks": 4} | LAYER_NORM, (5, 3), "PreTraining"),
        "words alone": Variant({"trigram_input": False}, (5, 3)),
        "words alone, as wide": Variant({"trigram_input": False, "embedding_size": 39}, (5, 3)),
        "wide words": Variant({"embedding_size": 39}, (5, 3)),
        "the first token as it is": Variant({"classifier_activation": False}, (4, 6), "PreTraining"),
        "a class of the first token": Variant({"classifier_activation": False}, (4, 6), "SequenceClassification"),
    },
    everything={"num_hidden_layers": 1},
    copies=tied_to("mobilebert.embeddings.word_embeddings", "cls.predictions.decoder", bias="cls.predictions.bias"),
    refused={"normalization_type": "rms_norm", "num_feedforward_networks": 0, "trigram_input": 1,
             "use_bottleneck": "yes", "intra_bottleneck_size": -1, "embedding_size": 40, "is_decoder": True},
)  # fmt: skip
_DEBERTA = FamilyCase(
    SIZES | {"model_type": "deberta", "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
             "initializer_range": 0.02},
    {
        "c2p": Variant({"pos_att_type": ["c2p"]}),
        "p2c": Variant({"pos_att_type": ["p2c"]}),
        "relative without a type": Variant({"pos_att_type": None}),
        "types without relative": Variant({"relative_attention": False}),
        "neither": Variant({"relative_attention": False, "pos_att_type": None}),
        "as a string": Variant({"pos_att_type": "P2C | c2p"}),
        "twice the same": Variant({"pos_att_type": ["c2p", "c2p"]}),
        "near ones alone": Variant({"max_relative_positions": 4, "position_biased_input": False}),
        "not added": Variant({"position_biased_input": False}),
        "longer than the positions": Variant({"max_position_embeddings": 5, "position_biased_input": False}, (17, 6)),
        "token types, relu": Variant({"type_vocab_size": 3, "hidden_act": "relu", "pooler_hidden_act": "tanh"}, (8, 5),
                                     "SequenceClassification"),
        "narrow embeddings": Variant({"embedding_size": 20, "type_vocab_size": 2}, (6, 9)),
        "narrow embeddings alone": Variant({"embedding_size": 20, "position_biased_input": False}, (6, 9)),
        "the newer head": Variant({"legacy": False}, (6, 9)),
        "answers, padding on the left": Variant({}, None, "QuestionAnswering", "left"),
        "answers, holes": Variant({}, task="QuestionAnswering", padding="holes"),
        "answers, holes, not relative": Variant({"relative_attention": False}, None, "QuestionAnswering", "holes"),
    },
    everything={"type_vocab_size": 2, "embedding_size": 20},
    counts="columns",
    copies=tied_to("deberta.embeddings.word_embeddings", "cls.predictions.decoder", bias="cls.predictions.bias"),
    refused={"talking_head": True, "pos_att_type": "c2p|p2p", "pooler_hidden_size": 23, "relative_attention": "yes",
             "max_relative_positions": 2.5, "is_decoder": True, "legacy": 1},
)  # fmt: skip
V3 = {"position_buckets": 6, "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False}
OWN_MAPS = {"position_buckets": -1, "share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True}
CONVOLUTION = OWN_MAPS | {"conv_kernel_size": 3}
_DEBERTA_V2 = FamilyCase(
    _DEBERTA.config | V3 | {"model_type": "deberta-v2"},
    {
        "up to the longest": Variant({"position_biased_input": True, "max_position_embeddings": 11},
                                     tuple(range(1, 12))),
        "own maps, all distances": Variant(OWN_MAPS, (23, 1, 7)),
        "own maps, c2p": Variant(OWN_MAPS | {"pos_att_type": ["c2p"], "position_buckets": 4}, (23, 1, 7)),
        "own maps, p2c": Variant(
            OWN_MAPS | {"pos_att_type": ["p2c"], "position_buckets": 7, "max_relative_positions": 9}, (23, 1, 7)
        ),
        "c2p": Variant({"pos_att_type": "c2p"}, (23, 1, 7)),
        "p2c": Variant({"pos_att_type": "p2c", "position_biased_input": True}, (23, 1, 7)),
        "without a norm": Variant({"norm_rel_ebd": "none"}, (23, 1, 7)),
        "no type": Variant({"pos_att_type": None}, (23, 1, 7)),
        "twice the same": Variant({"pos_att_type": ["p2c", "p2c", "c2p"]}, (23, 1, 7)),
        "types without relative": Variant({"relative_attention": False, "position_buckets": -1}, (23, 1, 7)),
        "neither": Variant(OWN_MAPS | {"relative_attention": False, "pos_att_type": None}, (23, 1, 7)),
        "buckets of one": Variant({"position_buckets": 2}, (23, 1, 7)),
        "all near": Variant({"position_buckets": 64, "position_biased_input": True}, (23, 1, 7)),
        "narrow embeddings": Variant({"embedding_size": 20, "type_vocab_size": 2}, (23, 1, 7)),
        "the newer head": Variant({"legacy": False}, (23, 1, 7)),
        "longer than the positions": Variant({}, (53, 6)),
        "answers, padding on the left": Variant({}, task="QuestionAnswering", padding="left"),
        "answers, holes": Variant({}, task="QuestionAnswering", padding="holes"),
        # with padding on the left, transformers classifies the first column, a padding
        "choices, holes": Variant({}, task="MultipleChoice", padding="holes"),
        "convolution": Variant(CONVOLUTION | {"conv_act": "gelu"}),
        "convolution, left": Variant(
            CONVOLUTION | {"position_biased_input": False}, None, "QuestionAnswering", "left"
        ),
        "convolution, holes": Variant(CONVOLUTION, task="QuestionAnswering", padding="holes"),
        "convolution of one": Variant(CONVOLUTION | {"conv_kernel_size": 1}, padding="holes"),
        "convolution of five in groups": Variant(CONVOLUTION | {"conv_kernel_size": 5, "conv_groups": 13}),
        "convolution in groups, left": Variant(
            CONVOLUTION | {"conv_kernel_size": 5, "conv_groups": 13, "position_biased_input": False}, padding="left"
        ),
        "convolution without relative positions": Variant(
            CONVOLUTION | {"relative_attention": False, "pos_att_type": None}, padding="holes"
        ),
        "convolution, one token": Variant({"conv_kernel_size": 3}, (1, 2, 1)),
    },
    everything={"conv_kernel_size": 3, "position_biased_input": True},
    counts="columns",
    copies=tied_to("deberta.embeddings.word_embeddings", "cls.predictions.decoder"),
    refused={"pos_att_type": ["p2p"], "norm_rel_ebd": "batch_norm", "conv_kernel_size": 4, "attention_head_size": 14,
             "position_buckets": 1},
    is_recorded=False,  # with a convolution
)  # fmt: skip
_GPT2 = FamilyCase(
    {"model_type": "gpt2", "vocab_size": 61, "n_embd": 39, "n_head": 3, "n_layer": 2, "n_positions": 24,
     "pad_token_id": 60, "bos_token_id": 59, "eos_token_id": 59, "num_labels": 3, "use_cache": False},
    {
        "one head, one token": Variant({"n_head": 1}, (9, 1)),  # a word that nothing follows has no loss
        "inner width": Variant({"n_inner": 53}, (11, 2, 24, 1)),
        "unscaled": Variant({"scale_attn_weights": False, "n_embd": 12}, (11, 2, 24, 1)),
        "by layer": Variant({"scale_attn_by_inverse_layer_idx": True, "n_layer": 3}, (11, 2, 24, 1)),
        "epsilon": Variant({"layer_norm_epsilon": 1e-2}, (11, 2, 24, 1)),
        "classes, padding on the left": Variant({}, task="SequenceClassification", padding="left"),
        "holes": None,
        "padding on the left": None,  # transformers compares the first word with what padding says
    },
    everything={"scale_attn_by_inverse_layer_idx": True, "n_inner": 53},
    keys={"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
          "max_position_embeddings": "n_positions", "hidden_act": "activation_function"},
    counts="columns",
    refused={"n_embd": 40, "n_inner": 0, "activation_function": "mish", "add_cross_attention": True,
             "scale_attn_weights": 1, "n_positions": -1},
)  # fmt: skip
_T5 = FamilyCase(
    {"model_type": "t5", "vocab_size": 61, "d_model": 39, "d_kv": 13, "num_heads": 3, "d_ff": 53, "num_layers": 2,
     "layer_norm_epsilon": 1e-3, "num_labels": 3},
    {
        "one head, one token": Variant({"num_heads": 1, "d_kv": 39}, (1, 1, 1)),
        "heads of 160, primes": Variant({"d_model": 320, "d_kv": 160, "num_heads": 2, "num_layers": 1}, (23, 17, 2)),
        "heads wider than the layer": Variant({"d_kv": 20}, (9, 4)),
        "up to the longest": None,  # of any length
        "decoder of its own": None,
        "gated": Variant({"feed_forward_proj": "gated-gelu"}, (11, 1, 39)),
        "gated by silu": Variant({"feed_forward_proj": "gated-silu"}, (6, 9)),
        "beyond the last bucket": Variant({"num_layers": 1}, (163, 2, 131)),
        "few buckets": Variant(
            {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 9}, (39, 1, 7)
        ),
        "buckets that do not halve": Variant({"relative_attention_num_buckets": 19, "num_layers": 1}, (131, 2)),
    },
    everything={"feed_forward_proj": "gated-gelu"},
    keys={"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
          "hidden_act": "feed_forward_proj"},
    elsewhere=("SequenceClassification", "QuestionAnswering"),
    copies={"transformer.encoder.embed_tokens.weight": "transformer.shared.weight"},
    refused={"relative_attention_num_buckets": 3, "relative_attention_max_distance": 8, "feed_forward_proj": "gated",
             "d_kv": 0, "num_layers": 10**9, "is_decoder": True},
)  # fmt: skip
_NEOBERT = FamilyCase(
    EVEN | {"model_type": "neobert", "max_length": 64, "norm_eps": 1e-3},
    has_peer=False,  # its oracle is in test_family_definitions.py
    refused={"max_length": 0, "hidden_size": 40, "intermediate_size": 0, "norm_eps": -1, "model_type": "other"},
)
_BERT_HASH = FamilyCase(
    SIZES | {"model_type": "bert_hash", "projections": 5},
    {},
    has_peer=False,  # its oracles are in test_family_details.py and test_family_definitions.py
    refused={"projections": 0, "position_embedding_type": "relative_key", "is_decoder": True},
)


def jina_bert(code: str) -> FamilyCase:
    """Jina BERT v2, or its code model: their oracle is in test_family_definitions.py."""
    return FamilyCase(
        EVEN | {"model_type": "bert", "max_position_embeddings": 64, "position_embedding_type": "alibi",
                "feed_forward_type": "geglu", "auto_map": {"AutoModel": f"jinaai/{code}--modeling_bert.JinaBertModel"}},
        has_peer=False,
            copies=tied_to("bert.embeddings.word_embeddings", "cls.predictions.decoder"),
        refused={"position_embedding_type": "absolute", "feed_forward_type": "original", "is_decoder": True},
    )  # fmt: skip


FAMILIES = {
    "bert": FamilyCase(
        SIZES | {"model_type": "bert"},
        {
            "one token type": Variant({"type_vocab_size": 1, "layer_norm_eps": 1e-3}, (9, 4)),
            "heads of one": Variant({"hidden_size": 6, "num_attention_heads": 6, "intermediate_size": 1}, (17,)),
            "twelve heads": Variant({"hidden_size": 96, "num_attention_heads": 12, "num_hidden_layers": 3}, (5, 24)),
        },
        counts="columns",
        copies=tied_to("bert.embeddings.word_embeddings", "cls.predictions.decoder", bias="cls.predictions.bias"),
        refused={"position_embedding_type": "relative_key", "is_decoder": True},
    ),
    "roberta": roberta("roberta"),
    **{model_type: roberta(model_type, layers_of="roberta") for model_type in ("camembert", "xlm-roberta")},
    "albert": _ALBERT,
    "distilbert": _DISTILBERT,
    "electra": _ELECTRA,
    "mobilebert": _MOBILEBERT,
    "mpnet": _MPNET,
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA_V2,
    "gpt2": _GPT2,
    "modernbert": MODERNBERT,
    "nomic_bert": NOMIC_BERT,
    "gte": GTE,
    "jina_embeddings_v3": JINA_EMBEDDINGS_V3,
    "eurobert": EUROBERT,
    "ultrabert": ULTRABERT,
    "gemma3_text": GEMMA3,
    "t5": _T5,
    "neobert": _NEOBERT,
    "bert_hash": _BERT_HASH,
    "jina_embeddings_v5": FamilyCase(
        EUROBERT.config | {"model_type": "jina_embeddings_v5", "task_names": ["retrieval"]},
        has_peer=False,
        layers_of="eurobert",
    ),
    "jina_bert": jina_bert("jina-bert-implementation"),
    "jina_bert_code": jina_bert("jina-bert-v2-qk-post-norm"),
}
WITH_OWN_LAYERS = [name for name, case in FAMILIES.items() if case.layers_of is None]
WITH_PEER = {name: case for name, case in FAMILIES.items() if case.has_peer}
