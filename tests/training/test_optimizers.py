"""Optimisers on models: groups, frozen parameters, state, clipping; test_loss_parity.py has PyTorch's losses."""

import pickle

import numpy as np
import pytest

from bertcore import AutoModelForCausalLM, AutoModelForMaskedLM, use_backend, value_and_grad
from bertcore.kernels import adam_update
from bertcore.tape import Tape, value_of
from bertcore.training import LAMB, AdamW, AdamW8bit, Muon, StableAdamW, clip_grad_norm, get_scheduler
from bertcore.training.schedules import steps_of
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import tiny_config
from tests.tolerances import assert_same_arrays

RNG = np.random.default_rng(3)
IDS = RNG.integers(5, CONFIG["vocab_size"], (3, 13))
BATCH = {"input_ids": IDS, "labels": np.where(RNG.random(IDS.shape) < 0.3, IDS, -100)}
BATCH["labels"][0, 0] = 7


WIDE = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}  # AdamW8bit rounds moments of 4,096


def new_model(dtype="float32", **config):
    return AutoModelForMaskedLM.from_config(CONFIG | config, dtype=dtype, seed=1)


def train(model, optimizer, steps=4):
    """The losses before each step."""
    losses = []
    for _ in range(steps):
        out, grads = value_and_grad(model)(**BATCH)
        clip_grad_norm(grads, 1.0)
        optimizer.step(grads)
        losses.append(float(out.loss))
    return losses


@pytest.mark.parametrize("kind", [AdamW, StableAdamW, LAMB, Muon])
def test_the_loss_falls_on_every_backend(cpu_dtype, kind):
    model = new_model(cpu_dtype)
    losses = train(model, kind(model, lr=0.01), 8)
    assert losses[-1] < 0.8 * losses[0]
    assert np.isfinite(losses).all()


def test_a_step_changes_what_the_next_pass_computes_in_every_form():
    """Prepared weights, tied tables and recorded programs follow the parameters: a fresh model of them agrees."""
    model = new_model()
    model(IDS)
    train(model, AdamW(model, lr=0.01), 2)
    fresh = new_model()
    fresh.load_state_dict(model.state_dict())
    for _ in range(3):  # the second pass is recorded, the third replayed
        np.testing.assert_array_equal(model(IDS).logits, fresh(IDS).logits)


def test_a_replaced_gradient_counts():
    model = new_model()
    before = {name: array.copy() for name, array in model.state_dict().items()}
    _, grads = value_and_grad(model)(**BATCH)
    for name, array in list(grads.items()):
        grads[name] = np.zeros_like(array)
    AdamW(model, weight_decay=0).step(grads)
    assert_same_arrays(model.state_dict(), before)


def test_moments_in_8_bits_follow_adamws_curve():
    """Over 200 steps of a language that can be learned, from 4.7 to 3.9; three seeds were at most 0.7 % apart."""
    curves, sizes = [], []
    for kind in (AdamW, AdamW8bit):
        model, rng = new_model(**WIDE), np.random.default_rng(9)
        optimizer, follows, losses = kind(model, lr=2e-3), rng.permutation(60) + 10, []
        for _ in range(200):
            ids = rng.integers(10, 70, (8, 12))
            for at in range(1, 12):
                ids[:, at] = np.where(rng.random(8) < 0.9, follows[ids[:, at - 1] - 10], ids[:, at])
            is_hidden = rng.random(ids.shape) < 0.25
            batch = {"input_ids": np.where(is_hidden, 3, ids), "labels": np.where(is_hidden, ids, -100)}
            out, grads = value_and_grad(model)(**batch)
            clip_grad_norm(grads, 1.0)
            optimizer.step(grads)
            losses.append(float(out.loss))
        curves.append(np.reshape(losses, (-1, 50)).mean(axis=1))
        sizes.append(sum(array.nbytes for array in optimizer.state_dict().values()))
    assert curves[0][-1] < 0.9 * curves[0][0]
    np.testing.assert_allclose(*curves, rtol=0.015)
    assert sizes[1] < 0.35 * sizes[0]


