"""DeBERTa v1: every head and every kind of position against transformers, padding, components, old files."""

import numpy as np
import pytest

from bertcore import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    use_backend,
    value_and_grad,
)
from tests.models.family_checks import check_backends, check_loads, check_refused, check_spellings, drawn_anew
from tests.models.family_parity import check, random_batch

TASKS = (None, "MaskedLM", "PreTraining", "SequenceClassification", "TokenClassification", "QuestionAnswering")
TINY = {
    "model_type": "deberta", "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 32, "max_position_embeddings": 24, "relative_attention": True, "pos_att_type": "c2p|p2c",
}  # fmt: skip
BASE = {"model_type": "deberta", "relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
POSITIONS = {
    "both": {},
    "c2p": {"pos_att_type": ["c2p"]},
    "p2c": {"pos_att_type": ["p2c"]},
    "relative without a type": {"pos_att_type": None},
    "types without relative": {"relative_attention": False},
    "neither": {"relative_attention": False, "pos_att_type": None},
    "as a string": {"pos_att_type": "P2C | c2p"},
    "twice the same": {"pos_att_type": ["c2p", "c2p"]},
    "near ones alone": {"max_relative_positions": 4, "position_biased_input": False},
    "not added": {"position_biased_input": False},
}
# Configurations and the lengths of a batch's sequences.
AWKWARD = {
    "one head of 39": ({"num_attention_heads": 1}, [5, 3, 11]),
    "heads of 160": ({"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1}, [7, 2]),
    "length 1": ({}, [1, 1, 1]),
    "prime lengths": ({}, [23, 17, 2, 13]),
    "lengths up to the longest": ({"max_position_embeddings": 11}, list(range(1, 12))),
    "longer than the positions": ({"max_position_embeddings": 5, "position_biased_input": False}, [17, 6]),
    "token types, relu": ({"type_vocab_size": 3, "hidden_act": "relu", "pooler_hidden_act": "tanh"}, [8, 5]),
    "narrow embeddings": ({"embedding_size": 20, "type_vocab_size": 2}, [6, 9]),
    "narrow embeddings alone": ({"embedding_size": 20, "position_biased_input": False}, [6, 9]),
    "decoder of its own": ({"tie_word_embeddings": False, "hidden_act": "gelu_new"}, [6, 9]),
    "the newer head": ({"legacy": False}, [6, 9]),
}
UNUSED = ("cls.predictions.bias",)  # where the decoder has a bias of its own


def small_config(kind="Deberta", **changes):
    import transformers

    sizes = {"vocab_size": 61, "hidden_size": 39, "num_attention_heads": 3, "intermediate_size": 53}
    sizes |= {"num_hidden_layers": 2, "max_position_embeddings": 24, "relative_attention": True}
    config = getattr(transformers, f"{kind}Config")(**sizes | {"pos_att_type": ["c2p", "p2c"]} | changes)
    config.initializer_range = 0.02
    return config


def padded_batch(config, lengths, kind, seed=2):
    """A batch padded on one side, or with holes besides."""
    rng = np.random.default_rng(seed)
    batch = random_batch(config, lengths, rng, padding="left" if kind == "left" else "right")
    if kind == "holes":
        batch["attention_mask"][0, [2, 5, 6]] = 0
    if kind == "none":
        del batch["attention_mask"]
    return batch


@pytest.mark.parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(cpu_backend, task):
    config = small_config(num_labels=3)
    check(config, task, padded_batch(config, [11, 1, 7], "right"))


@pytest.mark.parity
@pytest.mark.parametrize("name", POSITIONS)
def test_positions(cpu_backend, name):
    config = small_config(**POSITIONS[name])
    check(config, "MaskedLM", padded_batch(config, [11, 1, 7], "right"))


@pytest.mark.parity
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_configurations(cpu_backend, name):
    changes, lengths = AWKWARD[name]
    config = small_config(**changes)
    task = "SequenceClassification" if "pooler_hidden_act" in changes else "MaskedLM"
    unwritten = UNUSED if "tie_word_embeddings" in changes else ()
    check(config, task, padded_batch(config, lengths, "right"), unwritten=unwritten)


@pytest.mark.parity
@pytest.mark.parametrize("task", ["MaskedLM", "QuestionAnswering"])
@pytest.mark.parametrize("kind", ["left", "holes"])
@pytest.mark.parametrize("relative", [True, False])
def test_padding(cpu_backend, task, kind, relative):
    added = kind == "holes"  # with padding on the left, transformers counts positions from the first column
    config = small_config(relative_attention=relative, position_biased_input=added)
    check(config, task, padded_batch(config, [11, 1, 7], kind))


@pytest.mark.parity
@pytest.mark.parametrize(
    "problem_type, num_labels",
    # None and one label: regression, of which transformers returns logits of another shape than without labels
    [(None, 3), ("regression", 1), ("regression", 3), ("multi_label_classification", 3)],
)
def test_losses_of_sequence_classification(problem_type, num_labels):
    config, rng = small_config(num_labels=num_labels, problem_type=problem_type), np.random.default_rng(3)
    labels = rng.random((3, num_labels)).astype(np.float32)
    if num_labels == 1:
        labels = 10 * labels[:, 0]
    with use_backend("numpy"):
        batch = padded_batch(config, [4, 9, 2], "right")
        check(config, "SequenceClassification", batch, targets={"labels": labels})


def test_labels_may_be_probabilities():
    """Rows of certainty are classes; the gradient is that of finite differences."""
    model = AutoModelForSequenceClassification.from_config(TINY | {"num_labels": 3}, dtype="float64")
    model, ids = drawn_anew(model), np.arange(8).reshape(2, 4)
    with use_backend("numpy"):
        certain = model(ids, labels=np.eye(3)[[2, 0]]).loss
        np.testing.assert_allclose(certain, model(ids, labels=[2, 0]).loss, rtol=1e-12)
        soft = np.array([[0.2, 0.5, 0.3], [0.9, 0.0, 0.3]])
        grad = value_and_grad(model)(ids, labels=soft)[1]["classifier.bias"]
        state = dict(model.state_dict())
        for index in range(3):
            ends = []
            for step in (1e-6, -1e-6):
                model.load_state_dict(state | {"classifier.bias": state["classifier.bias"] + step * np.eye(3)[index]})
                ends.append(model(ids, labels=soft).loss)
            np.testing.assert_allclose(grad[index], (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-9)


def test_backends_and_dtypes_agree():
    check_backends(lambda **options: AutoModelForMaskedLM.from_config(TINY, **options))


def test_padding_changes_nothing(cpu_backend):
    model, rng = drawn_anew(AutoModelForSequenceClassification.from_config(TINY)), np.random.default_rng(0)
    words = rng.integers(1, 40, (2, 6))
    plain = model(words).logits
    for first in (0, 3):
        padded, mask = np.zeros((2, 9), int), np.zeros((2, 9), int)
        padded[:, first : first + 6], mask[:, first : first + 6] = words, 1
        np.testing.assert_allclose(model(padded, mask).logits, plain, rtol=0, atol=1e-6)


def test_components(cpu_backend):
    """They add up to what the probabilities are the softmax of, and are zero where there is padding."""
    model, rng = drawn_anew(AutoModelForMaskedLM.from_config(TINY)), np.random.default_rng(0)
    ids, mask = rng.integers(1, 40, (2, 9)), np.ones((2, 9), int)
    mask[0, 6:] = mask[1, 3] = 0
    out = model(ids, mask, output_attention_components=True, output_attentions=True)
    np.testing.assert_allclose(out.logits, model(ids, mask).logits, rtol=0, atol=1e-5)
    assert list(out)[-1] == "attention_components" and len(out.attention_components) == 2
    both = (mask[:, None, :, None] * mask[:, None, None, :]).astype(bool)
    for layer, probabilities in zip(out.attention_components, out.attentions, strict=True):
        scores = sum(layer)
        assert all(np.abs(term).max() > 0.1 and not term[~np.broadcast_to(both, term.shape)].any() for term in layer)
        exponentials = np.where(both, np.exp(scores), 0)
        expected = exponentials / np.maximum(exponentials.sum(axis=-1, keepdims=True), 1e-30)
        np.testing.assert_allclose(probabilities, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("changes, terms", [({"pos_att_type": "p2c"}, 2), ({"relative_attention": False}, 1)])
def test_components_that_a_model_lacks(cpu_backend, changes, terms):
    out = AutoModel.from_config(TINY | changes)([[1, 2, 3]], output_attention_components=True)
    for layer in out.attention_components:
        assert layer.content_to_position is None and sum(term is not None for term in layer) == terms
        assert layer.content_to_content.shape == (1, 2, 3, 3)


def test_tables_of_positions_are_kept_until_parameters_change(cpu_backend):
    """In inference; while a tape records they are computed with it, and nothing is kept of that."""
    model, ids = drawn_anew(AutoModelForMaskedLM.from_config(TINY)), np.arange(14).reshape(2, 7)
    layer, positions = model.encoder.layers[1].attention, model.encoder.adapter.relative
    labels = np.where(ids % 3, ids, -100)
    _, grads = value_and_grad(model)(ids, labels=labels)
    assert (
        not layer._constants.at((layer.version, positions.version))
        and np.abs(grads["deberta.encoder.rel_embeddings.weight"]).max() > 1e-3
    )
    before = model(ids).logits
    kept = layer._constants.at((layer.version, positions.version))
    ((_, tables),) = kept.items()
    assert [table.shape for table in tables] == [(72,), (48, 2, 12), (48, 2, 12)]
    assert np.array_equal(model(ids).logits, before) and next(iter(kept.values())) is tables
    state = {name: array.copy() for name, array in model.state_dict().items()}
    state["deberta.encoder.rel_embeddings.weight"] *= 2
    model.load_state_dict(state)
    fresh = AutoModelForMaskedLM.from_config(TINY)
    fresh.load_state_dict(state)
    for _ in range(3):  # noted, recorded, run again
        assert np.array_equal(model(ids).logits, fresh(ids).logits)
    assert np.abs(model(ids).logits - before).max() > 1e-2


def test_a_program_holds_the_whole_encoder():
    model, ids = drawn_anew(AutoModel.from_config(TINY)), np.arange(14).reshape(2, 7)
    with use_backend("numba"):
        found = [model(ids).last_hidden_state for _ in range(3)]
    assert len(model.encoder._recordings.at(model.encoder.version)._kept) == 1
    with use_backend("numpy"):
        truth = model(ids).last_hidden_state
    for hidden in found:
        np.testing.assert_allclose(hidden, truth, rtol=0, atol=2e-5)


def test_gradients_of_padded_questions():
    """In float64 against finite differences: the loss reads outputs of padding, which attends to all alike."""
    model = AutoModelForQuestionAnswering.from_config(TINY | {"num_hidden_layers": 1}, dtype="float64")
    rng = np.random.default_rng(0)
    state = {name: rng.normal(0.0, 0.4, array.shape) for name, array in model.state_dict().items()}
    ids, mask = rng.integers(1, 40, (2, 6)), np.ones((2, 6), int)
    mask[0, 4:] = mask[1, 2] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "start_positions": [5, 1], "end_positions": [0, 2]}

    def loss(values):
        model.load_state_dict(values)
        return float(model(**batch).loss)

    with use_backend("numpy"):
        loss(state)
        _, grads = value_and_grad(model)(**batch)
        for name, array in state.items():
            way = rng.normal(0.0, 1.0, array.shape)
            ends = [loss(state | {name: array + step * way}) for step in (1e-5, -1e-5)]
            np.testing.assert_allclose((grads[name] * way).sum(), (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-8)


def test_old_files_load(tmp_path):
    copies = {
        "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY))
    check_spellings(model, tmp_path, prefix="deberta.", copies=copies)


@pytest.mark.parametrize("legacy", [True, False])
def test_either_name_of_the_head_loads(legacy, tmp_path):
    """Published files have the newer names, and configs that do not say so; the table of positions is not used."""
    model = drawn_anew(AutoModelForMaskedLM.from_config(TINY | {"position_biased_input": False, "legacy": legacy}))
    names = {"cls.predictions.transform.": "lm_predictions.lm_head.", "cls.predictions.": "lm_predictions.lm_head."}
    tensors = {"deberta.embeddings.position_embeddings.weight": np.zeros((24, 24), np.float32)}
    for name, array in model.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        tensors[name] = array
    assert "lm_predictions.lm_head.dense.weight" in tensors and "lm_predictions.lm_head.bias" in tensors
    check_loads(model, tmp_path, tensors | {"mask_predictions.dense.weight": np.zeros((24, 24), np.float32)})


def test_parameters():
    for config, parameters in ((BASE, 138_601_728), (BASE | LARGE, 405_163_008)):
        assert AutoModel(config).num_parameters() == parameters


def test_configs_that_are_refused():
    refused = {"talking_head": True, "pos_att_type": "c2p|p2p", "pooler_hidden_size": 23, "relative_attention": "yes"}
    refused |= {"max_relative_positions": 2.5, "is_decoder": True, "legacy": 1}
    check_refused(AutoModel, TINY, refused)
    assert AutoModel({"model_type": "deberta"}).spec.vocab_size == 50265
    assert AutoModel(BASE).spec.longest_sequence is None
    with pytest.raises(TypeError, match="unexpected argument 'output_attention_components'"):
        AutoModel.from_config(TINY | {"model_type": "bert"})([[1]], output_attention_components=True)
