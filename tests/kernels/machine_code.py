"""Machine code of CUDA kernels, compiled by NVRTC and read by nvdisasm (extra `test`); no GPU needed.

made = compiled(KERNELS.text, ("softmax_rows<__half, 32, 3>",), "sm_90")     # KERNELS: a `_cuda.Source`
made.local_bytes["softmax_rows<__half, 32, 3>"]      # spills, and arrays indexed at run time
instructions(made)["softmax_rows<__half, 32, 3>"]    # {"LDG.E.128", "HMMA.16816.F32", ...}
"""

import hashlib
import importlib.metadata
import io
import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from bertcore.kernels import _cuda
from tests.cuda_emulator.build import cuda_include_folders

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")  # the GPU generations that we support
CACHE = Path(__file__).parents[2] / "build" / "cuda_compile"
ENTRY = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
    re.DOTALL,
)


def disassembler():
    """Return the path of nvdisasm, or None if it is not installed."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm")
    except importlib.metadata.PackageNotFoundError:
        return None
    return next(file.locate() for file in files if file.stem == "nvdisasm" and file.parent.name == "bin")


class Compiled(NamedTuple):
    """The machine code of some kernels, which are named by their name expressions."""

    cubin: Path
    local_bytes: dict  # {kernel: bytes kept in local memory instead of registers}
    symbols: dict  # {kernel: symbol in the cubin}


def compiled(text, kernels, architecture):
    """Compile some kernels of a source, or read them from the cache; raises with NVRTC's message on failure."""
    version = importlib.metadata.version("nvidia-cuda-nvrtc")
    content = "\0".join((text, *kernels, architecture, *_cuda.OPTIONS, version))
    cubin = CACHE / f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.cubin"
    notes = cubin.with_suffix(".json")
    if not notes.exists():
        code, symbols, log = _compile(text, kernels, architecture)
        bytes_of = {symbol: sum(map(int, found)) for symbol, *found in ENTRY.findall(log)}
        CACHE.mkdir(parents=True, exist_ok=True)
        cubin.write_bytes(code)
        notes.write_text(json.dumps([{kernel: bytes_of[symbol] for kernel, symbol in symbols.items()}, symbols]))
    return Compiled(cubin, *json.loads(notes.read_text()))


def _compile(text, kernels, architecture):
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        std="c++17",
        arch=architecture,
        ftz=True,  # as CuPy does
        include_path=[str(folder) for folder in cuda_include_folders()],
        ptxas_options=["-v"],
    )
    log = io.StringIO()
    made = Program(text, "c++", options).compile("cubin", name_expressions=tuple(kernels), logs=log)
    return made.code, {kernel: made.symbol_mapping[kernel].decode() for kernel in kernels}, log.getvalue()


def instructions(made):
    """Return {kernel: the names of its instructions, a set} of a `Compiled`."""
    command = [disassembler(), "--emit-json", made.cubin]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {it["function-name"]: {each["opcode"] for each in it["sass-instructions"]} for it in json.loads(output)[1]}
    return {kernel: names[symbol] for kernel, symbol in made.symbols.items()}
