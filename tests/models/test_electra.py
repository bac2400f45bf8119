"""ELECTRA, discriminator and generator: every head against transformers, the summary's keys, old files."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForMultipleChoice, AutoModelForPreTraining, use_backend
from tests.models.family_checks import check_backends, check_loads, check_refused, check_spellings, drawn_anew
from tests.models.family_parity import check, random_batch

TASKS = (
    *(None, "MaskedLM", "PreTraining", "SequenceClassification", "TokenClassification", "QuestionAnswering"),
    "MultipleChoice",
)
TINY = {
    "model_type": "electra", "vocab_size": 40, "embedding_size": 16, "hidden_size": 24, "num_attention_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 32, "max_position_embeddings": 24,
}  # fmt: skip
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "one head of 39": ({"num_attention_heads": 1}, [5, 3, 11]),
    "heads of 160": ({"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1}, [7, 2]),
    "length 1": ({"embedding_size": 39}, [1, 1, 1]),
    "prime lengths": ({"embedding_size": 64}, [23, 17, 2, 13]),
    "lengths up to the longest": ({"max_position_embeddings": 11}, list(range(1, 12))),
    "padding that is word 5": ({"pad_token_id": 5, "type_vocab_size": 1}, [9, 4]),
    "decoder of its own": ({"tie_word_embeddings": False, "hidden_act": "relu"}, [6, 9]),
}
# Summaries; transformers' last token and mean are those of all columns, padding or not.
SUMMARIES = {
    "first, no projection": ({"summary_use_proj": False, "summary_activation": "tanh"}, [5, 9]),
    "last": ({"summary_type": "last", "summary_activation": "relu"}, [9, 9]),
    "mean": ({"summary_type": "mean"}, [4, 4]),
    "index": ({"summary_type": "cls_index", "summary_use_proj": False}, [4, 4]),
}


def small_config(**changes):
    import transformers

    sizes = {"vocab_size": 61, "embedding_size": 17, "hidden_size": 39, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 53, "num_hidden_layers": 2, "max_position_embeddings": 24}
    return transformers.ElectraConfig(**sizes | changes)


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(cpu_backend, task):
    config = small_config(num_labels=3)
    check(config, task, random_batch(config, [11, 1, 7], np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("task", ["MaskedLM", "PreTraining"])
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name, task):
    changes, lengths = AWKWARD[name]
    config = small_config(**changes)
    check(config, task, random_batch(config, lengths, np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries(cpu_backend, name):
    changes, lengths = SUMMARIES[name]
    config = small_config(**changes)
    check(config, "MultipleChoice", random_batch(config, lengths, np.random.default_rng(1)))


@pytest.mark.parity
@pytest.mark.parametrize("task", ["MaskedLM", "PreTraining"])
def test_left_padding_and_holes(cpu_backend, task):
    config = small_config()
    batch = random_batch(config, [11, 1, 7], np.random.default_rng(2), padding="left")
    batch["attention_mask"][0, [2, 5, 6]] = 0
    # transformers counts ELECTRA's positions from the first column, also where that is padding.
    first = batch["attention_mask"].argmax(axis=1)[:, None]
    batch["position_ids"] = np.maximum(np.arange(11) - first, 0)
    check(config, task, batch)


@pytest.mark.parametrize("kind", [AutoModelForMaskedLM, AutoModelForPreTraining])
def test_backends_and_dtypes_agree(kind):
    check_backends(lambda **options: kind.from_config(TINY, **options))


@pytest.mark.parametrize("source", ["first", "last", "mean"])
def test_a_summary_leaves_padding_out(source):
    model = drawn_anew(AutoModelForMultipleChoice.from_config(TINY | {"summary_type": source}))
    words = np.random.default_rng(0).integers(1, 40, (1, 2, 6))
    padded = np.concatenate([words, np.zeros((1, 2, 3), int)], axis=2)
    with use_backend("numpy"):
        found, expected = model(padded, np.where(padded, 1, 0)).logits, model(words).logits
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.ptp(expected) > 1e-3


def test_old_files_load(tmp_path):
    copies = {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}
    generator = drawn_anew(AutoModelForMaskedLM.from_config(TINY))
    check_spellings(generator, tmp_path, prefix="electra.", copies=copies)
    check_spellings(drawn_anew(AutoModelForPreTraining.from_config(TINY)), tmp_path, prefix="electra.", copies={})


def test_the_encoder_of_either_loads(tmp_path):
    for kind in (AutoModelForMaskedLM, AutoModelForPreTraining):
        whole = drawn_anew(kind.from_config(TINY)).state_dict()
        encoder = AutoModel.from_config(TINY)
        names = encoder.state_dict()
        encoder.load_state_dict({name: whole[f"electra.{name}"] for name in names})
        check_loads(encoder, tmp_path, whole)


def test_parameters():
    base = {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    large = {"embedding_size": 1024, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    sizes = [({}, 13_483_008), (base, 108_891_648), (large | {"num_hidden_layers": 24}, 334_092_288)]
    for config, parameters in sizes:
        assert AutoModel({"model_type": "electra"} | config).num_parameters() == parameters


def test_configs_that_are_refused():
    check_refused(AutoModel, TINY, {"embedding_size": 0, "is_decoder": True})
    summary = {"summary_type": "attn", "summary_activation": "step", "summary_proj_to_labels": True}
    check_refused(AutoModelForMultipleChoice, TINY, summary | {"summary_use_proj": 1})
