"""XLNet against transformers: every head, both streams, memories, and what its configs vary."""

import functools
import json

import numpy as np
import pytest

import bertcore
from bertcore import use_backend
from bertcore.families.transfo_xl import adapter as recurrent
from tests.checkpoint.files import write_tensors
from tests.models.family_checks import check_backends, check_gradients, dtypes_with_tables
from tests.models.family_parity import assert_within, check, random_batch, random_model, run_torch
from tests.refusals import refuses

TASKS = (None, "CausalLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
SIZES = {"vocab_size": 61, "d_model": 78, "n_head": 2, "d_inner": 53, "n_layer": 2}
TINY = {"model_type": "xlnet", "vocab_size": 19, "d_model": 8, "n_head": 2, "d_inner": 7, "n_layer": 2}
TINY |= {"initializer_range": 0.3, "mem_len": 3}
IDS = np.array([[0, 3, 4, 5], [6, 7, 8, 9]])
MASK = np.array([[0, 1, 1, 1], [1, 1, 1, 1]])
TYPES = np.array([[3, 0, 1, 2], [0, 0, 1, 2]])


def small_config(**changes):
    import transformers

    return transformers.XLNetConfig(**SIZES | changes)


def two_streams(shape, predictions, rng):
    """A random order of each sequence, in which tokens see those before them, and the tokens to be predicted, which
    come last: a query that sees nothing has other gradients in transformers, through scores that do not count."""
    sequences, length = shape
    order = rng.permuted(np.tile(np.arange(length), (sequences, 1)), axis=1)
    perm_mask = (order[:, :, None] <= order[:, None, :]).astype(float)
    target_mapping = np.zeros((sequences, predictions, length))
    for row, chosen in zip(target_mapping, order, strict=True):
        row[np.arange(predictions), np.argsort(chosen)[-predictions:]] = 1
    return {"perm_mask": perm_mask, "target_mapping": target_mapping}


@pytest.fixture
def exact_sinusoids(monkeypatch):
    """transformers encodes positions in float32 whatever the model's dtype; the truth is float64."""
    import torch
    from transformers.models.xlnet.modeling_xlnet import XLNetModel

    def encode(self, qlen, klen, bsz=None, device=None):
        distances = torch.arange(klen, -qlen if self.attn_type == "bi" else -1, -1.0, dtype=torch.float64)
        if self.clamp_len > 0:
            distances = distances.clamp(-self.clamp_len, self.clamp_len)
        frequencies = 10000 ** -(torch.arange(0, self.d_model, 2, dtype=torch.float64) / self.d_model)
        halves = [distances, -distances] if self.bi_data else [distances]
        parts = [self.positional_embedding(half, frequencies, bsz // len(halves)) for half in halves]
        return torch.cat(parts, dim=1).to(self.dtype)

    monkeypatch.setattr(XLNetModel, "relative_positional_encoding", encode)


def lengths_for(config, lengths):
    """transformers fails where one-way attention meets a mask and more than one sequence."""
    return lengths[:1] if config.attn_type == "uni" else lengths


parity = pytest.mark.usefixtures("exact_sinusoids")


@pytest.mark.parity
@parity
@pytest.mark.parametrize("task", TASKS)
def test_heads(task):
    config = small_config(num_labels=3)
    padding = "right" if task in (None, "TokenClassification") else "left"  # transformers summarises the last column
    batch = random_batch(config, [11, 1, 7], np.random.default_rng(1), padding=padding)
    batch["token_type_ids"] = np.random.default_rng(2).integers(0, 4, batch["input_ids"].shape)
    check(config, task, batch)


VARIATIONS = {
    "one head of 160": {"n_head": 1, "d_model": 160},
    "four heads of 13": {"n_head": 4, "d_model": 52},
    "one way": {"attn_type": "uni"},
    "one way, same length": {"attn_type": "uni", "same_length": True},
    "clamped": {"clamp_len": 3},
    "tied decoder": {"tie_word_embeddings": True},
    "untied decoder": {"tie_word_embeddings": False},
    "relu": {"ff_activation": "relu"},
    "gelu_new, another eps": {"ff_activation": "gelu_new", "layer_norm_eps": 1e-5},
    "untie_r": {"untie_r": False},
    "halves of a batch run backwards": {"bi_data": True},
    "halves run backwards, clamped": {"bi_data": True, "clamp_len": 5},
}


@pytest.mark.parity
@parity
@pytest.mark.parametrize("name", VARIATIONS)
@pytest.mark.parametrize("streams", [1, 2])
def test_variations(name, streams):
    config, rng = small_config(**VARIATIONS[name]), np.random.default_rng(3)
    batch = random_batch(config, lengths_for(config, [9, 13, 6, 2]), rng, padding="left")
    targets = None
    if streams == 2:
        batch |= two_streams(batch["input_ids"].shape, 5, rng)
        if config.attn_type == "uni":
            del batch["perm_mask"]
        targets = {"labels": rng.integers(0, 61, (len(batch["input_ids"]), 5))}
    check(config, "CausalLM", batch, targets=targets, seed=4)


@pytest.mark.parity
@parity
@pytest.mark.parametrize("summary", [
    {"summary_type": "first"}, {"summary_type": "mean"}, {"summary_type": "cls_index"}, {"summary_use_proj": False},
    {"summary_activation": "gelu"},
])  # fmt: skip
def test_summaries(summary):
    config = small_config(num_labels=3, **summary)
    check(config, "SequenceClassification", random_batch(config, [6, 6], np.random.default_rng(5)))


@pytest.mark.parity
@parity
@pytest.mark.parametrize("length", [1, 2, 40])
def test_lengths(length):
    config, rng = small_config(), np.random.default_rng(length)
    batch = random_batch(config, [length, max(length - 3, 1)], rng) | two_streams((2, length), 1, rng)
    if length == 1:  # the only token is not seen by the query stream: both models then weigh all keys the same
        del batch["perm_mask"]
    check(config, "CausalLM", batch, targets={"labels": rng.integers(0, 61, (2, 1))})


@pytest.mark.parity
@parity
def test_target_mapping_of_any_numbers():
    config, rng = small_config(), np.random.default_rng(7)
    batch = random_batch(config, [7, 5], rng) | {"target_mapping": rng.normal(size=(2, 3, 7))}
    check(config, None, batch)
    check(config, "SequenceClassification", batch, targets={"labels": rng.integers(0, 2, 2)})


@pytest.mark.parity
@parity
@pytest.mark.parametrize("masked", ["attention_mask", "input_mask"])
def test_holes_in_the_mask(cpu_backend, masked):
    config, rng = small_config(), np.random.default_rng(8)
    batch = random_batch(config, [9, 9], rng)
    batch["attention_mask"] = np.array([[0, 1, 0, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1, 0, 1, 1, 0, 0]])
    batch["token_type_ids"] = rng.integers(0, 3, (2, 9))
    check(config, None, batch)
    model = bertcore.AutoModel.from_config(config.to_dict())
    mask = batch.pop("attention_mask")
    expected = model(**batch, attention_mask=mask).last_hidden_state
    np.testing.assert_array_equal(model(**batch, input_mask=1 - mask).last_hidden_state, expected)


@pytest.mark.parity
@parity
@pytest.mark.parametrize("name", ["one way", "one way, same length", "clamped", "halves of a batch run backwards"])
@pytest.mark.parametrize("streams", [1, 2])
def test_a_memory_is_seen(name, streams):
    config, rng = small_config(**VARIATIONS[name]), np.random.default_rng(9)
    batch = random_batch(config, lengths_for(config, [9, 6]), rng)
    count = len(batch["input_ids"])
    batch |= {"mems": rng.normal(size=(2, 5, count, 78)), "token_type_ids": rng.integers(0, 3, (count, 9))}
    targets = {"labels": np.where(batch["attention_mask"], rng.integers(0, 61, (count, 9)), -100)}
    if streams == 2:
        batch |= two_streams((count, 9), 4, rng)
        targets = {"labels": rng.integers(0, 61, (count, 4))}
    check(config, "CausalLM", batch, targets=targets)


@pytest.mark.parity
@parity
@pytest.mark.parametrize(
    "changes", [{"mem_len": 4}, {"mem_len": None}, {"mem_len": 20, "reuse_len": 3}, {"mem_len": 0}]
)
def test_segments_one_after_the_other(cpu_backend, changes, tmp_path):
    config, rng = small_config(**changes), np.random.default_rng(10)
    theirs = random_model(config, None, rng)
    theirs.save_pretrained(tmp_path)
    ours, mems, truth_mems = bertcore.AutoModel.from_pretrained(tmp_path), None, {}
    for lengths in ([5, 7], [4, 4], [3, 1]):
        batch = random_batch(config, lengths, rng)
        out = ours(**batch, mems=mems, use_mems=True)
        given = {"mems": np.stack([truth_mems[f"mems {layer}"] for layer in range(2)])} if truth_mems else {}
        truth, single = (run_torch(theirs, batch | given, {}, double=double)[0] for double in (True, False))
        for layer, memory in enumerate(out.mems):
            key = f"mems {layer}"
            assert_within(memory, truth[key], single[key], 2e-5, key)
        mems, truth_mems = out.mems, truth


def tiny(task="Model", **changes):
    name = "AutoModel" if task == "Model" else f"AutoModelFor{task}"
    return getattr(bertcore, name).from_config(TINY | changes)


def prediction():
    return {"perm_mask": np.triu(np.ones((2, 4, 4))), "target_mapping": np.eye(4)[None, [1, 3]].repeat(2, axis=0)}


@dtypes_with_tables
@pytest.mark.parametrize("kind", ["words", "predictions", "a memory"])
def test_backends_and_dtypes_agree(kind, dtypes):
    rng, inputs = np.random.default_rng(0), {"token_type_ids": np.tile([0, 0, 1, 1, 1, 2, 3], (3, 1))}
    if kind == "predictions":
        inputs |= two_streams((3, 7), 2, rng)
    if kind == "a memory":
        inputs["mems"] = rng.normal(size=(2, 5, 3, 48)).astype(np.float32)
    config = TINY | {"d_model": 48, "n_head": 3, "d_inner": 65, "vocab_size": 61}
    check_backends(functools.partial(bertcore.AutoModelForCausalLM.from_config, config), dtypes=dtypes, **inputs)


def test_a_memory_stands_for_the_tokens_it_was_made_of():
    model = tiny(attn_type="uni", mem_len=None)
    with use_backend("numpy"):
        whole = model(IDS)
        first = model(IDS[:, :2])
        second = model(IDS[:, 2:], mems=first.mems)
    np.testing.assert_allclose(second.last_hidden_state, whole.last_hidden_state[:, 2:], atol=1e-6)
    assert [memory.shape for memory in second.mems] == [(4, 2, 8)] * 2
    np.testing.assert_allclose(second.mems[1], whole.mems[1], atol=1e-6)


def test_kept_position_keys_have_a_bound_in_bytes(monkeypatch):
    model, ids = tiny(), np.ones((1, 90), int)

    def kept_with(most):
        monkeypatch.setattr(recurrent, "MOST_KEPT", most)
        model.encoder.adapter.position_keys.clear()
        for length in (90, 40, 20):
            model(ids[:, :length])
        return [sum(keys.nbytes for _, keys in made.values()) for made in model.encoder.adapter.position_keys.values()]

    with use_backend("numpy"):
        sizes = kept_with(1 << 20)
        assert len(sizes) == 3
        assert kept_with(sum(sizes)) == sizes
        assert kept_with(sum(sizes) - 1) == sizes[1:]
        assert kept_with(0) == sizes[2:]  # the last one stays


def test_gradients_are_those_of_finite_differences():
    model = bertcore.AutoModelForCausalLM.from_config(TINY, dtype="float64")
    mems = np.random.default_rng(1).normal(size=(2, 1, 2, 8))
    batch = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES, "mems": mems, "labels": IDS[:, :2]}
    check_gradients(model, **batch, **prediction())


def test_a_query_that_sees_nothing_weighs_all_keys_the_same():
    model = tiny()
    hidden = {"perm_mask": np.ones((2, 4, 4)), "target_mapping": np.eye(4)[None, :2].repeat(2, axis=0)}
    with use_backend("numpy"):
        out = model(IDS, **hidden, output_attentions=True)
    for content, queries in out.attentions:
        np.testing.assert_allclose(content, np.broadcast_to(np.eye(4), (2, 2, 4, 4)))
        np.testing.assert_allclose(queries, 0.25)


def test_published_names_load(tmp_path):
    """A file as of 2019: lm_loss.weight beside the words, a head of another task."""
    model = tiny("CausalLM")
    tensors = {name: np.array(array) for name, array in model.state_dict().items()}
    tensors["lm_loss.weight"] = tensors["transformer.word_embedding.weight"]
    write_tensors(tmp_path / "model.safetensors", tensors)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    again = bertcore.AutoModelForCausalLM.from_pretrained(tmp_path)
    np.testing.assert_array_equal(again(IDS).logits, model(IDS).logits)
    encoder = bertcore.AutoModel.from_pretrained(tmp_path)
    assert set(encoder.state_dict()) == {name.removeprefix("transformer.") for name in tensors if name[:3] == "tra"}


@pytest.mark.parametrize(("changes", "key"), [
    ({"d_model": 9, "n_head": 3}, "d_model"),
    ({"attn_type": "both"}, "attn_type"),
    ({"mem_len": -1}, "mem_len"),
    ({"clamp_len": 2.5}, "clamp_len"),
    ({"summary_type": "attn"}, "summary_type"),
    ({"ff_activation": "mish"}, "ff_activation"),
])  # fmt: skip
def test_config_errors_name_the_key(changes, key):
    refuses(ValueError, key, bertcore.AutoModelForSequenceClassification, TINY | changes)


@pytest.mark.parametrize(("inputs", "message"), [
    ({"perm_mask": np.ones((2, 4))}, r"perm_mask has shape \(2, 4\), expected \(2, 4, 4\)"),
    ({"target_mapping": np.ones((2, 3, 5))}, r"target_mapping has shape \(2, 3, 5\), expected \(2, predictions, 4\)"),
    ({"mems": [np.ones((3, 2, 8))]}, "mems has 1 entries, expected 2"),
    ({"mems": np.ones((2, 3, 1, 8))}, r"mems\[0\] has shape"),
    ({"input_mask": MASK, "attention_mask": MASK}, "both given"),
    ({"input_mask": 2 * MASK}, "input_mask has numbers other than 0 and 1"),
    ({"use_mems": 3}, "use_mems is 3"),
    ({"mems": {3, 4}}, "mems is set, expected an array for each layer"),
    ({"mems": np.ones((2, 3, 2, 8), int)}, r"mems\[0\] holds int64, expected floating-point numbers"),
    ({"perm_mask": np.full((2, 4, 4), "a")}, "perm_mask holds <U1, expected numbers"),
])  # fmt: skip
def test_input_errors_name_the_argument(inputs, message):
    refuses((TypeError, ValueError), message, tiny(), IDS, **inputs)


def test_both_directions_need_pairs_of_sequences():
    refuses(ValueError, "bi_data is true, .* 1 sequences, the longest of 4", tiny(bi_data=True), IDS[:1])
