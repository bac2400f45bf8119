"""The Trainer on the CUDA kernels and CuPy's arrays, as on a GPU; the kernels run in the CPU emulator."""

from collections import deque

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, use_backend
from bertcore.checkpoint import open_checkpoint
from bertcore.lora import LoraConfig, get_peft_model
from bertcore.presets import preset_config
from bertcore.training import Trainer, TrainingArguments
from bertcore.training.safeguards import TrainingDiverged
from tests.refusals import refuses
from tests.training.tiny_runs import (
    At,
    MaskingCollator,
    accuracy,
    assert_resumes,
    assert_same_weights,
    class_trainer,
    classifier,
    language_trainer,
    names_in,
    spoil,
    without_times,
)

EPSILON = 1e-3  # with Adam's own, rounding decides where the gradient of a key's bias, zero, goes


def with_adapters(folder, callbacks=(), **settings):
    model = get_peft_model(classifier(), LoraConfig(r=3, target_modules=["query", "value"]))
    return class_trainer(folder, callbacks, model=model, **settings)


RUNS = {
    "masked words, batches in turns": (language_trainer, {"gradient_accumulation_steps": 2, "logging_steps": 1}),
    "evaluation": (class_trainer, {"compute_metrics": accuracy, "eval_strategy": "steps", "eval_steps": 1}),
    "label smoothing": (class_trainer, {"label_smoothing_factor": 0.1, "weight_decay": 0.1}),
    "layers again": (class_trainer, {"gradient_checkpointing": True, "max_grad_norm": 0}),
    "muon": (class_trainer, {"optim": "muon"}),
    "lamb": (class_trainer, {"optim": "lamb"}),
    "stable_adamw": (class_trainer, {"optim": "stable_adamw"}),
    "low-rank adapters": (with_adapters, {}),
}


BY_DEFAULT = {"masked words, batches in turns", "evaluation", "muon", "low-rank adapters"}


def cases(runs):
    return [
        pytest.param(run, id=name, marks=() if name in BY_DEFAULT else pytest.mark.slow) for name, run in runs.items()
    ]


@pytest.mark.parametrize("settings", [{"optim_in_backward": True}, {"optim": "adamw_8bit"}])
def test_settings_for_the_cpu(emulated_gpu, settings, tmp_path):
    refuses(ValueError, f"{next(iter(settings))} is .*for the CPU", language_trainer(tmp_path, **settings).train)


@pytest.mark.parametrize("run", cases(RUNS))
def test_runs_follow_numpy(emulated_gpu, run, tmp_path):
    make, settings = run
    emulated_gpu.launches = deque(maxlen=0)  # which would keep their arguments alive, and the layers from graphs
    trainers = {}
    for backend in ("numpy", "cupy"):
        with use_backend(backend):
            folder = tmp_path / backend
            trainers[backend] = make(folder, **{"max_steps": 2, "adam_epsilon": EPSILON, **settings})
            trainers[backend].train()
    expected, found = trainers["numpy"], trainers["cupy"]
    assert emulated_gpu.compiled
    lines = [without_times(trainer.state.log_history) for trainer in (expected, found)]
    for line, ours in zip(*lines, strict=True):
        assert ours == pytest.approx(line, rel=1e-4)
    weights = found.model.state_dict()
    for name, array in expected.model.state_dict().items():
        np.testing.assert_allclose(weights[name], array, rtol=1e-3, atol=2e-4, err_msg=name)


def test_a_diverging_run_is_noticed_when_the_loss_is_read(emulated_gpu, tmp_path):
    """The model before the step and its batches are kept, although more steps were begun since."""
    emulated_gpu.launches = deque(maxlen=0)  # which would keep their arguments alive, and the layers from graphs

    def trainer(folder, **more):
        return language_trainer(folder, **{"save_strategy": "no", **more})

    before = trainer(tmp_path / "before", max_steps=2, lr_scheduler_type="constant")
    before.train()
    run = trainer(tmp_path / "run", callbacks=[At(2, spoil)], logging_steps=4, lr_scheduler_type="constant")
    with pytest.raises(TrainingDiverged, match="step 3: the loss is nan") as caught:
        run.train()
    assert run.state.global_step == 4
    assert names_in(caught.value.folder)[0] == "batch-0.npz"
    kept = AutoModelForMaskedLM.from_pretrained(caught.value.folder).state_dict()
    for name, array in before.model.state_dict().items():
        assert np.isnan(kept[name]).all() or (kept[name] == array).all(), name


WAITS = {
    "masked words, batches in turns": (language_trainer, {"gradient_accumulation_steps": 2}),
    "muon, a class": (class_trainer, {"optim": "muon"}),
    "lamb, any norm": (class_trainer, {"optim": "lamb", "max_grad_norm": 0}),
    "low-rank adapters, layers again": (with_adapters, {"gradient_checkpointing": True}),
}


@pytest.mark.parametrize("run", cases(WAITS))
def test_a_step_waits_for_nothing(emulated_gpu, run, tmp_path):
    """From the second step on; the end waits where the loss is read, and where the graphs go with the model."""
    emulated_gpu.launches = deque(maxlen=0)  # which would keep their arguments alive, and the layers from graphs
    (make, settings), waits = run, []
    watch = At(1, lambda event: emulated_gpu.waits.clear()), At(3, lambda event: waits.extend(emulated_gpu.waits))
    make(tmp_path, callbacks=watch, max_steps=3, save_strategy="no", logging_steps=9, **settings).train()
    assert not waits
    assert [wait for wait in emulated_gpu.waits if wait != "Event.synchronize"] == ["get"]


