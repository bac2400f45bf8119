"""Whether a kernel, as compiled for a GPU, can be started as a launcher asks: threads, registers, shared memory."""

import functools
import struct
from typing import NamedTuple

from tests.kernels.machine_code import compiled

from .modules import module_with

# Bytes of shared memory that a block may have if it asks for them (CUDA C++ Programming Guide, table of compute
# capabilities).
SHARED_LIMIT = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
STATIC_GRANT = 48 << 10  # without asking, what is declared with its size included
REGISTERS = 64 << 10  # of a multiprocessor, given to warps in pieces of 256
MAX_THREADS = 0x05  # EIATTR_MAX_THREADS


class Uses(NamedTuple):
    """What a kernel takes: registers of a thread, declared shared memory, and the most threads of its launch bounds."""

    registers: int
    shared_bytes: int
    threads: int


class TooManyResources(AssertionError):
    """A launch that the driver would refuse."""


@functools.cache
def uses_of(kernel, text, compute_capability):
    """The Uses of a kernel (name expression) of a source; all kernels of its module are compiled, once."""
    instantiations = tuple(dict.fromkeys(module_with(kernel, text).instantiations))
    made = compiled(text, instantiations, f"sm_{compute_capability}")
    resources = made.resources[kernel]
    threads = launch_bounds(made.cubin.read_bytes(), made.symbols[kernel])
    return Uses(resources["registers"], resources["shared_bytes"], threads)


def launch_bounds(cubin, symbol):
    """The threads of __launch_bounds__, or 1024: from the section .nv.info.<symbol> of the ELF file."""
    section = _section(cubin, f".nv.info.{symbol}")
    place = 0
    while place < len(section):
        form, attribute, size = struct.unpack_from("<BBH", section, place)
        place += 4
        if form == 4:  # `size` bytes follow; else it is the value itself
            if attribute == MAX_THREADS:
                x, y, z = struct.unpack_from("<3I", section, place)
                return x * y * z
            place += size
    return 1024


def _section(elf, wanted):
    (table,), (count, names) = struct.unpack_from("<Q", elf, 40), struct.unpack_from("<HH", elf, 60)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + 64 * index) for index in range(count)]
    texts = elf[headers[names][4] :]
    for name, *_, offset, size in headers:
        if texts[name : texts.index(b"\0", name)].decode() == wanted:
            return elf[offset : offset + size]
    raise LookupError(f"the cubin has no section {wanted}")


def check_launch(kernel, uses, compute_capability, threads, shared_bytes, granted):
    """Raise TooManyResources for a launch that fails on that GPU; `granted`: dynamic bytes asked for, None if none."""
    most = SHARED_LIMIT[compute_capability] if granted is not None else STATIC_GRANT
    warps = -(-threads // 32)
    registers = warps * -(-uses.registers * 32 // 256) * 256
    for what, wanted, there in (
        ("threads of a block", threads, uses.threads),
        ("registers of a block", registers, REGISTERS),
        ("bytes of shared memory", uses.shared_bytes + shared_bytes, most),
        ("bytes of dynamic shared memory", shared_bytes, STATIC_GRANT if granted is None else granted),
    ):
        if wanted > there:
            raise TooManyResources(f"{kernel} on sm_{compute_capability}: {wanted} {what}, there are {there}")
