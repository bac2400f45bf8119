"""Rows of the table of families (`family_table.py`) whose attention turns queries and keys by their positions."""

from tests.models.family_cases import EVEN, FamilyCase, Variant, tied_to

LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
DYNAMIC = {"max_position_embeddings": 7, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}
BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
MODERNBERT = FamilyCase(
    EVEN | {"model_type": "modernbert", "num_hidden_layers": 4, "intermediate_size": 25, "local_attention": 10,
            "norm_eps": 1e-3, "pad_token_id": 60, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
            "sep_token_id": 2, "max_position_embeddings": 64},
    {
        "heads of 160, primes": Variant(
            {"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_activation": "silu"},
            (23, 19),
        ),
        "up to the longest": Variant({"max_position_embeddings": 8}, (29, 26)),
        "padding that is word 5": Variant({"pad_token_id": 5}, (9, 8)),
        "decoder of its own": Variant({"tie_word_embeddings": False}, (6, 9)),
        "padding on the left": Variant({"classifier_pooling": "mean"}, padding="left"),
        "holes": Variant({"classifier_pooling": "mean"}, None, "MultipleChoice", "holes"),
        "mean of a text": Variant({"classifier_pooling": "mean"}, task="SequenceClassification"),
        "answers, padding on the left": Variant({}, None, "QuestionAnswering", "left"),
        "all biases": Variant(BIASES | {"decoder_bias": False}, (9, 8, 11)),
        "heads of 2": Variant({"hidden_size": 6, "num_attention_heads": 3}, (23, 19)),
        "a window of the token alone": Variant({"local_attention": 1}, (6, 6)),
        "an odd window": Variant({"local_attention": 7}, (23, 20)),
        "a window wider than the texts": Variant({"local_attention": 64}, (8, 1, 31)),
        "other activations": Variant({"hidden_activation": "silu", "classifier_activation": "tanh"}, (13, 12)),
        "layers by name": Variant(
            {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}, (9, 8)
        ),
        "thetas and scalings": Variant(
            {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_theta": 10.0}}}, (31, 30)
        ),
        "dynamic": Variant(
            {"rope_parameters": {"full_attention": LINEAR | {"rope_type": "dynamic"}, "sliding_attention": {}},
             "max_position_embeddings": 16}, (29, 29),
        ),
    },
    lengths=(13, 9, 11),  # transformers gives NaN where a token of padding has none within its window
    everything=BIASES | {"local_attention": 4},
    in_task={"QuestionAnswering": {"local_attention": 24}},
    refused={
        "hidden_size": 25, "local_attention": 0, "layer_types": ["full_attention"], "global_rope_theta": -1,
        "global_attn_every_n_layers": 0, "norm_bias": 1, "hidden_activation": "mish", "classifier_pooling": "last",
        "rope_scaling": {"factor": 2}, "rope_parameters": 3, "max_position_embeddings": 2**30,
    },
)  # fmt: skip
NOMIC_BERT = FamilyCase(
    EVEN | {"model_type": "nomic_bert", "max_position_embeddings": 64},
    {
        "up to the longest": Variant(DYNAMIC, (7, 3)),
        "longer than trained on": Variant(DYNAMIC, (11, 11)),
        "heads wider than the hidden size": Variant({"head_dim": 20}, (7, 2)),
        "another activation": Variant({"hidden_act": "gelu"}, (23, 17, 2, 13)),
        "one token type": Variant({"type_vocab_size": 1}, (5, 1, 3)),
        "another theta, scaled": Variant(
            {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0}}, (9, 4)
        ),
    },
    everything={"rotary_scaling_factor": 2.0, "max_trained_positions": 5, "n_positions": 64,
                "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True},
    refused={"hidden_size": 0, "num_hidden_layers": 10**9, "activation_function": "glu", "prenorm": True,
             "rotary_emb_fraction": 0.5, "rotary_emb_interleaved": True, "use_rms_norm": True, "num_experts": 8,
             "causal": True, "head_dim": 0},
)  # fmt: skip
GTE = FamilyCase(
    EVEN | {"model_type": "gte", "max_position_embeddings": 64},
    {
        "no token types": Variant({"type_vocab_size": 0, "pad_token_id": 0}, (5, 1, 3)),
        "three token types": Variant({"type_vocab_size": 3}, (9, 4)),
        "another theta, scaled": Variant(
            {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0}}, (9, 4)
        ),
    },
    everything={"rope_scaling": {"type": "ntk", "factor": 8.0}, "rope_theta": 20000.0},
    copies=tied_to("gte.embeddings.word_embeddings", "lm_head.decoder"),
    refused={
        "hidden_size": 0, "num_hidden_layers": 10**9, "hidden_act": "gelu_10", "logn_attention_scale": True,
        "logn_attention_clip1": True, "layer_norm_type": "rms_norm", "position_embedding_type": "alibi",
        "rope_scaling": 3, "pack_qkv": False,
    },
)  # fmt: skip
JINA_EMBEDDINGS_V3 = FamilyCase(
    EVEN | {"model_type": "jina_embeddings_v3", "max_position_embeddings": 64},
    {
        "three token types": Variant({"hidden_act": "silu", "type_vocab_size": 3}, (23, 17, 2, 13)),
        "another theta": Variant({"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}, (9, 4)),
        "answers, padding on the left": Variant({}, None, "QuestionAnswering", "left"),
    },
    everything={"type_vocab_size": 3},
    refused={"hidden_size": 0, "position_embedding_type": "alibi", "rope_scaling": 3},
)
EUROBERT = FamilyCase(
    EVEN | {"model_type": "eurobert", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
            "intermediate_size": 25, "rms_norm_eps": 1e-3, "pad_token_id": 60, "bos_token_id": 1, "eos_token_id": 2,
            "mask_token_id": 4, "max_position_embeddings": 64, "classifier_pooling": "late"},
    {
        "one head, one token": Variant({"num_attention_heads": 1, "num_key_value_heads": 1}, (1, 1, 1)),
        "heads of 6": Variant({"head_dim": 6}, (1, 1)),
        "up to the longest": Variant({"max_position_embeddings": 8}, (29, 26)),
        "decoder of its own": None,  # it always has
        "all biases": Variant({"attention_bias": True, "mlp_bias": True}, (9, 1, 11)),
        "as many keys as queries": Variant({"num_key_value_heads": 4}, (5, 3)),
        "one head of keys": Variant({"num_key_value_heads": 1}, (23, 17)),
        "another activation": Variant({"hidden_act": "gelu"}, (13, 2)),
        "one table of words": Variant({"tie_word_embeddings": True}, (6, 9)),
        "theta": Variant({"rope_parameters": {"rope_theta": 50.0, "rope_type": "default"}}, (39, 38)),
        "scaled": Variant({"rope_parameters": {"rope_theta": 50.0, "rope_type": "linear", "factor": 3.0}}, (31,)),
        "first token": Variant({"classifier_pooling": "bos"}, task="SequenceClassification"),
        "mean of a text": Variant({"classifier_pooling": "mean"}, task="SequenceClassification"),
        "classes, padding on the left": Variant({}, (13, 9, 1), "SequenceClassification", "left"),
        "classes, holes": Variant({}, (13, 9, 1), "SequenceClassification", "holes"),
    },
    everything={"attention_bias": True, "mlp_bias": True},
    refused={"num_key_value_heads": 0, "head_dim": "8", "rms_norm_eps": -1, "mlp_bias": 1,
             "classifier_pooling": "max", "rope_parameters": [], "rope_scaling": 2},
)  # fmt: skip

ULTRABERT = FamilyCase(
    EUROBERT.config | {"model_type": "ultrabert", "num_hidden_layers": 4, "sliding_window": 5,
                        "prediction_head_size": 19, "classifier_pooling": "cls", "mask_token_id": None},
    {
        "one head, one token": Variant({"num_attention_heads": 1, "num_key_value_heads": 1}, (1, 1, 1)),
        "heads of 160, primes": Variant(
            {"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1, "hidden_act": "relu"}, (23, 19)
        ),
        "up to the longest": Variant({"max_position_embeddings": 11}, (11, 9, 10)),
        "a window of the token alone": Variant({"sliding_window": 1, "num_attention_heads": 2}, (6, 5)),
        "all biases": Variant({"attention_bias": True, "mlp_bias": True}, (9, 8, 11)),
        "one table of words": Variant({"tie_word_embeddings": True}, (6, 9)),
        "decoder of its own": None,  # it always has
        "layers by name": Variant(
            {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2}, (9, 8)
        ),
        "windows of each layer": Variant(
            {"attention_windows": [None, 3, 3, None], "rope_theta": [50.0, 7.0, 7.0, 50.0]}, (13, 12)
        ),
        "mean of a text": Variant({"classifier_pooling": "mean"}, task="SequenceClassification"),
        "answers": Variant({}, task="QuestionAnswering"),
        "scaled": Variant({"rope_parameters": {"full_attention": LINEAR, "sliding_attention": LINEAR}}, (31, 29)),
    },
    lengths=(13, 9, 11),
    everything={"attention_bias": True, "mlp_bias": True},
    refused={"num_key_value_heads": 0, "sliding_window": 0, "layer_types": ["full_attention"], "rope_theta": [1.0],
             "attention_windows": [0.5, 2, 2, 2], "prediction_head_size": 0, "classifier_pooling": "late",
             "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
)  # fmt: skip
GEMMA3 = FamilyCase(
    EVEN | {"model_type": "gemma3_text", "num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 +
            ["full_attention"], "num_key_value_heads": 1, "head_dim": 12, "query_pre_attn_scalar": 144,
            "sliding_window": 10, "use_bidirectional_attention": True, "rms_norm_eps": 1e-3, "pad_token_id": 60,
            "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64, "use_cache": False, "num_labels": 3},
    {
        "one head, one token": Variant({"num_attention_heads": 1, "sliding_window": 20}, (9, 1)),
        "up to the longest": Variant({"max_position_embeddings": 11}, (11, 9, 10)),
        "holes": None,
        "padding on the left": None,  # transformers compares the first word with what padding says
        "classes, padding on the left": Variant({}, task="SequenceClassification", padding="left"),
        "heads of 160, primes": Variant(
            {"hidden_size": 320, "num_attention_heads": 2, "head_dim": 160, "hidden_activation": "relu"}, (23, 19)
        ),
        "39 words, heads of 2": Variant({"hidden_size": 39, "head_dim": 2, "vocab_size": 62}, (39, 38)),
        "causal": Variant({"use_bidirectional_attention": False, "sliding_window": 4}, (13, 12)),
        "a window of the token alone": Variant({"sliding_window": 1}, (6, 6)),
        "an odd window": Variant({"sliding_window": 7}, (23, 22)),
        "a window wider than the texts": Variant({"sliding_window": 320}, (8, 1, 160)),
        "all biases": Variant({"attention_bias": True}, (9, 8, 11)),
        "as many keys as queries": Variant({"num_key_value_heads": 3}, (9, 8)),
        "layers by name": Variant({"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2}),
        "layers by number": Variant({"layer_types": None, "num_hidden_layers": 7}, (9, 8)),
        "thetas and scalings": Variant(
            {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default",
                                                                                  "rope_theta": 10.0}}}, (31, 29)
        ),
        "older keys": Variant(
            {"rope_theta": 90.0, "rope_local_base_freq": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
        ),
    },
    lengths=(13, 9, 11),
    everything={"attention_bias": True},
    elsewhere=("PreTraining",),
    keys={"hidden_act": "hidden_activation"},
    refused={"num_key_value_heads": 0, "head_dim": 0, "sliding_window": -1, "layer_types": ["full_attention"],
             "attn_logit_softcapping": 3.0, "final_logit_softcapping": 3.0, "use_bidirectional_attention": "yes",
             "query_pre_attn_scalar": 0, "rope_parameters": 3, "rope_scaling": {"type": "linear", "factor": 8.0}},
)  # fmt: skip
