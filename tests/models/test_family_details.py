"""Details of single families: ALBERT, DistilBERT, ELECTRA, EuroBERT, Jina BERT, MobileBERT, NeoBERT; modules' names."""

import numpy as np
import pytest

import bertcore
from bertcore import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForPreTraining,
    load_model,
    use_backend,
)
from bertcore.checkpoint import CheckpointError
from bertcore.tasks.low_precision import quantize
from tests.models.family_checks import check_loads, drawn_anew
from tests.models.family_parity import random_model
from tests.models.family_table import FAMILIES
from tests.refusals import refuses

ALBERT = FAMILIES["albert"].with_changes(FAMILIES["albert"].everything)
DISTILBERT = FAMILIES["distilbert"].config
ELECTRA = FAMILIES["electra"].config
EUROBERT = FAMILIES["eurobert"].config
MOBILEBERT = FAMILIES["mobilebert"].config
LAYER_NORM = {"normalization_type": "layer_norm"}


def test_layers_of_a_group_are_one():
    layers = AutoModel(ALBERT).encoder.layers  # 3 passes through 2 groups of 2 layers
    assert layers[0:2] == layers[2:4] and layers[0] is not layers[1]
    assert len(layers) == 6 and len({id(layer) for layer in layers}) == 4
    assert "encoder.albert_layer_groups.1.albert_layers.1.ffn.weight" in AutoModel(ALBERT).expected_tensors()


LATER = ("nomic_bert", "gte", "jina_embeddings_v3")


@pytest.mark.parametrize("kind", [AutoModel, AutoModelForMaskedLM, bertcore.AutoModelForTokenClassification])
@pytest.mark.parametrize("name", LATER)
def test_names_of_transformers_own_modules(name, kind, tmp_path):
    """Files saved with save_original_format=False: query, key and value, and a gate, are tensors of their own."""
    model, tensors = drawn_anew(kind.from_config(FAMILIES[name].config)), {}
    for tensor, array in model.state_dict().items():
        names = [f".{tensor}"]
        for own, published in model.family.name_rules.modules:
            if published in names[0]:
                names = [names[0].replace(published, part) for part in ([own] if isinstance(own, str) else own)]
        tensors |= {part[1:]: piece for part, piece in zip(names, np.split(array, len(names)), strict=True)}
    assert len(tensors) > len(model.state_dict())
    check_loads(model, tmp_path, tensors)
    if kind is AutoModel:
        quantize(tmp_path, tmp_path / "int8", "int8")
        assert AutoModel.from_pretrained(tmp_path / "int8").dtype == "int8"
    left_out = next(part for part in tensors if "k_proj" in part)
    with pytest.raises(CheckpointError, match=r"expected \(108, 36\), found \(72, 36\)"):
        check_loads(model, tmp_path, {part: array for part, array in tensors.items() if part != left_out})


