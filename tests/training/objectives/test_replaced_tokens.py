"""Replaced tokens: the words that are drawn, the loss by its definition, gradients, what is kept, runs that resume."""

import numpy as np
import pytest

from bertcore import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, ReplacedTokenModel, use_backend
from bertcore.checkpoint import CheckpointError
from bertcore.models.generation import BLOCK, sample_words
from bertcore.models.replaced_tokens import EMBEDDINGS, generator_config
from bertcore.presets import preset_config
from bertcore.training import Masking, Trainer, TrainingArguments
from bertcore.training.collators import IGNORED
from bertcore.training.objectives import ReplacedToken
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import drawn_anew, tiny_config
from tests.tolerances import assert_same_arrays
from tests.training.objectives.students import mean_cross_entropy
from tests.training.tiny_runs import assert_resumes, assert_same_weights, objective_trainer, without_times

pytestmark = pytest.mark.usefixtures("on_numpy")

TINY = {
    "model_type": "electra", "vocab_size": CONFIG["vocab_size"], "embedding_size": 10, "hidden_size": 24,
    "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 20, "max_position_embeddings": 24,
    "hidden_dropout_prob": 0.1, "initializer_range": 0.3,
}  # fmt: skip
CONFIGS = {"electra": TINY}
CONFIGS |= {name: tiny_config(name) | {"vocab_size": 75} for name in ("deberta-v3-small", "codebert")}
DOCUMENTS = [["the cat sat on an mat", "paris is an capital"], ["of france"], ["on an mat the cat"]]


@pytest.fixture(scope="module")
def examples(tokenizer):
    return list(ReplacedToken().examples(DOCUMENTS * 3, tokenizer, max_length=9, seed=0))


def batch_of(tokenizer, examples, share=0.3):
    return ReplacedToken(Masking(share, 1.0, 0.0)).collator(tokenizer, seed=3)(examples)


def model_of(embeddings, dtype="float64", config=TINY):
    """A model whose layers tell."""
    return drawn_anew(ReplacedTokenModel.from_config(config, embeddings=embeddings, dtype=dtype))


@pytest.mark.parametrize("words", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_words_are_drawn_by_the_running_sum_of_the_softmax(words, dtype):
    rng = np.random.default_rng(words)
    scores = rng.normal(0, 3, (50, words)).astype(dtype)
    draws = rng.random(50)
    wide = scores.astype("float64")
    sums = np.cumsum(np.exp(wide - wide.max(1, keepdims=True)), axis=1)
    expected = (sums / sums[:, -1:] <= draws[:, None]).sum(1)
    found = sample_words(scores, draws)
    gaps = np.abs(sums / sums[:, -1:] - draws[:, None]).min(1)
    assert (found == expected)[gaps > 1e-5].all() and (gaps > 1e-5).sum() > 30


def test_words_without_probability_are_not_drawn():
    draws = np.array([0.0, np.nextafter(1, 0), 0.5, 0.0, np.nextafter(1, 0)])
    scores = np.full((5, BLOCK + 9), -np.inf, np.float32)
    scores[:3, BLOCK + 2] = 0
    scores[3:, 3] = scores[3:, 5] = 1
    assert sample_words(scores, draws).tolist() == [BLOCK + 2] * 3 + [3, 5]
    assert sample_words(scores[:0], draws[:0]).shape == (0,)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("embeddings", EMBEDDINGS)
def test_the_loss_is_that_of_both_models_by_themselves(tokenizer, examples, embeddings, config, tmp_path):
    """Each loaded from its folder, as anybody would."""
    model, batch = model_of(embeddings, config=config), batch_of(tokenizer, examples)
    out = ReplacedToken(discriminator_weight=7.0).forward(model, batch)
    model.save_pretrained(tmp_path)
    generator = AutoModelForMaskedLM.from_pretrained(tmp_path / "generator", dtype="float64")
    discriminator = AutoModelForPreTraining.from_pretrained(tmp_path / "discriminator", dtype="float64")
    texts = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in batch}
    logits, labels = generator(**texts).logits, batch["labels"]
    known = labels != IGNORED
    scores = logits[known]
    log = np.log(np.exp(scores).sum(1))
    first = mean_cross_entropy(logits, labels)
    chosen = (np.cumsum(np.exp(scores - log[:, None]), 1) <= batch["draws"][known][:, None]).sum(1)
    text, given = np.where(known, labels, batch["input_ids"]), batch["input_ids"].copy()
    given[known] = chosen
    flags, real = given != text, batch["attention_mask"] == 1
    found = discriminator(**texts | {"input_ids": given}).logits
    second = np.mean(np.log1p(np.exp(found)) - flags * found, where=real)
    assert flags.any()
    assert out.loss == pytest.approx(first + 7.0 * second, rel=1e-12)
    assert (out.generator_loss, out.discriminator_loss) == pytest.approx((first, second), rel=1e-12)
    np.testing.assert_array_equal(out.given_ids, given)
    np.testing.assert_array_equal(out.replaced, np.where(real, flags, IGNORED))
    np.testing.assert_allclose(out.generator_logits, logits, atol=1e-12)
    np.testing.assert_allclose(out.logits, found, atol=1e-12)
    assert ReplacedToken().weight(batch) == known.sum()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("embeddings", EMBEDDINGS)
