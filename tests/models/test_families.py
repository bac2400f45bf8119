"""Every family of the table by itself: backends and dtypes agree, padding changes nothing, files and configs."""

import warnings

import numpy as np
import pytest

import bertcore
from bertcore import AutoModel, use_backend, value_and_grad
from bertcore.gradients import differentiate
from bertcore.models.architectures import models_of
from bertcore.training.optimizers import AdamW, StepInBackward
from tests.models.family_checks import check_backends, check_recorded, check_spellings, dtypes_with_tables
from tests.models.family_table import FAMILIES, WITH_OWN_LAYERS
from tests.refusals import refuses
from tests.tiny_families import drawn_anew
from tests.tolerances import assert_same_arrays

every_family = pytest.mark.parametrize("name", FAMILIES)
with_own_layers = pytest.mark.parametrize("name", WITH_OWN_LAYERS)

WITH_TABLES = ("deberta", "deberta-v2")


def words_model(case, **changes):
    """The class of the family's head for words, and the config of everything that it may have."""
    return getattr(bertcore, f"AutoModelFor{case.words}"), case.with_changes({**case.everything, **changes})


def check_words_model(name, **how):
    kind, config = words_model(FAMILIES[name])
    check_backends(lambda **options: kind.from_config(config, **options), (11, 0, 4), **how)


@pytest.mark.parametrize("name", [name for name in WITH_OWN_LAYERS if name not in WITH_TABLES])
def test_backends_and_dtypes_agree(name):
    check_words_model(name)


@dtypes_with_tables
@pytest.mark.parametrize("name", WITH_TABLES)
def test_backends_and_dtypes_with_tables_agree(name, dtypes):
    check_words_model(name, dtypes=dtypes)


@with_own_layers
def test_a_program_holds_the_whole_encoder(name):
    case = FAMILIES[name]
    model = drawn_anew(AutoModel.from_config(case.with_changes(case.everything)))
    check_recorded(model, is_recorded=case.is_recorded)


@with_own_layers
def test_gradients_of_backends_agree(name):
    kind, config = words_model(FAMILIES[name])
    rng, grads = np.random.default_rng(0), {}
    ids, mask = rng.integers(7, 60, (2, 9)), np.arange(9) < np.array([[9], [5]])
    for backend in ("numpy", "numba"):
        with use_backend(backend):
            model = drawn_anew(kind.from_config(config))
            classes = model.spec.vocab_size if kind.__name__.endswith("LM") else 3
            _, grads[backend] = value_and_grad(model)(ids, mask, labels=np.where(mask, ids % classes, -100))
    largest = max(np.abs(grad).max() for grad in grads["numpy"].values())
    for parameter, grad in grads["numpy"].items():
        np.testing.assert_allclose(grads["numba"][parameter], grad, rtol=0, atol=1e-5 * largest, err_msg=parameter)


@every_family
@pytest.mark.parametrize("recomputes", [False, True])
def test_parameters_that_change_in_the_backward_pass(name, recomputes):
    """Each changes once the rest of the pass does not read it: else gradients that come later would differ."""
    kind, config = words_model(FAMILIES[name])
    ids, mask = np.random.default_rng(0).integers(7, 60, (2, 9)), np.arange(9) < np.array([[9], [5]])
    found = []
    with use_backend("numpy"):
        for in_backward in (False, True):
            model = drawn_anew(kind.from_config(config)).train(seed=3)
            if recomputes:
                model.gradient_checkpointing_enable()
            optimizer, classes = AdamW(model, lr=0.1), model.spec.vocab_size if kind.__name__.endswith("LM") else 3
            inputs = {"attention_mask": mask, "labels": np.where(mask, ids % classes, -100)}
            for _ in range(2):
                step = StepInBackward(optimizer, 0, None, at_once=1) if in_backward else None
                _, grads = differentiate(model, lambda: model(ids, **inputs), step and step.take)  # noqa: B023
                if step is None:
                    optimizer.step(grads)
                else:
                    step.finish()
            found.append(model.state_dict())
    assert_same_arrays(*found)


@with_own_layers
def test_a_text_does_not_change_with_its_padding(cpu_backend, name):
    """Padding on either side, an empty row, and padding longer than a window, for which transformers returns NaN."""
    case = FAMILIES[name]
    model = drawn_anew(AutoModel.from_config(case.with_changes(case.everything)))
    padding = model.spec.pad_token_id or 0
    words = np.random.default_rng(0).integers(7, 60, (1, 9))
    alone = model(words).last_hidden_state
    for before, after in ((0, 9), (9, 4), (15, 0)):
        ids = np.pad(words, ((0, 1), (before, after)), constant_values=padding)
        mask = np.pad(np.ones_like(words), ((0, 1), (before, after)))
        found = model(ids, mask).last_hidden_state
        np.testing.assert_allclose(found[:1, before : before + 9], alone, rtol=0, atol=2e-6 * np.abs(alone).max())
        assert not found[1].any() and not found[0, :before].any() and not found[0, before + 9 :].any()
    hidden, _ = model.encode_packed([words[0, :5], words[0]])
    np.testing.assert_allclose(hidden[5:], alone[0], rtol=0, atol=2e-6 * np.abs(alone).max())


@every_family
def test_saved_it_loads_to_the_same_and_other_spellings_too(tmp_path, name):
    case = FAMILIES[name]
    kind, config = words_model(case)
    model = drawn_anew(kind.from_config(config))
    check_spellings(model, tmp_path / "spelled", copies=case.copies)
    for dtype in ("float32", "int8"):
        with use_backend("numpy"), warnings.catch_warnings():
            warnings.simplefilter("error")
            low = kind.from_config(config, dtype=dtype)
            low.load_state_dict(model.state_dict())
            low.save_pretrained(tmp_path / dtype)
            again, ids = kind.from_pretrained(tmp_path / dtype), [[9, 8, 11], [20, 7, 8]]
            np.testing.assert_array_equal(again(ids).logits, low(ids).logits)


REFUSED = [(name, key) for name, case in FAMILIES.items() for key in case.refused]


@pytest.mark.parametrize(("name", "key"), REFUSED)
def test_configs_that_are_refused(name, key):
    case = FAMILIES[name]
    own = case.keys.get(key, key)
    refuses(ValueError, rf"config: {own}\b", models_of, {**case.with_changes(case.everything), key: case.refused[key]})
