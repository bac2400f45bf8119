"""GPT-2 with every head, and its generation."""

from dataclasses import replace

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, use_backend
from bertcore.checkpoint import save_checkpoint
from bertcore.kernels import _cuda
from bertcore.kernels.linear import LINEAR
from bertcore.models import generation
from bertcore.nn.rotary import RotarySpec
from bertcore.passes import Pass
from tests import cuda_emulator
from tests.models.family_parity import check, random_batch, random_model
from tests.models.family_table import FAMILIES
from tests.refusals import refuses
from tests.tiny_families import tiny_config

GEMMA3 = FAMILIES["gemma3_text"].config

CONFIG = FAMILIES["gpt2"].config
IDS = np.array([[4, 8, 15, 16, 23, 42, 7], [60, 60, 3, 1, 4, 1, 5], [60, 60, 60, 60, 60, 60, 9]])
MASK = (IDS != 60).astype(np.int64)


def small_config(**changes):
    import transformers

    return transformers.AutoConfig.for_model(**CONFIG | changes)


@pytest.mark.parity
def test_token_types_are_words():
    batch = random_batch(small_config(), [5, 3], np.random.default_rng(3))
    types = np.random.default_rng(4).integers(0, 61, batch["input_ids"].shape)
    check(small_config(), "CausalLM", batch | {"token_type_ids": types})


@pytest.mark.parity
@pytest.mark.parametrize("task", [None, "CausalLM", "SequenceClassification"])
def test_left_padding_with_positions(task):
    """Transformers counts positions from the first column unless position_ids are given."""
    batch = random_batch(small_config(), [5, 3, 9], np.random.default_rng(3), padding="left")
    batch["position_ids"] = np.maximum(batch["attention_mask"].cumsum(axis=1) - 1, 0)
    targets = None
    if task == "CausalLM":  # the first word: transformers compares it with what padding says
        targets = {"labels": np.where(batch["position_ids"] > 0, batch["input_ids"], -100)}
    check(small_config(), task, batch, targets=targets)


@pytest.mark.parity
def test_without_a_padding_word():
    config = small_config(pad_token_id=None)
    batch = {"input_ids": np.array([[5, 3, 9]]), "attention_mask": np.ones((1, 3), np.int64)}
    check(config, "SequenceClassification", batch)


@pytest.mark.parity
@pytest.mark.parametrize("padding_word", [60, None])
def test_generation(cpu_backend, tmp_path, padding_word):
    import torch

    config = small_config(pad_token_id=padding_word, use_cache=True, tie_word_embeddings=False)
    theirs = random_model(config, "CausalLM", np.random.default_rng(5)).float()
    with torch.no_grad():  # else one word again and again
        theirs.transformer.ln_f.bias.zero_()
        for table in (theirs.transformer.wte, theirs.transformer.wpe):
            table.weight.mul_(3)
    theirs.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    given = {"input_ids": torch.tensor(IDS), "attention_mask": torch.tensor(MASK)}
    free = model.generate(IDS, MASK, max_new_tokens=17, eos_token_id=[])
    assert free.shape == (3, 24) and len(np.unique(free[:, 7:])) > 8
    for ends in (59, int(free[1, 9]), free[[0, 1, 2], [9, 14, 11]].tolist()):
        options = {"max_new_tokens": 17, "eos_token_id": ends}
        expected = theirs.generate(**given, do_sample=False, **options).numpy()
        np.testing.assert_array_equal(model.generate(IDS, MASK, **options), expected)
        if padding_word is not None:
            np.testing.assert_array_equal(model.generate(IDS, **options), expected)  # the mask is found
        options |= {"pad_token_id": 7, "do_sample": False}
        np.testing.assert_array_equal(model.generate(IDS, MASK, **options), theirs.generate(**given, **options))
    assert expected.shape[1] < 24  # all have ended


@pytest.mark.parity
@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0])
def test_beams(tmp_path, penalty):
    import torch

    config = small_config(use_cache=True, tie_word_embeddings=False)
    theirs = random_model(config, "CausalLM", np.random.default_rng(5)).float()
    theirs.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    given = {"input_ids": torch.tensor(IDS), "attention_mask": torch.tensor(MASK)}
    free = model.generate(IDS, MASK, max_new_tokens=12, eos_token_id=[], num_beams=3)
    for ends in (59, int(free[1, 9]), free[[0, 1, 2], [9, 14, 11]].tolist()):
        for beams, returned in ((2, 1), (3, 3), (5, 2)):
            options = {"max_new_tokens": 12, "eos_token_id": ends, "num_beams": beams}
            options |= {"num_return_sequences": returned, "length_penalty": penalty}
            expected = theirs.generate(**given, do_sample=False, **options).numpy()
            np.testing.assert_array_equal(model.generate(IDS, MASK, **options), expected)


