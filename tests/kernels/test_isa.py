"""The choice of a level: what the CPU has, what Linux permits, what the variable says."""

import errno

import pytest
from numba.core import config

from bertcore.cli import doctor
from bertcore.kernels import _numba
from bertcore.kernels._numba import isa, tile_permission

WITH_AMX = dict.fromkeys(isa.FEATURES, True)
x86_only = pytest.mark.skipif(not isa.IS_X86, reason="levels of x86")


@pytest.fixture
def machine(monkeypatch):
    """machine(features, answer, forced, cpu): a CPU of these features and name whose Linux answers so; the requests it
    got."""
    requests = []

    def answer_with(answer):
        return lambda: requests.append(answer) or answer

    def make(features=WITH_AMX, answer=None, forced=None, cpu="znver5"):
        requests.clear()
        monkeypatch.setattr(isa.llvm, "get_host_cpu_name", lambda: cpu)
        for module in (isa, _numba):
            monkeypatch.setattr(module, "host_features", lambda: dict.fromkeys(isa.FEATURES, False) | features)
        monkeypatch.setattr(isa, "request_tiles", answer_with(answer))
        for module in (isa, doctor):
            monkeypatch.setattr(module, "setting", lambda name: forced if name == "ISA" else None)
        monkeypatch.setattr(config, "CPU_NAME", None)
        monkeypatch.setattr(config, "CPU_FEATURES", None)
        return requests

    return make


@x86_only
def test_tiles_are_never_taken_unasked(machine):
    requests = machine()
    level = isa._choose_level()
    assert (level.name, level.tiles) == ("avx512_bf16", None)
    assert requests == []
    assert config.CPU_NAME is None


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
    machine(cpu=cpu)
    assert isa._choose_level().name == level
    machine(cpu=cpu, forced="avx512_bf16")
    assert isa._choose_level().name == "avx512_bf16"


@pytest.mark.parametrize("features", [{}, {"avx2": True, "fma": True}])
def test_the_twin_is_never_taken_unasked(machine, features):
    machine(features)
    assert isa._choose_level().tiles is None


@x86_only
def test_the_variable_forbids_and_forces(machine):
    requests = machine(forced="avx512_bf16")
    assert isa._choose_level().name == "avx512_bf16"
    assert requests == []
    requests = machine(forced="amx")
    assert isa._choose_level().name == "amx"
    assert requests == [None]
    assert config.CPU_NAME == "sapphirerapids"
    assert "+amx-bf16" in config.CPU_FEATURES


@x86_only
def test_what_is_forced_and_refused_is_an_error(machine):
    machine(answer="Linux refused the tiles: why", forced="amx")
    with pytest.raises(ValueError, match=r"BERTCORE_ISA='amx', but Linux refused the tiles: why"):
        isa._choose_level()
    assert config.CPU_NAME is None


@x86_only
def test_doctor_says_why_amx_is_not_used(machine, monkeypatch):
    machine(answer="Linux refused the tiles: why")
    monkeypatch.setattr(_numba, "LEVEL", isa._choose_level())
    assert dict(doctor._cpu(None))["AMX"] == "not used: Linux refused the tiles: why"
    machine(forced="avx2")
    monkeypatch.setattr(_numba, "LEVEL", isa._choose_level())
    assert dict(doctor._cpu(None))["AMX"] == "not used: BERTCORE_ISA=avx2"
    machine()
    monkeypatch.setattr(_numba, "LEVEL", isa._choose_level())
    assert dict(doctor._cpu(None))["AMX"].startswith("not used: BERTCORE_ISA=amx asks for it")
    machine(forced="amx")
    monkeypatch.setattr(_numba, "LEVEL", isa._choose_level())
    rows = dict(doctor._cpu(None))
    assert "AMX" not in rows
    assert rows["compiled for"].startswith("amx,")


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
