"""64-bit ARM: kernels compiled for it on this machine and run by QEMU, their inner loops, and the choice of a level.

`pytest -m arm` needs qemu-aarch64-static and BERTCORE_ARM, a folder that `python -m tests.kernels.arm_machine` makes.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core import config

from bench.mca import inner_loop
from bertcore.kernels._numba.compile import isa
from tests.kernels import arm_run

QEMU = shutil.which("qemu-aarch64-static")
ROOT = Path(__file__).parents[2]
# QEMU's CPU, the level that it has, and the name of a CPU to compile for, if not that of the level.
MACHINES = [
    ("neoverse-n1", "neon_dotprod", "generic"),
    ("max", "neon_i8mm", "neoverse-v2"),
    ("cortex-a72", "neon", "generic"),
]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """machine(cpu, arguments): Python on that CPU, with a model and a cache in the folder machine.folder."""
    place = os.environ.get("BERTCORE_ARM")
    if QEMU is None or place is None:
        pytest.skip("no qemu-aarch64-static, or BERTCORE_ARM is not set")
    from bertcore import AutoModelForMaskedLM
    from tests.model_calls import CONFIG

    folder, place = tmp_path_factory.mktemp("arm"), Path(place)
    AutoModelForMaskedLM.from_config(CONFIG, seed=7).save_pretrained(folder / "model")
    settings = {
        "BERTCORE_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "2", "NUMBA_THREADING_LAYER": "workqueue",
        "PYTHONPYCACHEPREFIX": str(place / "pycache"),
    }  # fmt: skip

    def run(cpu, *arguments):
        command, path = [sys.executable], f"{ROOT}"
        if cpu is not None:
            root = place / "root"
            command, path = [QEMU, "-cpu", cpu, "-L", root, root / "usr/bin/python3.11"], f"{ROOT}:{place / 'site'}"
        environment = {**os.environ, **settings, "PYTHONPATH": path}
        environment.pop("BERTCORE_ISA", None)
        result = subprocess.run([*command, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
        return result.stdout

    run.folder = folder
    return run


@pytest.mark.arm
@pytest.mark.parametrize(("cpu", "level", "llvm_cpu"), MACHINES)
def test_on_qemu(machine, cpu, level, llvm_cpu):
    task = ["-m", "tests.kernels.arm_run", level, str(machine.folder), llvm_cpu]
    machine(None, *task, "compile")
    machine(cpu, *task)
    report = json.loads((machine.folder / "found.json").read_text())
    assert report["failures"] == [] and report["checks"] > 300
    assert report["compiled"] == []  # all of the code was made on this machine
    found = np.load(machine.folder / "found.npz")
    for size in arm_run.SIZES:
        result, _ = arm_run.linear("int8", *size)
        np.testing.assert_array_equal(found[f"int8 {size}"], result)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "elements", "instruction", "lane"), [
    ("neon_dotprod", "float32", "fmla", ".s[0]"),
    ("neon_dotprod", "int8", "sdot", ".4b[0]"),
    ("neon_i8mm", "int8", "smmla", ""),
    ("neon_i8mm", "bfloat16", "bfmmla", ""),
])  # fmt: skip
def test_inner_loops(level, elements, instruction, lane):
    """Sums stay in registers, and nothing occupies the units that multiply but multiplications."""
    command = [sys.executable, "-m", "bench.mca", "--assembly", "neoverse-v2", level, elements]
    code = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    loop = inner_loop(code, instruction)
    own = [line for line in loop if line.split()[0] == instruction]
    assert len(own) % 24 == 0 and own and all(line.endswith(lane) for line in own)
    assert not any("[sp" in line or line.split()[0] in ("mov", "dup", "ld1r", "ld1", "str") for line in loop)


@pytest.fixture
def arm_machine(monkeypatch):
    """arm_machine(features, cpu): the system's features and LLVM's name of the CPU."""

    def make(features, cpu):
        monkeypatch.setattr(isa, "IS_ARM", True)
        monkeypatch.setattr(isa, "LEVELS", isa.ARM_LEVELS)
        found = dict.fromkeys(("dotprod", "i8mm", "bf16"), False) | dict.fromkeys(features, True) | {"neon": True}
        monkeypatch.setattr(isa, "arm_features", lambda: found)
        monkeypatch.setattr(isa.llvm, "get_host_cpu_name", lambda: cpu)
        monkeypatch.setattr(config, "CPU_NAME", None)
        monkeypatch.setattr(config, "CPU_FEATURES", None)

    return make


@pytest.mark.parametrize(("features", "cpu", "forced", "level", "compiled_for"), [
    ([], "cortex-a72", "", "neon", ("cortex-a72", "+neon")),
    (["dotprod"], "apple-m1", "", "neon_dotprod", ("apple-m1", "+dotprod,+neon")),
    (["dotprod"], "generic", "", "neon_dotprod", ("neoverse-n1", "+dotprod,+neon")),
    (["dotprod", "i8mm"], "neoverse-n2", "", "neon_dotprod", ("neoverse-n2", "+dotprod,+neon")),
    (["dotprod", "i8mm", "bf16"], "neoverse-v2", "", "neon_i8mm", ("neoverse-v2", "+bf16,+dotprod,+i8mm,+neon")),
    (["dotprod", "i8mm", "bf16"], "neoverse-v2", "neon", "neon", ("cortex-a72", "+neon")),
])  # fmt: skip
def test_level(arm_machine, monkeypatch, features, cpu, forced, level, compiled_for):
    arm_machine(features, cpu)
    monkeypatch.setattr(isa, "setting", lambda name: forced)
    assert isa.choose_level().name == level
    assert compiled_for == (config.CPU_NAME, config.CPU_FEATURES)


def test_a_level_that_the_cpu_lacks(arm_machine, monkeypatch):
    arm_machine(["dotprod"], "neoverse-n1")
    monkeypatch.setattr(isa, "setting", lambda name: "neon_i8mm")
    with pytest.raises(ValueError, match="BERTCORE_ISA='neon_i8mm', but this CPU lacks bf16, i8mm"):
        isa.choose_level()


@pytest.mark.parametrize(("platform", "words", "names", "expected"), [
    ("linux", {16: 1 << 20}, (), {"dotprod"}),
    ("linux", {16: 1 << 20, 26: 1 << 13 | 1 << 14}, (), {"dotprod", "i8mm", "bf16"}),
    ("linux", {16: ~(1 << 20), 26: ~(3 << 13)}, (), set()),
    ("darwin", {}, ("hw.optional.arm.FEAT_DotProd",), {"dotprod"}),
    (
        "darwin",
        {},
        tuple(f"hw.optional.arm.FEAT_{name}" for name in ("DotProd", "I8MM", "BF16")),
        {"dotprod", "i8mm", "bf16"},
    ),
    ("win32", {}, (), set()),
])  # fmt: skip
def test_features(monkeypatch, platform, words, names, expected):
    monkeypatch.setattr(isa.sys, "platform", platform)
    monkeypatch.setattr(isa, "auxiliary_value", lambda entry: words.get(entry, 0))
    monkeypatch.setattr(isa, "sysctl", lambda name: 1 if name in names else None)
    assert {name for name, has in isa.arm_features().items() if has} == {"neon", *expected}