def test_beams_are_the_best_of_all_texts():
    model = made(vocab_size=7, pad_token_id=6, eos_token_id=5)
    with use_backend("numpy"):
        found = model.generate([[1, 2]], max_new_tokens=3, eos_token_id=[], num_beams=49, num_return_sequences=5)
        every = np.array([[1, 2, a, b, c] for a in range(7) for b in range(7) for c in range(7)])
        logits = model(every).logits.astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    sums = sum(np.take_along_axis(logs[:, 1 + i], every[:, 2 + i, None], axis=1)[:, 0] for i in range(3))
    np.testing.assert_array_equal(found, every[np.argsort(-sums)[:5]])


def test_drawn_words_have_the_models_probabilities():
    model, count = made(), 1000
    with use_backend("numpy"):
        options = {"max_new_tokens": 1, "do_sample": True, "num_return_sequences": count, "seed": 3}
        logits = model([[4, 8, 15]]).logits[0, -1].astype(np.float64)
        for extra in ({}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.6}, {"top_k": 9, "top_p": 0.8}):
            words = model.generate([[4, 8, 15]], **options, **extra)[:, 3]
            np.testing.assert_array_equal(words, model.generate([[4, 8, 15]], **options, **extra)[:, 3])
            scores = logits / extra.get("temperature", 1.0)
            order = np.argsort(-scores)[: extra.get("top_k", 61)]
            shares = np.exp(scores[order]) / np.exp(scores[order]).sum()
            enough = int(np.searchsorted(np.cumsum(shares), extra.get("top_p", 1.0))) + 1
            expected = np.zeros(61)
            expected[order[:enough]] = shares[:enough] / shares[:enough].sum()
            counts = np.bincount(words, minlength=61)
            assert not counts[expected == 0].any()
            deviation = np.sqrt(count * expected * (1 - expected)) + 1e-9
            assert (np.abs(counts - count * expected) < 5 * deviation + 1).all()


def made(kind=AutoModelForCausalLM, dtype="float32", **changes):
    """A model whose weights are large enough for what they do to be seen."""
    return kind.from_config(CONFIG | {"initializer_range": 0.3} | changes, dtype=dtype)


def test_what_padding_or_scales_do_not_change(cpu_backend):
    model, upcast = made(), made(reorder_and_upcast_attn=True)
    logits = model(IDS, MASK).logits
    np.testing.assert_array_equal(upcast(IDS, MASK).logits, logits)
    np.testing.assert_allclose(logits[1, 2:], model(IDS[1:2, 2:]).logits[0], atol=1e-5 * np.abs(logits).max())


@pytest.mark.slow  # 18 s: the emulator compiles each kernel
def test_generation_on_the_emulated_gpu():
    if cuda_emulator.unavailable_reason() is not None:
        pytest.skip("no emulator")
    model = made(tie_word_embeddings=False, n_embd=24)
    with use_backend("numpy"):
        expected = model.generate(IDS, MASK, max_new_tokens=4, eos_token_id=[])
    with _cuda.use_runtime(cuda_emulator.Emulator(cuda_emulator.SCHEDULES[0])), use_backend("cupy"):
        found = model.generate(IDS, MASK, max_new_tokens=4, eos_token_id=[])
    np.testing.assert_array_equal(found, expected)


def test_generation_is_that_of_the_whole_text_each_time(cpu_backend):
    model = made(tie_word_embeddings=False)
    words = model.generate(IDS, MASK, max_new_tokens=10, eos_token_id=[])
    assert words.shape == (3, 17) and len(np.unique(words[:, 7:])) > 6
    for count in range(10):
        so_far = np.concatenate([MASK, np.ones((3, count), np.int64)], axis=1)
        logits = model(words[:, : 7 + count], so_far).logits
        np.testing.assert_array_equal(logits[:, -1].argmax(axis=1), words[:, 7 + count])


def test_generation_costs_the_new_tokens_alone(monkeypatch):
    rows, forward = [], LINEAR.forward

    def noted(backend, input, *args, **options):
        rows.append(len(input))
        return forward(backend, input, *args, **options)

    monkeypatch.setattr(LINEAR, "forward", noted)
    with use_backend("numpy"):
        made(n_layer=1).generate(IDS, MASK, max_new_tokens=3, eos_token_id=[])
    assert rows == 4 * [13] + [3] + 2 * 5 * [3]


def test_texts_end(cpu_backend):
    model = made(tie_word_embeddings=False)
    free = model.generate(IDS, MASK, max_new_tokens=10, eos_token_id=[])
    end = int(free[1, 9])
    found = model.generate(IDS, MASK, max_new_tokens=10, eos_token_id=end)
    for row, expected in zip(found, free, strict=True):
        new = expected[7:].tolist()
        kept = new.index(end) + 1 if end in new else len(new)
        np.testing.assert_array_equal(row[7:], (new[:kept] + [60] * 10)[: found.shape[1] - 7])
    by_config = made(tie_word_embeddings=False, eos_token_id=end)
    np.testing.assert_array_equal(by_config.generate(IDS, MASK, max_new_tokens=10), found)


def test_a_config_that_names_no_end_means_gpt2s():
    """The default is as in transformers; the last word of a larger vocabulary is an added token."""
    config = {key: value for key, value in CONFIG.items() if key != "eos_token_id"}
    assert generation.end_tokens(AutoModelForCausalLM(config), None) == [50256]
    assert generation.end_tokens(AutoModelForCausalLM(config | {"eos_token_id": None}), None) == []