def test_gradients_by_finite_differences(tokenizer, examples, embeddings, config):
    """In directions that change all parameters of one model, or the tables that both have."""
    model, batch = model_of(embeddings, config=config), batch_of(tokenizer, examples[:5])
    objective = ReplacedToken(discriminator_weight=3.0)
    with use_backend("numpy"):
        _, grads = objective.value_and_grad(model, batch)
        start, rng = model.state_dict(), np.random.default_rng(1)
        start = {name: array.copy() for name, array in start.items()}
        assert grads.keys() == start.keys()
        tables = [name for name in start if "word_embeddings" in name]
        parts = [[name for name in start if name.startswith(part)] for part in ("generator", "discriminator")]
        for names in (*parts, tables):
            step = {name: rng.normal(size=start[name].shape) for name in names}
            values, is_disentangled = [], embeddings == "gradient_disentangled"
            for size in (1e-6, -1e-6):
                changed = {name: array + size * step.get(name, 0) for name, array in start.items()}
                if is_disentangled:  # the sum stays: no gradient flows through the generator's table
                    word, delta = tables
                    changed[delta] = changed[delta] - size * step.get(word, 0)
                model.load_state_dict(changed)
                values.append(objective.forward(model, batch).loss)
            model.load_state_dict(start)
            slope = (values[0] - values[1]) / 2e-6
            assert slope == pytest.approx(sum((grads[name] * step[name]).sum() for name in names), rel=1e-6)


def test_what_is_tied():
    names = {kind: set(model_of(kind).expected_tensors()) for kind in EMBEDDINGS}
    table = "electra.embeddings.word_embeddings.weight"
    assert f"generator.{table}" in names["tied"] and f"discriminator.{table}" not in names["tied"]
    assert names["separate"] - names["tied"] == {
        f"discriminator.electra.embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type")
    }
    assert names["separate"] ^ names["gradient_disentangled"] == {
        f"discriminator.{table}", f"discriminator.{table}_delta"
    }  # fmt: skip
    new = ReplacedTokenModel.from_config(TINY, embeddings="gradient_disentangled").state_dict()
    assert not new[f"discriminator.{table}_delta"].any() and new[f"generator.{table}"].any()


def test_models_that_were_trained_apart_keep_their_tables_in_sum():
    kinds = AutoModelForMaskedLM, AutoModelForPreTraining
    generator, discriminator = (drawn_anew(kind.from_config(TINY), seed) for seed, kind in enumerate(kinds))
    expected = discriminator([[5, 6, 7]]).logits
    pair = ReplacedTokenModel(generator, discriminator, embeddings="gradient_disentangled")
    np.testing.assert_allclose(pair.discriminator([[5, 6, 7]]).logits, expected, rtol=1e-4, atol=1e-4)


def trainer(folder, tokenizer, examples, embeddings, **settings):
    settings = {"max_steps": 5, "logging_steps": 1, "gradient_accumulation_steps": 2} | settings
    model = ReplacedTokenModel.from_config(TINY, embeddings=embeddings, seed=4)
    return objective_trainer(folder, model, ReplacedToken(), examples, tokenizer, settings=settings)


@pytest.mark.parametrize("embeddings", EMBEDDINGS)
def test_a_run_that_resumes_has_the_same_bits(tokenizer, examples, embeddings, tmp_path):
    def made(folder, **settings):
        return trainer(folder, tokenizer, examples, embeddings, **settings)

    whole, rest = assert_resumes(made, tmp_path, 3)
    assert rest.state.global_step == 5
    assert without_times(rest.state.log_history) == without_times(whole.state.log_history)
    assert rest.evaluate()["eval_loss"] == whole.evaluate()["eval_loss"]
    again = ReplacedTokenModel.from_pretrained(tmp_path / "whole" / "checkpoint-5")
    assert_same_weights(again, whole.model)
    assert again.embeddings == embeddings
    other = trainer(tmp_path / "part", tokenizer, examples, next(kind for kind in EMBEDDINGS if kind != embeddings))
    refuses(ValueError, f"embeddings is '{embeddings}', expected one of", other.train, resume_from_checkpoint=True)


