"""Several processes train one model: started by a real MPI, beside a run of one process."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertcore import AutoModelForMaskedLM, load_model, use_backend
from bertcore.training.processes import Processes, buckets_of
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.processes import ROOT, environment, start_python
from tests.tiny_bert import CONFIG, random_texts
from tests.training.process_of_a_run import NO_DROPOUT
from tests.training.tiny_runs import class_trainer, classifier, language_trainer

MPIRUN = shutil.which("mpirun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
has_mpi = pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpirun and mpi4py"
)


def start(count, *arguments, module="tests.training.process_of_a_run"):
    command = [MPIRUN, "-n", str(count), sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=300
    )


def weights(folder, count):
    """Return the final weights, which all processes share."""
    found = [dict(np.load(folder / f"process-{index}.npz")) for index in range(count)]
    for other in found[1:]:
        assert found[0].keys() == other.keys()
        assert all(np.array_equal(array, other[name]) for name, array in found[0].items())
    return found[0]


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    """The folder of a run of two processes."""
    folder = tmp_path_factory.mktemp("two")
    ended = start(2, folder)
    assert ended.returncode == 0, ended.stderr
    return folder


@has_mpi
def test_two_processes_equal_one_that_accumulates(run_of_two, tmp_path):
    alone = language_trainer(tmp_path / "one", gradient_accumulation_steps=2)
    alone.train()
    found = weights(run_of_two, 2)
    for name, array in alone.model.state_dict().items():  # dropout and masking, too, go by the number of the batch
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert found["steps"] == 7


@has_mpi
@pytest.mark.slow
@pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))
def test_two_gpus_equal_one_that_accumulates(tmp_path):
    """In the emulator, MPI in the place of NCCL: each process has a GPU, and gradients do not pass the host."""
    settings = {"max_steps": 2, "save_steps": 2}
    ended = start(2, tmp_path / "two", "--gpu", "--set", *(f"{name}={value}" for name, value in settings.items()))
    assert ended.returncode == 0, ended.stderr
    with driverless(), use_backend("cupy"):
        alone = language_trainer(tmp_path / "one", gradient_accumulation_steps=2, **settings)
        alone.train()
        expected = alone.model.state_dict()
    found = weights(tmp_path / "two", 2)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert found["steps"] == 2


EPSILON = 0.001  # with Adam's own, rounding decides where the gradient of a key's bias, zero, goes
SAME_RUNS = {  # processes, their settings, what one process has in their place, tolerance
    "products in bfloat16": (2, {"bf16": True, "max_steps": 2}, {"gradient_accumulation_steps": 2}, 0.0),
    "two of three without a last batch": (
        3,
        {"per_device_train_batch_size": 11, "gradient_accumulation_steps": 2, "max_steps": 3},  # of 23 examples
        {"gradient_accumulation_steps": 6},
        1e-5,
    ),
    "twice the batch": (
        2, {"per_device_train_batch_size": 3, "adam_epsilon": EPSILON}, {"per_device_train_batch_size": 6}, 1e-5
    ),
}  # fmt: skip


@has_mpi
@pytest.mark.slow
@pytest.mark.parametrize("name", SAME_RUNS)
def test_several_processes_equal_one(tmp_path, name):
    count, settings, instead, tolerance = SAME_RUNS[name]
    kind = ("--kind", "class") if name == "twice the batch" else ()
    ended = start(count, tmp_path / "all", *kind, "--set", *(f"{key}={value}" for key, value in settings.items()))
    assert ended.returncode == 0, ended.stderr
    if kind:
        alone = class_trainer(tmp_path / "one", model=classifier(**NO_DROPOUT), **settings | instead)
    else:
        alone = language_trainer(tmp_path / "one", **settings | instead)
    alone.train()
    found = weights(tmp_path / "all", count)
    for key, array in alone.model.state_dict().items():
        np.testing.assert_allclose(found[key], array, rtol=tolerance, atol=tolerance, err_msg=key)


@has_mpi
@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "fail"])
def test_a_process_that_dies_ends_the_run_and_the_checkpoint_resumes(run_of_two, tmp_path, action):
    broken = tmp_path / "broken"
    ended = start(2, broken, "--action", action)
    assert ended.returncode != 0
    message = "process 1 of 2 failed" if action == "fail" else "killed"
    assert message in (ended.stdout + ended.stderr).lower()
    assert not (broken / "process-0.npz").exists()
    resumed = start(2, broken, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert all(np.array_equal(weights(run_of_two, 2)[name], array) for name, array in weights(broken, 2).items())


@has_mpi
@pytest.mark.slow
@pytest.mark.parametrize("arguments, message", [
    (("--action", "stop"), ""),
    (("--action", "interrupt"), "KeyboardInterrupt"),
    (("--differ",), "the model differs between processes"),
])  # fmt: skip
def test_one_process_ends_the_run_of_all(tmp_path, arguments, message):
    ended = start(2, tmp_path, *arguments)
    assert (ended.returncode != 0) == bool(message) and message in ended.stderr
    assert (tmp_path / "checkpoint-4").is_dir() == ("--action" in arguments)
    assert message or weights(tmp_path, 2)["steps"] == 4


@has_mpi
def test_the_command_pretrains_in_two_processes(tmp_path):
    texts, config = tmp_path / "texts.txt", tmp_path / "bert.json"
    texts.write_text("\n\n".join(random_texts(40, longest=20)))
    config.write_text(json.dumps(CONFIG))
    options = ["--model", config, "--max-steps", 2, "--batch", 4, "--held-out", 0.2, "--backend", "numpy"]
    ended = start(2, "pretrain", texts, "--out", tmp_path / "out", *options, module="bertcore")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("steps     2 in") == ended.stdout.count("masked_accuracy") == 1
    assert type(load_model(tmp_path / "out")) is AutoModelForMaskedLM
    again = start(2, "pretrain", texts, "--out", tmp_path / "out", *options, module="bertcore")
    assert again.returncode != 0
    assert again.stderr.count("go on with --resume") == 1


@has_mpi
def test_another_number_of_processes_does_not_resume(run_of_two):
    with pytest.raises(ValueError, match=r"the number of processes is 1, in .* it was 2"):
        language_trainer(run_of_two).train(resume_from_checkpoint=True)


def test_one_process_alone():
    alone = Processes()
    array = np.arange(3.0)
    alone.add_up([array])
    np.testing.assert_array_equal(array, [0, 1, 2])
    assert alone.gathered("x") == ["x"]
    assert alone.from_first(lambda: 5) == 5
    alone.check_same("anything", 1)


@pytest.mark.parametrize("shapes", [[], [()], [(0,)], [(3,), (2, 5)], [(17,)], [(1, 40)], [(7, 3, 2), (13, 1), (1,)]])
def test_buckets_hold_every_element_once(shapes):
    arrays = [np.zeros(shape) for shape in shapes]
    buckets = buckets_of(arrays, 8)
    for bucket in buckets:
        assert 0 < sum(piece.size for piece in bucket) <= 8
        for piece in bucket:
            piece += 1
    assert all((array == 1).all() for array in arrays)


def test_a_launcher_without_mpi4py(tmp_path):
    (tmp_path / "mpi4py.py").write_text("raise ImportError('not here')")
    code = "from bertcore.training.processes import started_together; started_together()"
    _, problem = start_python(code, PMI_SIZE="2", PYTHONPATH=str(tmp_path)).communicate()
    assert "2 processes were started by MPI, which needs mpi4py: pip install mpi4py" in problem