@pytest.mark.parity
@pytest.mark.parametrize("task", [None, "MaskedLM", "SequenceClassification"])
@pytest.mark.parametrize("name", LATER)
def test_files_of_transformers_own_modules(name, task, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = random_model(transformers.AutoConfig.for_model(**FAMILIES[name].config), task, np.random.default_rng(1))
    theirs.save_pretrained(tmp_path, save_original_format=False)
    ours = getattr(bertcore, f"AutoModelFor{task}" if task else "AutoModel").from_pretrained(tmp_path)
    words = np.random.default_rng(0).integers(2, 40, (2, 7))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(words))[0].numpy()
    np.testing.assert_allclose(ours(words)[0], expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_targets_do_not_change_the_scores_of_left_padded_texts():
    model = drawn_anew(bertcore.AutoModelForQuestionAnswering.from_config(DISTILBERT))
    words = np.random.default_rng(0).integers(1, 40, (2, 6))
    padded = np.concatenate([np.zeros((2, 3), int), words], axis=1)
    targets = {"start_positions": [4, 3], "end_positions": [5, 8]}
    with use_backend("numpy"):
        expected, found = model(words), model(padded, padded > 0)
        compared = model(padded, padded > 0, **targets)  # padding stays: the loss is over all columns
    for name in ("start_logits", "end_logits"):
        np.testing.assert_allclose(found[name][:, 3:], expected[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(compared[name], found[name], rtol=1e-5, atol=1e-6)


def test_keys_of_bert_stand_for_its_own():
    keys = {"dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers"}
    renamed = {keys.get(key, key): value for key, value in DISTILBERT.items()}
    assert AutoModel(renamed).spec == AutoModel(DISTILBERT).spec
    assert AutoModel(DISTILBERT | dict.fromkeys(keys.values(), 7)).spec == AutoModel(DISTILBERT).spec
    # Two keys that other families have and this one has not
    assert AutoModel(DISTILBERT | {"layer_norm_eps": 0.5, "type_vocab_size": 2}).spec == AutoModel(DISTILBERT).spec


@pytest.mark.parametrize("source", ["first", "last", "mean"])
def test_a_summary_leaves_padding_out(source):
    model = drawn_anew(AutoModelForMultipleChoice.from_config(ELECTRA | {"summary_type": source}))
    words = np.random.default_rng(0).integers(1, 40, (1, 2, 6))
    padded = np.concatenate([words, np.zeros((1, 2, 3), int)], axis=2)
    with use_backend("numpy"):
        found, expected = model(padded, np.where(padded, 1, 0)).logits, model(words).logits
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.ptp(expected) > 1e-3


def test_the_encoder_of_either_loads(tmp_path):
    for kind in (AutoModelForMaskedLM, AutoModelForPreTraining):
        whole = drawn_anew(kind.from_config(ELECTRA)).state_dict()
        encoder = AutoModel.from_config(ELECTRA)
        names = encoder.state_dict()
        encoder.load_state_dict({name: whole[f"electra.{name}"] for name in names})
        check_loads(encoder, tmp_path, whole)


def test_published_configs_of_eurobert():
    """Published configs write rotary positions as before transformers 5."""
    old = AutoModel(EUROBERT | {"rope_theta": 250000, "rope_scaling": None, "clf_pooling": "late", "pretraining_tp": 1})
    new = AutoModel(EUROBERT | {"rope_parameters": {"rope_theta": 250000.0, "rope_type": "default"}})
    assert old.spec == new.spec and old.spec.layers[0].rotary.theta == 250000


def test_two_norms_have_the_published_codes_own_epsilon():
    """At states of ordinary size the effect of this epsilon is below rounding."""
    encoder = AutoModel(MOBILEBERT | LAYER_NORM | {"layer_norm_eps": 0.25}).encoder
    first, _, last = encoder.layers[0].feed_forwards
    assert encoder.embeddings.norm.eps == last.norm.eps == 1e-5
    assert first.norm.eps == encoder.layers[0].out.norm.eps == encoder.layers[0].attention.norm.eps == 0.25


REFUSED = [
    (EUROBERT, {"num_key_value_heads": 3}, "num_attention_heads is 4, expected a multiple of num_key_value_heads 3"),
    (EUROBERT, {"rope_scaling": {"rope_type": "yarn"}}, r"rope_scaling\.rope_type is 'yarn'"),
    (MOBILEBERT, {"key_query_shared_bottleneck": False}, "intra_bottleneck_size is 26, expected 39"),
    (MOBILEBERT, {"intra_bottleneck_size": 15}, "intra_bottleneck_size is 15, expected a multiple of num_attention_he"),
]


@pytest.mark.parametrize("config, changes, message", REFUSED)
def test_configs_that_are_refused(config, changes, message):
    refuses(ValueError, message, AutoModel, config | changes)


@pytest.mark.parametrize("task", ["", "ForMaskedLM", "ForSequenceClassification"])
def test_bert_hash_is_bert_with_a_table_of_products(cpu_backend, task):
    """Its narrow table times its map, plus the map's bias, is a table of words."""
    config, kind = FAMILIES["bert_hash"].config, getattr(bertcore, f"AutoModel{task}")
    model = drawn_anew(kind.from_config(config))
    state, prefix = dict(model.state_dict()), "bert." if task else ""
    table, weight, bias = (
        state.pop(f"{prefix}embeddings.word_embeddings.{part}")
        for part in ("embeddings.weight", "projections.weight", "projections.bias")
    )
    state[f"{prefix}embeddings.word_embeddings.weight"] = table @ weight.T + bias
    bert = kind.from_config(config | {"model_type": "bert", "tie_word_embeddings": False})
    bert.load_state_dict(state)
    ids, mask = np.random.default_rng(0).integers(1, 60, (2, 9)), np.arange(9) < np.array([[9], [4]])
    found, expected = (each(ids, mask)[0] for each in (model, bert))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["jina_bert", "jina_bert_code"])
def test_programs_serve_other_lengths_of_as_many_tokens(name):
    """And passes with holes, which count as places."""
    model = drawn_anew(AutoModel.from_config(FAMILIES[name].config))
    ids = np.random.default_rng(1).integers(1, 40, (2, 15))
    for lengths in ([8, 8], [8, 8], [8, 8], [15, 1], [3, 13], None):
        mask = ids % 3 > 0 if lengths is None else np.arange(15) < np.array(lengths)[:, None]
        with use_backend("numpy"):
            truth = model(ids, mask).last_hidden_state
        with use_backend("numba"):
            np.testing.assert_allclose(model(ids, mask).last_hidden_state, truth, atol=1e-5 * np.abs(truth).max())


NEOBERT = FAMILIES["neobert"].config
PUBLISHED = NEOBERT | {
    "auto_map": {"AutoConfig": "model.NeoBERTConfig", "AutoModel": "model.NeoBERT",
                 "AutoModelForMaskedLM": "model.NeoBERTLMHead"},
    "architectures": ["NeoBERTLMHead"], "dim_head": 12,
}  # fmt: skip


def test_published_configs_and_names_of_neobert(tmp_path):
    model = drawn_anew(AutoModelForMaskedLM.from_config(PUBLISHED))
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert type(again) is AutoModelForMaskedLM and again.config["architectures"] == ["NeoBERTLMHead"]
    with use_backend("numpy"):
        out, state = model([[5, 9, 8]], output_hidden_states=True), model.state_dict()
        np.testing.assert_array_equal(again([[5, 9, 8]]).logits, out.logits)
    expected = out.hidden_states[-1] @ state["decoder.weight"].T + state["decoder.bias"]
    np.testing.assert_allclose(out.logits, expected, rtol=1e-4, atol=1e-4)
    AutoModel.from_pretrained(tmp_path).save_pretrained(tmp_path / "encoder")
    assert type(load_model(tmp_path / "encoder")) is AutoModel
    assert bertcore.AutoModelForSequenceClassification.from_config(PUBLISHED)([[5, 9]]).logits.shape == (1, 3)
    other = PUBLISHED | {"model_type": "other"}
    refuses(ValueError, "config: model_type is 'other', supported is 'neobert'", AutoModel.from_config, other)
    odd = NEOBERT | {"hidden_size": 15, "num_attention_heads": 3}
    refuses(ValueError, "config: heads are 5 wide, expected an even width", AutoModel.from_config, odd)


@pytest.mark.parametrize(("stated", "width"), [(3072, 2048), (1000, 672), (1, 8)])
def test_two_thirds_of_the_stated_width_in_eights(stated, width):
    assert AutoModel(NEOBERT | {"intermediate_size": stated}).spec.layers[0].intermediate_size == width