def test_moments_in_8_bits_go_on_to_the_bit():
    whole, parts = new_model(**WIDE), new_model(**WIDE)
    optimizer, first = AdamW8bit(whole), AdamW8bit(parts)
    train(whole, optimizer, 4)
    train(parts, first, 2)
    state = {name: np.array(array) for name, array in first.state_dict().items()}
    assert any(array.dtype == np.uint8 and array.any() for array in state.values())
    second = AdamW8bit(parts)
    name = next(name for name in state if "scales" in name)
    for wrong, error in (({"colour": np.zeros(1)}, "unknown are colour"), ({name: np.zeros(1)}, "has shape")):
        refuses(ValueError, error, second.load_state_dict, state | wrong)
    second.load_state_dict(state)
    train(parts, second, 2)
    assert_same_arrays(whole.state_dict(), parts.state_dict())


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("kind", [AdamW, StableAdamW])
def test_each_tensor_of_a_checkpoint_is_updated_by_its_own_norm(kind):
    """Query, key and value are one array in computing; their papers' rules measure each."""
    model = new_model("float64")
    before = {name: array.copy() for name, array in model.state_dict().items()}
    _, grads = value_and_grad(model)(**BATCH)
    kind(model, lr=0.1, weight_decay=0.3).step(grads)
    for name, array in model.state_dict().items():
        expected, moments = before[name], np.zeros((2, *array.shape))
        decay = {"weight_decay": 0.3 if array.ndim > 1 else 0.0}
        adam_update(expected, grads[name], *moments, lr=0.1, **decay, step=1, rule=kind.rule, backend="numpy")
        np.testing.assert_allclose(array, expected, rtol=1e-9, atol=1e-12, err_msg=name)


def reference_lamb(array, grad, decay, is_excluded, lr=0.1, betas=(0.9, 0.999), eps=1e-8):
    """The first step of LAMB, as its authors' code has it: what is excluded from decay has a ratio of 1."""
    first, second = (1 - betas[0]) * grad, (1 - betas[1]) * grad**2
    update = first / (1 - betas[0]) / (np.sqrt(second / (1 - betas[1])) + eps) + decay * array
    norm, size = np.linalg.norm(array), np.linalg.norm(update)
    ratio = norm / size if norm and size and not is_excluded else 1.0
    return array - lr * ratio * update


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lamb_has_a_trust_ratio_of_1_for_what_does_not_decay(decay):
    """Biases begin at 0: in proportion to their norm they would barely move."""
    model, table = new_model("float64"), "bert.embeddings.position_embeddings.weight"
    before = {name: array.copy() for name, array in model.state_dict().items()}
    _, grads = value_and_grad(model)(**BATCH)
    groups = [{"names": [table], "weight_decay": 0}, {"names": ["*.layer.0.*bias"], "weight_decay": 0.2}]
    LAMB(model, lr=0.1, weight_decay=decay, groups=groups).step(grads)
    for name, array in model.state_dict().items():
        has_own = ".layer.0." in name and name.endswith("bias")
        is_excluded = name == table or (array.ndim == 1 and not has_own)
        weight = 0.2 if has_own else 0.0 if is_excluded else decay
        expected = reference_lamb(before[name], grads[name], weight, is_excluded)
        np.testing.assert_allclose(array, expected, rtol=1e-9, atol=1e-12, err_msg=name)


def test_groups():
    groups = [{"names": ["*.layer.0.*"], "lr": 0.5}, {"names": ["*LayerNorm*", "*.dense.weight"], "weight_decay": 0.3}]
    optimizer = AdamW(new_model(), lr=0.1, weight_decay=0.2, groups=groups)
    found = {}
    for group in optimizer.groups:
        names = [name for parameter in group.parameters for name in parameter.names]
        found |= dict.fromkeys(names, (group.lr, group.weight_decay))
    assert found["bert.encoder.layer.0.attention.self.query.weight"] == (0.5, 0.2)
    assert found["bert.encoder.layer.0.attention.self.query.bias"] == (0.5, 0.0)
    assert found["bert.encoder.layer.1.output.LayerNorm.weight"] == (0.1, 0.3)
    assert found["bert.encoder.layer.1.output.dense.bias"] == (0.1, 0.0)
    assert found["bert.embeddings.word_embeddings.weight"] == (0.1, 0.2)
    assert optimizer.lr == 0.1


@pytest.mark.parametrize("options, error", [
    ({"lr": -1.0}, "lr is -1.0"),
    ({"lr": "fast"}, "lr is 'fast', expected a number"),
    ({"lr": 10**400}, "lr is an integer of 1329 bits, expected a finite number"),
    ({"betas": (0.9, 1.0)}, "betas is"),
    ({"betas": ("a", None)}, "betas is"),
    ({"groups": None}, "groups is None, expected a list"),
    ({"groups": [3]}, r"groups\[0\] is 3, expected a dict"),
    ({"groups": [{"names": ["*.layer.9.*"], "lr": 1.0}]}, r"groups\[0\]: no other parameter"),
    ({"groups": [{"names": "*", "lr": 1.0}]}, r"names is '\*', expected a list"),
    ({"groups": [{"names": ["*"], "rate": 1.0}]}, "groups.0. has names, rate"),
    ({"groups": [{"names": ["*.query.weight"], "lr": 1.0}]}, "are one parameter"),
])  # fmt: skip
def test_invalid_settings(options, error):
    refuses((TypeError, ValueError), error, AdamW, new_model(), **options)