@pytest.mark.parametrize(("options", "message"), [
    ({"max_new_tokens": 0}, "max_new_tokens is 0, expected a positive integer"),
    ({"max_new_tokens": 19}, "max_new_tokens is 19 after 7 tokens, the model has 24 positions"),
    ({"attention_mask": 0 * MASK}, r"input_ids\[0\] has no real token"),
    ({"eos_token_id": [1.5]}, "eos_token_id holds 1.5"),
    ({"pad_token_id": "x"}, "pad_token_id is 'x', expected an integer"),
    ({"do_sample": 1}, "do_sample is 1, expected True or False"),
    ({"temperature": 0}, "temperature is 0, expected a finite number above 0"),
    ({"top_p": 1.5}, "top_p is 1.5, expected at most 1"),
    ({"top_k": 0}, "top_k is 0, expected a positive integer"),
    ({"num_beams": 2, "do_sample": True}, "num_beams is 2 and do_sample True"),
    ({"num_return_sequences": 2}, "num_return_sequences is 2, expected at most num_beams"),
    *(({"do_sample": True, "seed": seed}, "seed is ") for seed in (-1, 1.5, "x", True)),
])  # fmt: skip
def test_generation_that_is_refused(options, message):
    with use_backend("numpy"), pytest.raises((TypeError, ValueError), match=message):
        made().generate(IDS, **options)


XLNET, ONE_WAY = tiny_config("xlnet-base-cased"), {"use_bidirectional_attention": False}
WITHOUT_GENERATION = [
    (XLNET | {"attn_type": "uni"}, "'xlnet' cannot generate: their layers cannot cache"),
    (XLNET, "'xlnet' cannot generate: their tokens attend to later ones"),
    (tiny_config("transfo-xl-wt103"), "'transfo-xl' cannot generate: their layers cannot cache"),
    (GEMMA3, "'gemma3_text' cannot generate: their tokens attend to later ones"),
    (GEMMA3 | ONE_WAY, "'gemma3_text' cannot generate: their layers cannot cache"),
]


@pytest.mark.parametrize(("config", "message"), WITHOUT_GENERATION)
def test_families_that_cannot_generate(config, message):
    refuses(TypeError, f"models of type {message}", AutoModelForCausalLM.from_config(config).generate, [[3, 4]])


@pytest.mark.parametrize(("change", "message"), [
    ({"rotary": RotarySpec(12, 100.0)}, "layers cannot cache keys and values of single tokens"),
    ({"window": (4, 0)}, "layers cannot cache keys and values of single tokens"),
    ({"num_key_value_heads": 1}, "layers cannot cache keys and values of single tokens"),
    ({"is_causal": False}, "tokens attend to later ones"),
])  # fmt: skip
def test_layers_that_generate_are_plain(change, message):
    model = made()
    first, *others = model.spec.layers
    model.spec = replace(model.spec, layers=(replace(first, **change), *others))
    refuses(TypeError, f"models of type 'gpt2' cannot generate: their {message}$", model.generate, [[3, 4]])


def test_more_tokens_than_the_cache_has_room_for_are_refused():
    cache, run = generation.KeyValueCache(2, 3), Pass.begin(None)
    refuses(ValueError, r"counts is \[3 4\] after \[0 0\] tokens, .* up to 3", cache.begin, run, np.array([3, 4]))


def test_old_checkpoints(tmp_path):
    """Without prefix, with the buffers of causal masks, and with the head that is the table of words again."""
    model = made()
    tensors = {name.removeprefix("transformer."): array for name, array in model.state_dict().items()}
    tensors |= {"h.0.attn.bias": np.tri(24, dtype=np.float32), "h.0.attn.masked_bias": np.array(-1e4, np.float32)}
    for extra in ({}, {"lm_head.weight": tensors["wte.weight"]}):
        save_checkpoint(tmp_path, model.config, tensors | extra)
        for kind in (AutoModelForCausalLM, AutoModel):
            found = kind.from_pretrained(tmp_path)
            assert not found.newly_initialised and found.num_parameters() == model.num_parameters()
        np.testing.assert_array_equal(found.state_dict()["wte.weight"], tensors["wte.weight"])


def test_the_word_that_a_sequence_is_classified_by(cpu_backend):
    model, encoder = made(AutoModelForSequenceClassification), made(AutoModel)
    encoder.load_state_dict({name.removeprefix("transformer."): array for name, array in model.state_dict().items()
                             if "score" not in name})  # fmt: skip
    ids = np.array([[5, 6, 60, 60], [60, 7, 8, 60], [60, 60, 60, 60]])
    hidden = encoder(ids, np.ones_like(ids)).last_hidden_state[[0, 1, 2], [1, 2, 0]]
    expected = hidden @ model.state_dict()["score.weight"].T
    np.testing.assert_allclose(model(ids, np.ones_like(ids)).logits, expected, atol=1e-5)
