"""MobileBERT: every head against transformers, the choices of its layers, neighbours at ends of texts, old files."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, use_backend, value_and_grad
from tests.models.family_checks import check_backends, check_refused, check_spellings, drawn_anew
from tests.models.family_parity import check, random_batch

TASKS = (
    *(None, "MaskedLM", "PreTraining", "NextSentencePrediction", "SequenceClassification", "TokenClassification"),
    *("QuestionAnswering", "MultipleChoice"),
)
TINY = {
    "model_type": "mobilebert", "vocab_size": 40, "embedding_size": 10, "hidden_size": 24, "num_attention_heads": 2,
    "intra_bottleneck_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "max_position_embeddings": 24,
    "num_feedforward_networks": 2,
}  # fmt: skip
LAYER_NORM = {"normalization_type": "layer_norm"}
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "layer norms": (LAYER_NORM, [5, 3, 11]),
    "epsilon": (LAYER_NORM | {"layer_norm_eps": 0.1}, [5, 3]),
    "no bottleneck": ({"use_bottleneck": False, "num_attention_heads": 3}, [5, 3, 11]),
    "no bottleneck, layer norms": (
        {"use_bottleneck": False, "num_attention_heads": 1, "key_query_shared_bottleneck": False} | LAYER_NORM,
        [4, 7],
    ),
    "attention in the bottleneck": ({"use_bottleneck_attention": True}, [5, 3]),
    "one bottleneck for all": ({"use_bottleneck_attention": True, "key_query_shared_bottleneck": False}, [5, 3]),
    "attention to hidden states": (
        {"key_query_shared_bottleneck": False, "intra_bottleneck_size": 39, "num_attention_heads": 3},
        [5, 3],
    ),
    "one feed-forward": ({"num_feedforward_networks": 1}, [5, 3]),
    "four feed-forwards": ({"num_feedforward_networks": 4} | LAYER_NORM, [5, 3]),
    "words alone": ({"trigram_input": False}, [5, 3]),
    "words alone, as wide": ({"trigram_input": False, "embedding_size": 39}, [5, 3]),
    "wide words": ({"embedding_size": 39}, [5, 3]),
    "one head of 39": ({"num_attention_heads": 1, "intra_bottleneck_size": 39}, [5, 3, 11]),
    "heads of 160": ({"intra_bottleneck_size": 320, "num_hidden_layers": 1}, [7, 2]),
    "length 1": ({}, [1, 1, 1]),
    "prime lengths": ({}, [23, 17, 2, 13]),
    "lengths up to the longest": ({"max_position_embeddings": 11}, list(range(1, 12))),
    "padding that is word 5": ({"pad_token_id": 5}, [9, 4]),
    "decoder of its own": ({"tie_word_embeddings": False, "hidden_act": "gelu"}, [6, 9]),
}
IDS = np.array([[7, 3, 9, 11, 4], [5, 8, 2, 0, 0]])


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "embedding_size": 17, "hidden_size": 39, "intra_bottleneck_size": 26}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 53, "num_hidden_layers": 2, "max_position_embeddings": 24}
    return transformers.MobileBertConfig(**sizes | {"num_feedforward_networks": 3} | changes)


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(cpu_backend, task):
    config = small_config(num_labels=3)
    check(config, task, random_batch(config, [11, 1, 7], np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("task", ["MaskedLM", "NextSentencePrediction"])
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name, task):
    changes, lengths = AWKWARD[name]
    config = small_config(**changes)
    unwritten = () if config.tie_word_embeddings else ("cls.predictions.bias",)  # which an untied decoder does not use
    check(config, task, random_batch(config, lengths, np.random.default_rng(1)), unwritten=unwritten)


@pytest.mark.parity
@pytest.mark.parametrize("task", ["PreTraining", "SequenceClassification"])
def test_the_first_token_as_it_is(cpu_backend, task):
    config = small_config(classifier_activation=False)
    check(config, task, random_batch(config, [4, 6], np.random.default_rng(1)))


@pytest.mark.parity
def test_holes_in_the_mask(cpu_backend):
    """A word that is not to be seen is a neighbour still."""
    config = small_config()
    batch = random_batch(config, [9, 9], np.random.default_rng(1))
    batch["attention_mask"][0, [3, 4]] = batch["attention_mask"][1, 5] = 0
    check(config, "MaskedLM", batch)


def test_parameters():
    assert AutoModel({"model_type": "mobilebert"}).num_parameters() == 24_844_544
    names = AutoModelForMaskedLM(TINY).expected_tensors()
    assert names["cls.predictions.dense.weight"] == (14, 40)
    assert names["mobilebert.encoder.layer.1.ffn.0.output.LayerNorm.bias"] == (16,)


def test_two_norms_have_the_published_codes_own_epsilon():
    """What it makes of states of an ordinary size is below rounding."""
    encoder = AutoModel(TINY | LAYER_NORM | {"layer_norm_eps": 0.25}).encoder
    first, last = encoder.layers[0].feed_forwards
    assert encoder.embeddings.norm.eps == last.norm.eps == 1e-5
    assert first.norm.eps == encoder.layers[0].out.norm.eps == encoder.layers[0].attention.norm.eps == 0.25


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 1}, LAYER_NORM | {"trigram_input": False}])
def test_backends_and_dtypes_agree(changes):
    check_backends(lambda **how: AutoModelForMaskedLM.from_config(TINY | changes, **how))


def test_padding_changes_nothing(cpu_backend):
    """Although the embedding of padding is not zero here."""
    model = drawn_anew(AutoModel.from_config(TINY))
    alone, padded = model(IDS[1:, :3]), model(IDS, IDS > 0)
    np.testing.assert_allclose(padded.last_hidden_state[1, :3], alone.last_hidden_state[0], rtol=0, atol=1e-4)
    left = model(np.roll(IDS, 2, axis=1), np.roll(IDS > 0, 2, axis=1) | (np.arange(2) == 0)[:, None])
    np.testing.assert_allclose(left.last_hidden_state[1, 2:], alone.last_hidden_state[0], rtol=0, atol=1e-4)
    hidden, _ = model.encode_packed([IDS[0], IDS[1, :3]])
    np.testing.assert_allclose(hidden[5:], alone.last_hidden_state[0], rtol=0, atol=1e-4)


def test_gradients_agree():
    grads = {}
    for backend in ("numpy", "numba"):
        with use_backend(backend):
            model = drawn_anew(AutoModelForMaskedLM.from_config(TINY))
            _, grads[backend] = value_and_grad(model)(IDS, IDS > 0, labels=np.where(IDS > 0, IDS, -100))
    largest = max(np.abs(grad).max() for grad in grads["numpy"].values())
    for name, grad in grads["numpy"].items():
        np.testing.assert_allclose(grads["numba"][name], grad, rtol=0, atol=1e-5 * largest, err_msg=name)


def test_spellings_of_files(tmp_path):
    copies = {"cls.predictions.decoder.weight": "mobilebert.embeddings.word_embeddings.weight",
              "cls.predictions.decoder.bias": "cls.predictions.bias"}  # fmt: skip
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY))
    check_spellings(model, tmp_path, prefix="mobilebert.", copies=copies)


def test_configs_that_are_refused():
    refused = {
        "normalization_type": "rms_norm", "num_feedforward_networks": 0, "trigram_input": 1, "use_bottleneck": "yes",
        "intra_bottleneck_size": -1, "embedding_size": 25, "is_decoder": True,
    }  # fmt: skip
    check_refused(AutoModel.from_config, TINY, refused)
    with pytest.raises(ValueError, match="intra_bottleneck_size is 16, expected hidden_size 24"):
        AutoModel.from_config(TINY | {"key_query_shared_bottleneck": False})
    with pytest.raises(ValueError, match="intra_bottleneck_size is 15, expected a multiple of num_attention_heads 2"):
        AutoModel.from_config(TINY | {"intra_bottleneck_size": 15})
