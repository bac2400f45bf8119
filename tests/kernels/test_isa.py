"""The choice of a level by the CPU's features, Linux's permission and BERTCORE_ISA."""

import errno

import pytest
from numba.core import config

from bertcore.cli import doctor
from bertcore.kernels import _numba
from bertcore.kernels._numba.amx import permission
from bertcore.kernels._numba.compile import isa
from tests.refusals import refuses

WITH_AMX = dict.fromkeys(isa.FEATURES, True)
x86_only = pytest.mark.skipif(not isa.IS_X86, reason="levels of x86")


@pytest.fixture
def machine(monkeypatch):
    """machine(features, answer, forced, cpu): a CPU with these features and name, Linux's answer to requests for tiles,
    and BERTCORE_ISA. Returns the list of requests."""
    asked = []

    def make(features=WITH_AMX, answer=None, forced=None, cpu="znver5"):
        asked.clear()
        monkeypatch.setattr(isa.llvm, "get_host_cpu_name", lambda: cpu)
        for module in (isa, _numba):
            monkeypatch.setattr(module, "host_features", lambda: dict.fromkeys(isa.FEATURES, False) | features)
        monkeypatch.setattr(isa, "request_tiles", lambda: asked.append("tiles") or answer)
        for module in (isa, doctor):
            monkeypatch.setattr(module, "setting", lambda name: forced if name == "ISA" else None)
        monkeypatch.setattr(config, "CPU_NAME", None)
        monkeypatch.setattr(config, "CPU_FEATURES", None)
        return asked

    return make


@x86_only
@pytest.mark.parametrize(("settings", "level", "requests"), [
    ({}, "amx", ["tiles"]),
    ({"answer": "Linux refused the tiles: why"}, "avx512_bf16", ["tiles"]),
    *(({"features": WITH_AMX | {name: False}}, "avx512_bf16", []) for name in ("amx-tile", "amx-int8", "amx-bf16")),
    ({"features": WITH_AMX | {"avx512bf16": False}}, "avx512_vnni", []),
    ({"answer": "refused", "cpu": "znver4"}, "avx512_bf16", ["tiles"]),
    ({"answer": "refused", "cpu": "sapphirerapids"}, "avx512_vnni", ["tiles"]),  # a slow vdpbf16ps
    ({"answer": "refused", "cpu": "x86-64"}, "avx512_vnni", ["tiles"]),
    ({"forced": "avx512_bf16", "cpu": "sapphirerapids"}, "avx512_bf16", []),
    ({"forced": "amx"}, "amx", ["tiles"]),
])  # fmt: skip
def test_level(machine, settings, level, requests):
    asked = machine(**settings)
    assert isa.choose_level().name == level
    assert asked == requests
    is_native = level == "amx" or "forced" not in settings  # compiled for the host, so that runs share the cache
    assert (config.CPU_NAME, config.CPU_FEATURES) == (None, None) if is_native else config.CPU_NAME == "x86-64-v4"


@pytest.mark.parametrize("features", [{}, {"avx2": True, "fma": True}])
def test_emulated_tiles_are_never_the_default(machine, features):
    machine(features)
    assert isa.choose_level().tiles is None


@x86_only
def test_forced_level_that_linux_refuses(machine):
    machine(answer="Linux refused the tiles: why", forced="amx")
    refuses(ValueError, r"BERTCORE_ISA='amx', but Linux refused the tiles: why", isa.choose_level)
    assert config.CPU_NAME is None


@x86_only
@pytest.mark.parametrize(("settings", "target", "expected"), [
    ({}, None, "used: the CPU and Linux offer it"),
    ({"forced": "amx"}, None, "used: BERTCORE_ISA=amx"),
    ({"forced": "avx2"}, None, "not used: BERTCORE_ISA=avx2"),
    ({"answer": "Linux refused the tiles: why"}, None, "not used: Linux refused the tiles: why"),
    ({}, "x86-64-v3", "not used: NUMBA_CPU_NAME or NUMBA_CPU_FEATURES is set"),
])  # fmt: skip
def test_doctor_explains_the_use_of_amx(machine, monkeypatch, settings, target, expected):
    machine(**settings)
    if target:
        monkeypatch.setattr(config, "CPU_NAME", target)
    monkeypatch.setattr(_numba, "LEVEL", isa.choose_level())
    assert dict(doctor.cpu_rows(None))["AMX"] == expected


@pytest.mark.parametrize(
    ("error", "reason"),
    [(0, None), (errno.ENOSPC, "signal stack"), (errno.EINVAL, "5.16"), (errno.EPERM, "sandbox"), (errno.EIO, "error")],
)
def test_request_for_tiles(monkeypatch, error, reason):
    monkeypatch.setattr(permission.sys, "platform", "linux")
    calls = []
    found = permission.request_tiles(lambda *arguments: calls.append(arguments) or error)
    assert calls == [(158, 0x1023, 18)]
    assert found is None if reason is None else reason in found


def test_no_request_for_tiles_on_other_systems(monkeypatch):
    monkeypatch.setattr(permission.sys, "platform", "darwin")
    assert "darwin" in permission.request_tiles(lambda *arguments: pytest.fail("requested"))