def test_wrong_types_of_model_and_gradients():
    model = new_model()
    refuses(TypeError, r"model is .*, expected a model of bertcore, not its parameters", AdamW, model.parameters())
    for use in (AdamW(model).step, lambda grads: clip_grad_norm(grads, 1.0)):
        refuses(TypeError, "grads is list, expected the gradients of value_and_grad", use, [np.zeros(3)])
    refuses(TypeError, "state is NoneType, expected the result of state_dict", AdamW(model).load_state_dict, None)


@pytest.mark.parametrize("damage", ["missing", "shape", "dtype", "list"])
def test_gradients_that_do_not_fit_change_nothing(damage):
    model = new_model()
    before = {name: array.copy() for name, array in model.state_dict().items()}
    _, grads = value_and_grad(model)(**BATCH)
    last = list(grads)[-1]
    grads = dict(grads)
    if damage == "missing":
        del grads[last]
    else:
        wrong = {"shape": np.zeros((1, 2, 3)), "dtype": grads[last].astype(np.float64), "list": grads[last].tolist()}
        grads[last] = wrong[damage]
    optimizer = AdamW(model)
    refuses((TypeError, ValueError), last, optimizer.step, grads)
    assert optimizer.step_count == 0
    assert_same_arrays(model.state_dict(), before)


@pytest.mark.parametrize("part", ["layer.0.", "embeddings."])
def test_frozen_parameters_stay_and_have_no_gradients(cpu_backend, part):
    """Below frozen embeddings nothing is a Variable, and above them everything."""
    model = new_model(tie_word_embeddings=False)
    for parameter in model.parameters():
        parameter.is_frozen = part in parameter.names[0]
    before = {name: array.copy() for name, array in model.state_dict().items()}
    _, grads = value_and_grad(model)(**BATCH)
    assert not [name for name in grads if part in name]
    expected = value_and_grad(new_model(tie_word_embeddings=False))(**BATCH)[1]
    for name, array in grads.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    AdamW(model).step(grads)
    for name, array in model.state_dict().items():
        assert (array == before[name]).all() == (part in name), name


def test_low_precision_is_not_trained():
    refuses(ValueError, "only for inference", next(iter(new_model("bfloat16").parameters())).change, lambda array: None)


def test_states_that_do_not_fit():
    model = new_model()
    optimizer = AdamW(model)
    train(model, optimizer, 1)
    state, name = optimizer.state_dict(), "second_moment.bert.embeddings.word_embeddings.weight"
    missing = {key: array for key, array in state.items() if key != name}
    for wrong, error in ((state | {"colour": np.zeros(1)}, "unknown are colour"), (missing, "state has no")):
        refuses(ValueError, error, AdamW(model).load_state_dict, wrong)
    plateau = get_scheduler("reduce_lr_on_plateau", optimizer)
    refuses(TypeError, "metrics is None, expected a list of numbers", plateau.load_state_dict, {"position": 1})


def test_clipping():
    _, grads = value_and_grad(new_model())(**BATCH)
    exact = np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in grads.values()))
    before = {name: array.copy() for name, array in grads.items()}
    np.testing.assert_allclose(clip_grad_norm(grads, 2 * exact), exact, rtol=1e-6)
    assert_same_arrays(grads, before)
    clip_grad_norm(grads, exact / 3)
    np.testing.assert_allclose(clip_grad_norm(grads, exact), exact / 3, rtol=1e-6)
    grads["cls.predictions.bias"][0] = np.nan
    assert np.isnan(clip_grad_norm(grads, 1e-9))
    refuses(ValueError, "max_norm is 0", clip_grad_norm, grads, 0)


@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_scales_that_do_not_fit_are_no_step(kind):
    model = new_model()
    optimizer = kind(model)
    _, grads = value_and_grad(model)(**BATCH)
    wrong = [(scale, TypeError) for scale in (0.5, np.nan, np.float32(0.5))]
    wrong += [(scale, ValueError) for scale in (np.ones(1, np.float32), np.asarray(0.5))]
    for scale, error in wrong:
        refuses(error, r"^scale (is|has) ", optimizer.step, grads, scale)
    assert optimizer.step_count == 0


