"""What the compiler makes of kernels, read from their machine code: registers, memory, instructions. No GPU needed.

    code = machine_code(KERNELS, ("softmax_rows<__half, 32, 3>",), "sm_90")["softmax_rows<__half, 32, 3>"]
    code.registers, code.shared_bytes                # of a thread, of a block
    code.count("HMMA"), code.count("LDG", "128")     # instructions whose names have these parts
    code.loop("HMMA").count()                        # instructions of the innermost loop that has one

KERNELS is the `_cuda.Module` of an operation. NVRTC and nvdisasm come from PyPI (extra `test`). What was compiled once
is kept, by content. Instructions are counted as they stand: both ways of a branch, each once.
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
INSTRUCTION_BYTES = 16
ENTRY = re.compile(
    r"Compiling entry function '(?P<symbol>\w+)'.*?"
    r"(?P<frame>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers[^\n]*",
    re.DOTALL,
)
SHARED = re.compile(r"(\d+) bytes smem")


def disassembler():
    """Path of nvdisasm, or None if it is not installed."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm")
    except importlib.metadata.PackageNotFoundError:
        return None
    return next(file.locate() for file in files if file.stem == "nvdisasm" and file.parent.name == "bin")


class Instruction(NamedTuple):
    """One instruction: "LDG.E.128" and "R4,desc[UR4][R2.64]"."""

    name: str
    operands: str


class Instructions(tuple):
    """Instructions in the order of memory, the first at `start`: a kernel's, or a loop's of it."""

    def __new__(cls, instructions, start=0):
        self = super().__new__(cls, instructions)
        self.start = start
        return self

    def count(self, *parts):
        """How many have all these parts in their names: "LDG", "128"; without parts all but padding."""
        return sum(set(parts) <= set(each.name.split(".")) and each.name != "NOP" for each in self)

    def loops(self):
        """The loops, each from where a branch jumps back to, to that branch; the smallest first."""
        found = {}
        for index, each in enumerate(self):
            target = re.search(r"0x[0-9a-f]+$", each.operands)
            if each.name.split(".")[0] == "BRA" and target is not None:
                first = int(target[0], 16) // INSTRUCTION_BYTES - self.start
                if 0 <= first < index:  # the branch to itself that ends a kernel is none
                    found[first] = max(index + 1, found.get(first, 0))
        return sorted((Instructions(self[first:end], self.start + first) for first, end in found.items()), key=len)

    def loop(self, *parts):
        """The innermost loop that has an instruction whose name has these parts."""
        return next(loop for loop in self.loops() if loop.count(*parts))


class MachineCode(Instructions):
    """A kernel's instructions, and what it takes of the machine."""

    def __new__(cls, instructions, resources):
        self = super().__new__(cls, instructions)
        self.registers = resources["registers"]
        self.stack_bytes = resources["stack_bytes"]
        self.shared_bytes = resources["shared_bytes"]  # what is declared with its size
        return self


class Compiled(NamedTuple):
    """What NVRTC made of a source."""

    cubin: Path
    resources: dict  # {name expression: {"registers", "stack_bytes", "shared_bytes"}}
    symbols: dict  # {name expression: symbol in the cubin}


def compiled(text, kernels, architecture):
    """The kernels (name expressions) of a source; raises with NVRTC's message when something does not compile."""
    version = importlib.metadata.version("nvidia-cuda-nvrtc")
    content = "\0".join((text, *kernels, architecture, *_cuda.OPTIONS, version))
    digest = hashlib.sha256(content.encode()).hexdigest()[:24]
    cubin, notes = CACHE / f"{digest}.cubin", CACHE / f"{digest}.json"
    if not notes.exists():
        code, symbols, log = _compile(text, kernels, architecture)
        CACHE.mkdir(parents=True, exist_ok=True)
        cubin.write_bytes(code)
        notes.write_text(json.dumps([_resources(log, symbols), symbols]))
    return Compiled(cubin, *json.loads(notes.read_text()))


def _compile(text, kernels, architecture):
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        std="c++17",
        arch=architecture,
        ftz=True,  # as CuPy has it
        include_path=[str(folder) for folder in cuda_include_folders()],
        ptxas_options=["-v"],
    )
    log = io.StringIO()
    made = Program(text, "c++", options).compile("cubin", name_expressions=tuple(kernels), logs=log)
    symbols = {kernel: made.symbol_mapping[kernel].decode() for kernel in kernels}
    return made.code, symbols, log.getvalue().rstrip("\0")


def _resources(log, symbols):
    entries = {entry["symbol"]: entry for entry in ENTRY.finditer(log)}
    found = {}
    for kernel, symbol in symbols.items():
        entry = entries[symbol]
        shared = SHARED.search(entry[0])
        found[kernel] = {
            "registers": int(entry["registers"]),
            "stack_bytes": sum(map(int, entry.group("frame", "stores", "loads"))),  # spills, arrays indexed at run time
            "shared_bytes": int(shared[1]) if shared else 0,
        }
    return found


def machine_code(module, kernels, architecture):
    """{name expression: MachineCode} of some of the kernels of a `_cuda.Module`."""
    return read(compiled(module.text, tuple(kernels), architecture))


def read(source):
    """{name expression: MachineCode} of a `Compiled`."""
    command = [disassembler(), "--emit-json", source.cubin]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions = {function["function-name"]: function["sass-instructions"] for function in json.loads(said)[1]}
    return {
        kernel: MachineCode(
            (Instruction(each["opcode"], each.get("operands", "")) for each in functions[symbol]),
            source.resources[kernel],
        )
        for kernel, symbol in source.symbols.items()
    }