@pytest.mark.parametrize("make", [language_trainer, pytest.param(class_trainer, marks=pytest.mark.slow)])
def test_products_in_sixteen_bits(emulated_gpu, make, tmp_path):
    """Losses near to those in float32, which a run in bfloat16 has as many steps for; parameters stay in float32."""
    settings, losses = {"max_steps": 3, "logging_steps": 1, "adam_epsilon": EPSILON, "save_strategy": "no"}, {}
    for precision in (None, "bf16"):
        emulated_gpu.launches.clear()
        trainer = make(tmp_path, **settings, **({precision: True} if precision else {}))
        trainer.train()
        losses[precision] = [line["loss"] for line in trainer.state.log_history[:3]]
    np.testing.assert_allclose(losses["bf16"], losses[None], rtol=0.05)
    assert losses["bf16"] != losses[None]
    kernels = {launch.kernel for launch in emulated_gpu.launches}
    assert {name for name in kernels if name.startswith(("norm", "attention_forward"))} == {
        name for name in kernels if name.startswith(("norm", "attention_forward")) and "bfloat16" in name
    }
    assert {array.dtype for array in trainer.model.state_dict().values()} == {np.dtype(np.float32)}


def test_float16_skips_what_overflows(emulated_gpu, tmp_path):
    """The first scale is too large for this model: nothing changes, the optimiser does not count that step."""
    settings = {"fp16": True, "logging_steps": 1, "adam_epsilon": EPSILON, "lr_scheduler_type": "constant"}

    def trainer(folder, max_steps=3):
        return language_trainer(folder, max_steps=max_steps, save_steps=1, **settings)

    before = trainer(tmp_path / "before").model
    whole, resumed = assert_resumes(trainer, tmp_path, steps=2)
    assert_same_weights(AutoModelForMaskedLM.from_pretrained(tmp_path / "whole" / "checkpoint-1"), before)
    lines = [(line["skipped_steps"], line["loss_scale"]) for line in whole.state.log_history[:3]]
    assert lines == [(1, 32768), (1, 32768), (1, 32768)]
    state = open_checkpoint(tmp_path / "whole" / "checkpoint-3" / "optimizer.safetensors")
    assert state["step_count"] == 2
    assert without_times(resumed.state.log_history) == without_times(whole.state.log_history)
    losses = [line["loss"] for line in whole.state.log_history[:3]]
    assert losses[2] < losses[0] and np.isfinite(losses).all()


FEW_WORDS = {"vocab_size": 400}
SMALL = {**FEW_WORDS, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
BETWEEN = {"gradient_accumulation_steps": 2, "gradient_checkpointing": True, "max_grad_norm": 0.5}
TWENTY_STEPS = {  # preset, what its config has otherwise, settings, tolerance
    "mini-bert": ("mini-bert", FEW_WORDS, {}, 1e-3),  # three layers of 192
    "mini-bert, bfloat16": ("mini-bert", FEW_WORDS, {"bf16": True}, 0.02),
    "mini-bert, float16": ("mini-bert", FEW_WORDS, {"fp16": True}, 0.05),
    "mini-bert, layers again": ("mini-bert", FEW_WORDS, BETWEEN, 1e-3),
    "tables by distance, layers again": ("deberta-v3-small", SMALL, BETWEEN, 1e-3),
    "biases by distance, layers again": ("mpnet-base", SMALL, BETWEEN, 1e-3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWENTY_STEPS)
def test_twenty_steps_follow_numpy(emulated_gpu, name, tmp_path):
    """With dropout. Sixteen bits are near to NumPy in float32, float16 a step behind: its first scale is too large."""
    preset, otherwise, more, tolerance = TWENTY_STEPS[name]
    rng = np.random.default_rng(0)
    words = [5 + (395 * rng.random(length) ** 4).astype(int) for length in rng.integers(4, 17, 64)]  # some are frequent
    texts = [{"input_ids": some.tolist()} for some in words]
    losses = {}
    for backend in ("numpy", "cupy"):
        settings = {"max_steps": 20, "logging_steps": 1, "per_device_train_batch_size": 4, "save_strategy": "no"}
        settings |= {name: value for name, value in more.items() if backend == "cupy" or name not in ("bf16", "fp16")}
        args = TrainingArguments(
            tmp_path / backend, learning_rate=5e-4, warmup_steps=4, report_to="none", disable_tqdm=True, **settings
        )
        with use_backend(backend):
            model = AutoModelForMaskedLM.from_config({**preset_config(preset), **otherwise}, seed=1)
            trainer = Trainer(model, args, MaskingCollator(), texts)
            trainer.train()
        losses[backend] = [line["loss"] for line in trainer.state.log_history[:20]]
    assert np.mean(losses["numpy"][-4:]) < np.mean(losses["numpy"][:4]) - 0.3
    np.testing.assert_allclose(losses["cupy"], losses["numpy"], rtol=tolerance)