def test_clipping_reaches_what_a_family_stores_in_another_order():
    """DeBERTa's query, key and value lie head by head in one tensor: its gradient is a copy of the one computed.

    A plain dictionary, with arrays of the caller's own, gives the same bits as what value_and_grad returns.
    """
    config = tiny_config("deberta-base")
    ids = np.random.default_rng(0).integers(6, 97, (3, 7))
    models = [AutoModelForMaskedLM.from_config(config) for _ in range(2)]
    for model, is_plain in zip(models, (False, True), strict=True):
        _, grads = value_and_grad(model)(input_ids=ids, labels=ids)
        clip_grad_norm(grads, 1e-3)
        LAMB(model, eps=1e-3).step({name: np.array(array) for name, array in grads.items()} if is_plain else grads)
    assert_same_arrays(models[0].state_dict(), models[1].state_dict())


def test_a_change_that_fails_is_a_change():
    model = new_model()
    parameter = next(iter(model.parameters()))

    def fail(array):
        array[0] = 7
        raise KeyError("half way")

    before, version = model(IDS).logits, parameter.version
    refuses(KeyError, None, parameter.change, fail)
    assert parameter.version == version + 1 and (parameter.array()[0] == 7).all()
    assert (model(IDS).logits != before).any()


@pytest.mark.parametrize("options, error", [
    ({"name": "exponential"}, "name is 'exponential'"),
    ({"name": "linear"}, "num_training_steps is missing"),
    ({"name": "linear", "num_training_steps": 3, "power": 2}, "linear has no option 'power'"),
    ({"name": "constant", "num_warmup_steps": -1}, "num_warmup_steps is -1"),
    ({"name": "constant", "power": 2}, "constant has no option 'power'$"),
    ({"name": "cosine", "num_training_steps": 9, "num_cycles": float("nan")}, "num_cycles is nan"),
    ({"name": "polynomial", "num_training_steps": 9, "power": -1}, "power is -1"),
    ({"name": "polynomial", "num_training_steps": 9, "lr_end": 1}, "lr_end is 1, expected less than the learning"),
    ({"name": "cosine_with_min_lr", "num_training_steps": 9}, "min_lr is None and min_lr_rate is None, expected one"),
    ({"name": "cosine_with_min_lr", "num_training_steps": 9, "min_lr": 1}, "min_lr is 1, expected less than the"),
    ({"name": "warmup_stable_decay", "num_training_steps": 9, "min_lr_ratio": 1.5}, "min_lr_ratio is 1.5, expected"),
    ({"name": "warmup_stable_decay", "num_training_steps": 9, "decay_type": "flat"}, "decay_type is 'flat'"),
    ({"name": "warmup_stable_decay", "num_stable_steps": 9}, "num_training_steps is missing, expected it"),
    ({"name": "reduce_lr_on_plateau", "factor": "0"}, "factor is '0'"),
    ({"name": "greedy", "factor": 1}, "factor is 1, expected a number between 0 and 1"),
    ({"name": "greedy", "window_size": 0}, "window_size is 0"),
    ({"name": "greedy", "smooth": "yes"}, "smooth is 'yes'"),
    ({"name": "cosine_warmup_with_min_lr", "num_training_steps": 9, "warmup_lr_rate": 2}, "warmup_lr_rate is 2"),
])  # fmt: skip
def test_invalid_schedules(options, error):
    refuses((TypeError, ValueError), error, get_scheduler, optimizer=AdamW(new_model()), **options)


def test_a_schedule_that_is_shorter_than_its_warm_up_ends_at_0():
    schedule = get_scheduler("linear", AdamW(new_model(), lr=0.5), num_warmup_steps=4, num_training_steps=2)
    rates = []
    for _ in range(7):
        rates.append(schedule.optimizer.lr)
        schedule.step()
    assert rates == [0, 0.125, 0.25, 0.375, 0.5, 0, 0]


