"""The choice of a level: what the CPU has, what Linux permits, what the variable says."""

import errno

import pytest
from numba.core import config

from bertcore.cli import doctor
from bertcore.kernels import _numba
from bertcore.kernels._numba import amx as tile_permission
from bertcore.kernels._numba.compile import isa

WITH_AMX = dict.fromkeys(isa.FEATURES, True)
x86_only = pytest.mark.skipif(not isa.IS_X86, reason="levels of x86")


@pytest.fixture
def machine(monkeypatch):
    """machine(features, answer, tried, forced, cpu): a CPU of these features and name whose Linux answers so, and whose
    tiles have been tried with that outcome (None: they are right); what was asked, in order."""
    asked = []

    def make(features=WITH_AMX, answer=None, tried=None, forced=None, cpu="znver5"):
        asked.clear()
        monkeypatch.setattr(isa.llvm, "get_host_cpu_name", lambda: cpu)
        for module in (isa, _numba):
            monkeypatch.setattr(module, "host_features", lambda: dict.fromkeys(isa.FEATURES, False) | features)
        monkeypatch.setattr(isa, "request_tiles", lambda: asked.append("Linux") or answer)
        monkeypatch.setattr(isa, "why_not_trusted", lambda level: asked.append(level) or tried)
        for module in (isa, doctor):
            monkeypatch.setattr(module, "setting", lambda name: forced if name == "ISA" else None)
        monkeypatch.setattr(config, "CPU_NAME", None)
        monkeypatch.setattr(config, "CPU_FEATURES", None)
        return asked

    return make


@x86_only
def test_tiles_that_are_right_are_taken_unasked(machine):
    asked = machine()
    level = isa._choose_level()
    assert (level.name, level.tiles) == ("amx", isa.NATIVE)
    assert asked == ["Linux", "amx"]
    assert config.CPU_NAME is None


@x86_only
@pytest.mark.parametrize(
    ("refusal", "questions"),
    [({"answer": "Linux refused the tiles: why"}, ["Linux"]), ({"tried": "SIGILL"}, ["Linux", "amx"])],
)
def test_tiles_that_are_refused_or_wrong_are_not_taken(machine, refusal, questions):
    asked = machine(**refusal)
    assert isa._choose_level().name == "avx512_bf16"
    assert asked == questions


@x86_only
@pytest.mark.parametrize("missing", ["amx-tile", "amx-int8", "amx-bf16", "avx512bf16"])
def test_without_amx_nothing_is_asked_or_tried(machine, missing):
    asked = machine(WITH_AMX | {missing: False})
    assert isa._choose_level().tiles is None
    assert asked == []


@x86_only
@pytest.mark.parametrize(
    ("cpu", "level"),
    [
        ("znver4", "avx512_bf16"),
        ("znver5", "avx512_bf16"),
        ("sapphirerapids", "avx512_vnni"),
        ("x86-64", "avx512_vnni"),
    ],
)
def test_the_instruction_for_bfloat16_is_taken_where_it_is_faster(machine, cpu, level):
    machine(cpu=cpu, answer="refused")
    assert isa._choose_level().name == level
    machine(cpu=cpu, forced="avx512_bf16")
    assert isa._choose_level().name == "avx512_bf16"


@pytest.mark.parametrize("features", [{}, {"avx2": True, "fma": True}])
def test_the_twin_is_never_taken_unasked(machine, features):
    machine(features)
    assert isa._choose_level().tiles is None


@x86_only
def test_the_variable_forbids_and_forces(machine):
    asked = machine(forced="avx512_bf16")
    assert isa._choose_level().name == "avx512_bf16"
    assert asked == []
    assert config.CPU_NAME == "x86-64-v4"
    asked = machine(forced="amx", tried="SIGILL")
    assert isa._choose_level().name == "amx"
    assert asked == ["Linux"]  # the process that tries the tiles forces them: it must not start another


@x86_only
def test_what_is_compiled_where_tiles_are_tried_serves_where_they_are_taken(machine):
    machine(forced="amx")
    isa._choose_level()
    assert (config.CPU_NAME, config.CPU_FEATURES) == (None, None)


@x86_only
def test_what_is_forced_and_refused_is_an_error(machine):
    machine(answer="Linux refused the tiles: why", forced="amx")
    with pytest.raises(ValueError, match=r"BERTCORE_ISA='amx', but Linux refused the tiles: why"):
        isa._choose_level()
    assert config.CPU_NAME is None


@x86_only
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "used: its tiles were tried on this machine, and every bit was right"),
        ({"forced": "amx"}, "used: BERTCORE_ISA=amx"),
        ({"forced": "avx2"}, "not used: BERTCORE_ISA=avx2"),
        ({"answer": "Linux refused the tiles: why"}, "not used: Linux refused the tiles: why"),
        ({"tried": "the process that tried them ended by SIGILL"},
         "not used: the process that tried them ended by SIGILL"),
    ],
)  # fmt: skip
def test_doctor_says_whether_amx_is_used_and_why(machine, monkeypatch, settings, said):
    machine(**settings)
    monkeypatch.setattr(_numba, "LEVEL", isa._choose_level())
    assert dict(doctor._cpu(None))["AMX"] == said


@x86_only
def test_doctor_says_that_another_target_was_chosen(machine, monkeypatch):
    machine()
    monkeypatch.setattr(config, "CPU_NAME", "x86-64-v3")
    monkeypatch.setattr(_numba, "LEVEL", isa._choose_level())
    assert dict(doctor._cpu(None))["AMX"] == "not used: Numba's target was chosen (NUMBA_CPU_NAME)"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (0, None),
        (errno.ENOSPC, "signal stack"),
        (errno.EINVAL, "5.16"),
        (errno.EPERM, "sandbox"),
        (errno.EIO, "error"),
    ],
)
def test_the_request(monkeypatch, error, reason):
    monkeypatch.setattr(tile_permission.sys, "platform", "linux")
    calls = []
    found = tile_permission.request_tiles(lambda *arguments: calls.append(arguments) or error)
    assert calls == [(158, 0x1023, 18)]
    assert found is None if reason is None else reason in found


def test_other_systems_are_not_asked(monkeypatch):
    monkeypatch.setattr(tile_permission.sys, "platform", "darwin")
    assert "darwin" in tile_permission.request_tiles(lambda *arguments: pytest.fail("asked"))