def test_layers_run_again_give_the_same_bits(tokenizer, examples):
    model, batch = model_of("tied", "float32"), batch_of(tokenizer, examples)
    _, grads = ReplacedToken().value_and_grad(model.train(5), batch)
    model.gradient_checkpointing_enable()
    _, again = ReplacedToken().value_and_grad(model.train(5), batch)
    assert_same_arrays(again, grads)
    _, others = ReplacedToken().value_and_grad(model.train(6), batch)
    assert any((others[name] != gradient).any() for name, gradient in grads.items())


@pytest.mark.parametrize("name, share, expected", [
    ("electra-small-discriminator", 1, "electra-small-generator"),  # as wide as its discriminator
    ("electra-base-discriminator", 1 / 3, "electra-base-generator"),
    ("electra-large-discriminator", None, "electra-large-generator"),
])  # fmt: skip
def test_generators_have_the_published_sizes(name, share, expected):
    made = AutoModel(generator_config(name, share)).expected_tensors()
    assert made == AutoModel(preset_config(expected)).expected_tensors()


@pytest.mark.parametrize("share", [0, 1.5, float("nan"), True, "half"])
def test_invalid_share_of_the_generator(share):
    refuses(ValueError, "expected a number above 0 and at most 1", generator_config, TINY, share)


def test_models_that_do_not_go_together_are_refused():
    def generator(**changes):
        return AutoModelForMaskedLM.from_config(TINY | changes)

    discriminator = AutoModelForPreTraining.from_config(TINY)
    for first, second, error, message in (
        (discriminator, discriminator, TypeError, "generator is Discriminator, expected an AutoModelForMaskedLM"),
        (generator(), generator(), TypeError, "discriminator is AutoModelForMaskedLM, expected an AutoModelForPreT"),
        (generator(vocab_size=9), discriminator, ValueError, "has 9 words and the discriminator 75"),
        (generator(embedding_size=9), discriminator, ValueError, r"\(75, 10\) in the discriminator and \(75, 9\)"),
        (AutoModelForMaskedLM.from_config(CONFIG), discriminator, ValueError, "type 'bert' and the discriminator"),
        (AutoModelForMaskedLM.from_config(TINY, dtype="float64"), discriminator, ValueError, "is in float64"),
    ):  # fmt: skip
        refuses(error, message, ReplacedTokenModel, first, second)
    with pytest.raises(ValueError, match="embeddings is 'shared', expected one of 'tied'"):
        ReplacedTokenModel(generator(), discriminator, embeddings="shared")
    ReplacedTokenModel(generator(), discriminator)
    refuses(ValueError, "belongs to another", ReplacedTokenModel, generator(), discriminator)


def test_a_trainer_needs_an_objective_for_the_pair(tmp_path):
    expected = "objective is Supervised, expected one that trains a ReplacedTokenModel"
    refuses(ValueError, expected, Trainer, ReplacedTokenModel.from_config(TINY), TrainingArguments(tmp_path))


def test_a_part_is_not_saved_alone(tmp_path):
    model = ReplacedTokenModel.from_config(TINY)
    refuses(ValueError, "call that model's save_pretrained", model.generator.save_pretrained, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    refuses(CheckpointError, r"replaced_tokens\.json", ReplacedTokenModel.from_pretrained, tmp_path)
    (tmp_path / "replaced_tokens.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"replaced_tokens\.json: embeddings is None, expected one of tied"):
        ReplacedTokenModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("wrong", [np.ones((3, 3)), "ints", "nan", "one"])
def test_invalid_draws(tokenizer, examples, wrong):
    batch = batch_of(tokenizer, examples)
    shape = batch["draws"].shape
    kinds = {"ints": np.zeros(shape, int), "nan": np.full(shape, np.nan), "one": np.ones(shape)}
    batch["draws"] = kinds[wrong] if isinstance(wrong, str) else wrong
    refuses(ValueError, "draws ", model_of("tied"), **batch)


@pytest.mark.parametrize("weight", [-1, True, float("inf"), "50"])
def test_invalid_weight(weight):
    refuses((TypeError, ValueError), r"discriminator_weight is", ReplacedToken, discriminator_weight=weight)
