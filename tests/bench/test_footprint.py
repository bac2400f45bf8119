"""The benchmark of sizes: what is counted, and that memory is read while texts go through."""

import os
from importlib import metadata

import pytest

from bench import footprint
from bench.memory import resident
from tests.tiny_bert import save_tiny_encoder


def test_what_is_installed_is_what_is_required_without_extras():
    sizes = footprint.installed()
    assert {"bertcore", "numpy", "numba", "llvmlite", "tokenizers", "safetensors"} <= set(sizes)
    assert not {"torch", "cupy-cuda13x", "starlette", "pytest"} & set(sizes)
    assert sizes["llvmlite"][0] > 50 and 1 < sizes["bertcore"][0] < 10
    on_disk = sum(file.locate().stat().st_size for file in metadata.files("safetensors")) / 1e6
    assert sum(sizes["safetensors"]) == pytest.approx(on_disk)


def test_memory_is_that_of_the_process():
    now = resident()
    held = bytearray(os.urandom(1 << 20)) * 64
    assert 60 < resident() - now < 80 and resident("VmHWM") >= resident(process=os.getpid()) - 1
    del held


@pytest.mark.slow
def test_memory_of_texts_and_of_embed(tmp_path):
    folder = save_tiny_encoder(tmp_path / "tiny")
    before, loaded, warm, peak = footprint.memory_of_texts(folder, 30)
    assert 10 < before < loaded < warm <= peak < 1000
    found = dict(footprint.memory_of_embed(folder, 3000))
    assert tuple(found) == footprint.SHARES and all(50 < megabytes < 1000 for megabytes in found.values())
    assert found[1.0] < 1.1 * found[0.1]
    with pytest.raises(RuntimeError, match="ended with 1 after 0 of 10 texts"):
        list(footprint.memory_of_embed(tmp_path, 10))