OF_TRANSFORMERS = [
    *((name, {}) for name in ("constant", "constant_with_warmup", "linear", "cosine", "polynomial", "inverse_sqrt")),
    ("cosine", {"num_cycles": 1.25}),
    ("cosine_with_restarts", {}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("cosine_with_min_lr", {"min_lr": 0.3}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 0.4}),
    ("polynomial", {"lr_end": 0.1, "power": 2.0}),
    ("inverse_sqrt", {"timescale": 7}),
    ("warmup_stable_decay", {"num_decay_steps": 9}),
    ("warmup_stable_decay", {"num_decay_steps": 37}),  # after 5 of warm-up: more than the total
    (
        "warmup_stable_decay",
        {"num_decay_steps": 9, "num_stable_steps": 11, "min_lr_ratio": 0.2, "decay_type": "linear"},
    ),
    ("warmup_stable_decay", {"num_decay_steps": 30, "warmup_type": "cosine", "decay_type": "1-sqrt"}),
    ("warmup_stable_decay", {"num_decay_steps": 20, "warmup_type": "1-sqrt", "num_cycles": 1.5, "min_lr_ratio": 0.5}),
    ("reduce_lr_on_plateau", {"patience": 1, "factor": 0.6}),
    (
        "reduce_lr_on_plateau",
        {"patience": 0, "factor": 0.5, "cooldown": 2, "min_lr": 0.1, "threshold": 0.2, "threshold_mode": "abs"},
    ),
    ("reduce_lr_on_plateau", {"patience": 0, "mode": "max", "threshold": 0.3, "eps": 0.02}),
    ("cosine_warmup_with_min_lr", {"min_lr": 0.3}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 0.4, "warmup_lr_rate": 0.2}),
    ("greedy", {"patience": 1}),
    ("greedy", {"patience": 0, "factor": 0.5, "min_lr": 0.3, "max_lr": 0.9, "reset_start": 2, "threshold_mode": "rel"}),
    ("greedy", {"patience": 1, "mode": "max", "cooldown": 2, "warmup": 3, "min_lr": 0.01, "threshold": 0.1}),
    ("greedy", {"patience": 0, "factor": 0.5, "smooth": True, "window_size": 3, "min_lr": 0.2, "reset_start": 3}),
]


PLATEAUS = ("reduce_lr_on_plateau", "greedy")


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:Both num_training_steps and num_stable_steps")
@pytest.mark.parametrize("warmup", [5, 0])
@pytest.mark.parametrize("name, options", OF_TRANSFORMERS)
def test_schedules_of_transformers(name, options, warmup):
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    peer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
    peer_schedule = transformers.get_scheduler(name, peer, warmup, 39, options)
    optimizer = AdamW(new_model(), lr=0.8, groups=[{"names": ["*LayerNorm*"], "lr": 1.6}])
    schedule = get_scheduler(name, optimizer, warmup, 39, options)
    rng, rates, expected = np.random.default_rng(4), [], []
    for step in range(39 if name == "cosine_warmup_with_min_lr" else 40):  # beyond the end that rises again
        rates.append(optimizer.lr)
        assert name in PLATEAUS or optimizer.groups[0].lr == 2 * optimizer.lr
        expected.append(peer.param_groups[0]["lr"])
        peer.step()
        given = [rng.random() + 10 / (10 + step)] if name in PLATEAUS else []
        peer_schedule.step(*given)
        schedule.step(*given)
    np.testing.assert_allclose(rates, expected, rtol=1e-12, atol=1e-15)
    assert len(set(rates)) > 2 or name.startswith("constant")


@pytest.mark.parity
@pytest.mark.parametrize("share", [0.0, 0.06, 0.1, 0.999])
def test_a_warm_up_as_a_share_is_rounded_up_as_transformers_does(share, tmp_path):
    transformers = pytest.importorskip("transformers")
    args = transformers.TrainingArguments(tmp_path, warmup_steps=share, report_to="none")
    for total in (1, 7, 10, 39, 100):
        assert steps_of(share, total) == args.get_warmup_steps(total)


@pytest.mark.parametrize("name", ["bert-base-uncased", "luke-base", "gpt2", "albert-base-v2"])
def test_labelled_tokens_alone_are_scored_and_the_logits_can_be_read(name):
    """The loss needs a few tokens' scores; all can be read, under a tape, too, until the parameters change."""
    kind = AutoModelForCausalLM if name == "gpt2" else AutoModelForMaskedLM
    model, ids = kind.from_config(tiny_config(name)), np.random.default_rng(0).integers(6, 97, (3, 7))
    batch = {"input_ids": ids, "labels": np.where(ids % 3 == 0, ids, -100)}
    expected = model(**batch)
    with Tape():
        found = value_of(model(**batch).logits)
    np.testing.assert_allclose(found, expected.logits, atol=1e-5)
    for read in (lambda out: out.logits, lambda out: pickle.loads(pickle.dumps(out)).logits):
        with use_backend("numpy"):
            out, grads = value_and_grad(model)(**batch)
        np.testing.assert_allclose(out.loss, expected.loss, rtol=1e-5)
        np.testing.assert_allclose(read(out), expected.logits, atol=1e-5)
    out, grads = value_and_grad(model)(**batch)
    AdamW(model).step(grads)
    with pytest.raises(RuntimeError, match="logits: the parameters have changed"):
        out.logits  # noqa: B018
