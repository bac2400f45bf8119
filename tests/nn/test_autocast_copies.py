"""The copies in 16 bits that `autocast` computes with on a GPU: they follow the values, at addresses that stay."""

import copy
import pickle
from contextlib import contextmanager, nullcontext

import cupy
import ml_dtypes
import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, autocast, kernels, use_backend, value_and_grad
from bertcore.gradients import vjp
from bertcore.lora import LoraConfig, get_peft_model
from bertcore.nn import parameter as parameters_module
from bertcore.nn.parameter import change_together
from bertcore.passes import Pass
from bertcore.training import LAMB, AdamW, Muon
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.refusals import refuses
from tests.tiny_bert import CONFIG
from tests.tiny_families import tiny_config
from tests.tolerances import assert_same_arrays

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
IDS = np.random.default_rng(3).integers(5, CONFIG["vocab_size"], (2, 7))
BATCH = {"input_ids": IDS, "labels": IDS}


class Launches(list):
    """Launches without their arguments, which would keep arrays alive that a graph lets go."""

    def append(self, launch):
        super().append(launch._replace(args=()))


@pytest.fixture
def gpu():
    with driverless() as gpu, use_backend("cupy"):
        gpu.launches = Launches()
        yield gpu


def made(**config):
    """A model whose rows are whole vectors, and with hidden_size=20 one whose rows are not."""
    heads = {"num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 1}
    return AutoModelForMaskedLM.from_config({**CONFIG, **heads, **config}, seed=1)


def step(model, optimizer, dtype="bfloat16"):
    with autocast(dtype):
        out, grads = value_and_grad(model)(**BATCH)
    optimizer.step(grads)
    return float(out.loss)


def addresses(model):
    return {id(copy): copy.data.ptr for each in model.parameters() for copy in each.forms.copies.values()}


def assert_fresh(model, dtypes=("bfloat16",)):
    """All copies have the bits of casting now, and all that computes with them reads them or the same bits."""
    for parameter in model.parameters():
        forms = parameter.forms
        assert {dtype for _, dtype in forms.copies} == set(dtypes)
        for (index, dtype), found in forms.copies.items():
            array = forms.on_gpus[index].get()
            assert found.get().tobytes() == array.astype(DTYPES[dtype]).tobytes()
            with autocast(dtype):
                assert parameter.value(Pass.begin()) is found
                if "weight" in parameter.uses:
                    np.testing.assert_array_equal(
                        forms.read("weight", False, Pass.begin().place).to_array().get(), found.get()
                    )


def on_gpu(array):
    return cupy.asarray(array)


@contextmanager
def casting_anew():
    """The same as without kept copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameters_module, "refreshed_copies", lambda forms, arrays: [{} for _ in forms])
        yield


@pytest.mark.parametrize("hidden_size", [16, 20])
@pytest.mark.parametrize("kind", [AdamW, pytest.param(LAMB, marks=pytest.mark.slow), Muon])
def test_training_has_the_bits_of_casting_anew(gpu, kind, hidden_size):
    found, casts = [], {"anew": [], "kept": []}
    for way, losses in casts.items():
        model = made(hidden_size=hidden_size)
        optimizer, at = kind(model, lr=1e-2), []
        with casting_anew() if way == "anew" else autocast("bfloat16"):
            losses += [step(model, optimizer) for _ in range(3)]
            if way == "kept":
                at.append(addresses(model))
                gpu.launches.clear()
                losses.append(step(model, optimizer))
                assert [launch.kernel for launch in gpu.launches if "cast<" in launch.kernel] == ["cast<__nv_bfloat16>"]
                assert at == [addresses(model)] and len(at[0]) == len(list(model.parameters()))
                assert_fresh(model)
            else:
                losses.append(step(model, optimizer))
        found.append({name: array.tobytes() for name, array in model.state_dict().items()})
    assert casts["kept"] == casts["anew"]
    assert found[0] == found[1]


def test_a_step_casts_no_parameter_by_itself(gpu, monkeypatch):
    model, calls, original = made(), [], cupy.ndarray.astype
    optimizer, shapes = AdamW(model), {parameter.shape for parameter in model.parameters()}

    def counted(array, dtype, *args, **options):
        if array.dtype == np.float32 and array.shape in shapes and np.dtype(dtype).itemsize == 2:
            calls.append(array.shape)
        return original(array, dtype, *args, **options)

    monkeypatch.setattr(cupy.ndarray, "astype", counted)
    counts = []
    for _ in range(3):
        calls.clear()
        step(model, optimizer)
        counts.append(len(calls))
    assert counts[0] - len(list(model.parameters())) == counts[1] == counts[2]


@pytest.mark.parametrize("hidden_size", [16, 20])
def test_evaluation_with_and_without_it_between_steps(gpu, hidden_size):
    """Passes that are CUDA graphs from the second one on. Weights whose rows are no whole vectors are padded copies."""
    model = made(hidden_size=hidden_size)
    optimizer = AdamW(model, lr=1e-2)
    plain = model(IDS).logits.get()
    with autocast("bfloat16"):
        model(IDS)
    for _ in range(2):
        step(model, optimizer)
        assert_fresh(model)
        fresh = made(hidden_size=hidden_size)
        fresh.load_state_dict(model.state_dict())
        for precision in ("bfloat16", "bfloat16", "bfloat16", None):
            with autocast(precision) if precision else nullcontext():
                found = model(IDS).logits.get()
                np.testing.assert_array_equal(found, fresh(IDS).logits.get())
                assert (found != plain).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deberta-base", "mpnet-base"])
def test_tables_that_are_kept_are_of_the_dtype_in_force(gpu, name):
    found = []
    for precisions in ((None, "bfloat16", "float16"), ("float16", None, "bfloat16")):
        model, logits = AutoModelForMaskedLM.from_config(tiny_config(name), seed=1), {}
        for precision in precisions:
            with autocast(precision) if precision else nullcontext():
                logits[precision] = model(IDS + 1).logits.get()
        found.append(logits)
    for precision, expected in found[0].items():
        np.testing.assert_array_equal(found[1][precision], expected)


def test_both_dtypes_on_one_model(gpu):
    model = made()
    optimizer = AdamW(model, lr=1e-2)
    for dtype in ("bfloat16", "float16", "bfloat16", "float16"):
        step(model, optimizer, dtype)
    assert_fresh(model, DTYPES)
    gpu.launches.clear()
    step(model, optimizer)
    names = [launch.kernel for launch in gpu.launches if "cast<" in launch.kernel]
    assert sorted(names) == ["cast<__half>", "cast<__nv_bfloat16>"]
    assert_fresh(model, DTYPES)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copied_model_has_copies_of_its_own(gpu, copied, monkeypatch):
    monkeypatch.setattr(cupy.ndarray, "__deepcopy__", lambda array, memo: array.copy(), raising=False)  # as CuPy does
    monkeypatch.setattr(cupy.ndarray, "__reduce__", lambda array: (on_gpu, (array.get(),)), raising=False)
    model = made()
    step(model, AdamW(model))
    other = copied(model)
    before = [array.get() for each in model.parameters() for array in each.forms.copies.values()]
    optimizer = AdamW(other, lr=1e-2)
    for _ in range(2):
        step(other, optimizer)
    assert_fresh(other)
    assert_fresh(model)
    after = [array.get() for each in model.parameters() for array in each.forms.copies.values()]
    assert_same_arrays(before, after)
    assert not set(addresses(model).values()) & set(addresses(other).values())


def test_new_arrays_and_those_on_the_host(gpu):
    model = made()
    optimizer = AdamW(model, lr=1e-2)
    step(model, optimizer)
    table = next(model.parameters())
    for new in (np.asfortranarray(table.array() * 2), cupy.asarray(table.array() * 3, order="F")):
        table.update(new)
        assert not table.forms.copies
        step(model, optimizer)
        step(model, optimizer)
        assert_fresh(model)
    table.update(table.array())
    with autocast("bfloat16"):
        model(IDS)
    with use_backend("numpy"):
        table.change(lambda array: np.negative(array, out=array))
    assert not table.forms.copies and not table.forms.on_gpus
    with autocast("bfloat16"):
        model(IDS)
    assert_fresh(model)


def test_another_gpu(gpu):
    model = made()
    for index in (1, 0):
        with cupy.cuda.Device(index), autocast("bfloat16"):
            model(IDS)
    table = next(model.parameters())
    assert {index for index, _ in table.forms.copies} == {0, 1}
    with cupy.cuda.Device(1):
        table.change(lambda array: array.fill(3))
    assert {*table.forms.copies} == {(1, "bfloat16")}
    assert (table.forms.copies[1, "bfloat16"].get() == 3).all()

    def change(arrays):
        for array in arrays:
            with array.device:
                array.fill(5)

    change_together(list(model.parameters()), change)
    for parameter in model.parameters():
        assert all((array.get() == 5).all() for array in parameter.forms.copies.values())


def test_frozen_parameters_and_adapters(gpu):
    model = made()
    peft = get_peft_model(model, LoraConfig(r=3, target_modules=["query", "dense"]), seed=2)
    optimizer = AdamW(peft, lr=1e-2)
    step(peft, optimizer)
    at = addresses(peft)
    with autocast("bfloat16"):
        before = peft(IDS).logits.get()
    step(peft, optimizer)
    assert addresses(peft) == at
    assert_fresh(peft)
    with autocast("bfloat16"):
        assert (peft(IDS).logits.get() != before).any()
    fresh = get_peft_model(made(), LoraConfig(r=3, target_modules=["query", "dense"]), seed=2)
    fresh.load_state_dict(peft.state_dict())
    for precision in (None, "bfloat16", None, "float16"):
        with autocast(precision) if precision else nullcontext():
            np.testing.assert_array_equal(peft(IDS).logits.get(), fresh(IDS).logits.get())


@pytest.mark.parametrize("fails_in", ["change", "cast"])
def test_an_error_leaves_nothing_stale(gpu, fails_in, monkeypatch):
    model = made()
    with autocast("bfloat16"):
        before = model(IDS).logits.get()
    every = list(model.parameters())

    def change(arrays):
        for array in arrays:
            array *= 2
            if fails_in == "change" and array is arrays[3]:
                raise KeyError("half way")

    if fails_in == "cast":
        monkeypatch.setattr(kernels, "cast", lambda *args, **options: {}["half way"])
    refuses(KeyError, None, change_together, every, change)
    assert not any(parameter.forms.copies for parameter in every)
    monkeypatch.undo()
    with autocast("bfloat16"):
        assert (model(IDS).logits.get() != before).any()
    assert_fresh(model)


def test_a_pullback_after_the_step_is_refused(gpu):
    model = made()
    optimizer = AdamW(model, lr=1e-2)
    with autocast("bfloat16"):
        out, pullback = vjp(model)(input_ids=IDS)
        _, late = vjp(model)(input_ids=IDS)
        seeds = {"logits": cupy.ones_like(out.logits)}
        optimizer.step(pullback(seeds))
        refuses(RuntimeError, "the parameters have changed since", late, seeds)


def test_the_cast_runs_on_the_stream_of_the_step(gpu):
    model = made()
    optimizer, streams, original = AdamW(model), [], kernels.cast
    step(model, optimizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "cast", lambda *args, **more: (streams.append(gpu.stream), original(*args, **more)))
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            step(model, optimizer)
    assert streams == [stream]
