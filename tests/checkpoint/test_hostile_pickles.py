"""Hostile files of torch.save: each is an error that names the file, and no code runs."""

import contextlib
import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertcore.checkpoint.pickle_file import KNOWN_NAMES, PickleFile
from bertcore.checkpoint.pickle_machine import Refused, read_pickle
from tests.checkpoint import pickle_files as build
from tests.checkpoint.pickle_files import FORMATS, SOUND, VALUES, refused


class Payload:
    """Pickles to a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def mark(folder: Path) -> Path:
    """Return the file that a payload makes if it runs."""
    return folder / "it-was-run"


def attacks(folder: Path) -> dict[str, bytes]:
    """Return pickles that Python's unpickler, or a careless one, would run; each would make the file `mark`."""
    import os

    touch, code = f"touch {mark(folder)}", f"open({str(mark(folder))!r}, 'w').close()"
    name, text, call = build.name, build.text, build.call
    dump = {f"protocol {number}": pickle.dumps({"w": Payload(os.system, touch)}, number) for number in range(6)}
    getter = call(name("builtins", "getattr"), name("builtins", "__import__"), text("__call__"))
    importer = call(name("builtins", "__import__"), text("os"))
    system = call(name("builtins", "getattr"), importer, text("system"))
    by_state = name("collections", "OrderedDict") + b")\x81}" + text("__class__") + name("os", "system") + b"sb"
    return {
        **dump,
        "os.system": b"\x80\x02" + call(name("os", "system"), text(touch)) + b".",
        "builtins.eval": b"\x80\x02" + call(name("builtins", "eval"), text(code)) + b".",
        "builtins.exec": b"\x80\x02" + call(name("builtins", "exec"), text(code)) + b".",
        "getattr": b"\x80\x02" + call(getter, text("os")) + b".",
        "attribute of a module": b"\x80\x02" + call(system, text(touch)) + b".",
        "dotted name": b"\x80\x04" + text("collections") + text("OrderedDict.__init__.__globals__") + b"\x93.",
        "name in a permitted module": b"\x80\x02" + call(name("torch", "load"), text("x")) + b".",
        "pickle in a pickle": b"\x80\x02" + call(name("torch.storage", "_load_from_bytes"), text("x")) + b".",
        "INST": b"(S'" + touch.encode() + b"'\nios\nsystem\n.",
        "INST after the protocol": b"\x80\x02(" + text(touch) + b"ios\nsystem\n.",
        "OBJ": b"\x80\x02(" + name("os", "system") + text(touch) + b"o.",
        "NEWOBJ": b"\x80\x02" + name("subprocess", "Popen") + build.group(text(touch)) + b"\x81.",
        "NEWOBJ of a permitted name": b"\x80\x02" + name("collections", "OrderedDict") + b")\x81.",
        "NEWOBJ_EX": b"\x80\x04" + name("collections", "OrderedDict") + b")}\x92.",
        "state that sets a class": b"\x80\x02" + by_state + b".",
        "EXT1": b"\x80\x02\x82\x01)R.",
        "EXT2": b"\x80\x02\x83\x01\x00)R.",
        "EXT4": b"\x80\x02\x84\x01\x00\x00\x00)R.",
        "PERSID": b"\x80\x02Pos.system\n.",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "READONLY_BUFFER": b"\x80\x05\x97\x98.",
        "in the dict": build.state_dict({"w": call(name("os", "system"), text(touch))}),
        "as a tensor's hook": build.state_dict({"w": build.tensor().replace(
            build.ordered_dict(), call(name("os", "system"), text(touch)))}),
        "in the attributes": SOUND[:-1] + b"}" + text("_metadata") + call(name("os", "system"), text(touch)) + b"sb.",
        "as a tensor's storage": build.state_dict({"w": build.tensor(of=call(name("os", "system"), text(touch)))}),
        "call of what was computed": b"\x80\x02" + call(build.tensor(), text(touch)) + b".",
        "call of a dtype": b"\x80\x02" + call(name("torch", "float32"), text(touch)) + b".",
        "call of text": b"\x80\x02" + call(text("os.system"), text(touch)) + b".",
    }  # fmt: skip


ATTACKS = attacks(Path("/tmp"))


class TestNothingIsRun:
    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("attack", ATTACKS)
    def test_attack(self, tmp_path, attack, form):
        pickled = attacks(tmp_path)[attack]
        modules = set(sys.modules)
        refused(tmp_path, FORMATS[form](pickled, {"0": VALUES}), "is not a readable file of tensors: ")
        assert not mark(tmp_path).exists() and set(sys.modules) == modules

    def test_attacks_work_on_pythons_unpickler(self, tmp_path):
        """Python's own unpickler runs these attacks."""
        for attack in ("protocol 0", "protocol 5", "os.system", "builtins.eval", "builtins.exec", "INST", "OBJ"):
            pickle.loads(attacks(tmp_path)[attack])
            assert mark(tmp_path).exists(), attack
            mark(tmp_path).unlink()

    @pytest.mark.parametrize("place", range(4))
    def test_every_pickle_of_a_stream(self, tmp_path, place):
        """The magic number, the version and the keys are pickles, too."""
        parts = [build.MAGIC, build.VERSION, build.LITTLE, SOUND]
        parts[place] = attacks(tmp_path)["os.system"]
        refused(tmp_path, b"".join(parts), "asks for os.system.*nothing of it was run")
        keys = b"".join([build.MAGIC, build.VERSION, build.LITTLE, SOUND, attacks(tmp_path)["os.system"]])
        refused(tmp_path, keys, "asks for os.system")
        assert not mark(tmp_path).exists()

    def test_other_pickles_of_an_archive_are_not_opened(self, tmp_path):
        """TorchScript archives and torch.package have more pickles than data.pkl."""
        bad = attacks(tmp_path)["os.system"]
        file = tmp_path / "pytorch_model.bin"
        file.write_bytes(build.archive(SOUND, {"0": VALUES}, more={".data/extra.pkl": bad, "version": bad}))
        assert PickleFile(file).read("w").shape == (2, 3)
        refused(tmp_path, build.archive(SOUND, {"0": VALUES}, more={"constants.pkl": bad}), "TorchScript program")
        assert not mark(tmp_path).exists()

    def test_registered_extension_is_not_looked_up(self, tmp_path):
        import copyreg

        copyreg.add_extension("os", "system", 77)
        try:
            content = b"\x80\x02\x82\x4d" + build.group(build.text(f"touch {mark(tmp_path)}")) + b"R."
            refused(tmp_path, build.archive(content, {}), "opcode")
        finally:
            copyreg.remove_extension("os", "system", 77)
        assert not mark(tmp_path).exists()


REFERENCES = {
    "text": build.text("storage") + b"Q",
    "nothing": b")Q",
    "another kind": build.group(build.text("module"), build.name("torch", "FloatStorage"), b"NN") + b"Q",
    "name in place of the type": build.storage().replace(build.name("torch", "FloatStorage"), build.text("os.system")),
    "dtype in place of the type": build.storage().replace(b"FloatStorage", b"float32"),
    "key that is a number": build.storage().replace(build.text("0"), b"K\0"),
    "length that is text": build.storage().replace(build.integer(6), build.text("6")),
    "length that is True": build.storage().replace(build.integer(6), b"\x88"),
    "negative length": build.storage(-6),
    "endless length": build.storage(2**62),
    "more than the file has": build.storage(7),
    "less than the file has": build.storage(5),
    "key that is not there": build.storage(key="1"),
    "key that climbs": build.storage(key="../data.pkl"),
    "other size of elements": build.storage(kind="DoubleStorage"),
    "view beyond the end": build.storage(view=build.group(b"N", build.integer(3), build.integer(4))),
    "view before the beginning": build.storage(view=build.group(b"N", build.integer(-1), build.integer(4))),
    "view without bounds": build.storage(view=build.group(b"N")),
}  # fmt: skip


TENSORS = {
    "beyond the end": ((2, 3), (3, 1), 1),
    "far beyond": ((2, 3), (3, 1), 2**47),
    "offset of 80 bits": ((1,), (1,), 2**80),
    "negative offset": ((1,), (1,), -1),
    "negative size": ((-1, 3), (3, 1), 0),
    "negative stride": ((2, 3), (3, -1), 2),
    "huge stride": ((2,), (2**62,), 0),
    "stride that overflows 64 bits": ((5,), (2**62,), 0),
    "more elements than the storage": ((2**40,), (0,), 0),
    "product that overflows 64 bits": ((2**33, 2**33), (0, 0), 0),
    "nothing, but too large for NumPy": ((0, 2**33, 2**33), (1, 0, 0), 0),
    "another number of strides": ((2, 3), (1,), 0),
    "many dimensions": ((1,) * 65, (1,) * 65, 0),
    "nothing beyond the end": ((0,), (1,), 7),
}


def rebuilt(*arguments, by="_rebuild_tensor_v2"):
    return build.state_dict({"w": build.call(build.name("torch._utils", by), *arguments)})


STORAGE, SIZES, REST = build.storage(), [b"K\0", b"K\6\x85", b"K\1\x85"], [b"\x89", b"}"]
STORAGE_TYPE = build.name("torch", "IntStorage")
CALLS = {
    "no arguments": rebuilt(),
    "too many arguments": rebuilt(STORAGE, *SIZES, *REST, b"N", b"N"),
    "text in place of the storage": rebuilt(build.text("0"), *SIZES, *REST),
    "list in place of the size": rebuilt(STORAGE, b"K\0", b"](K\6e", b"K\1\x85", *REST),
    "text in the size": rebuilt(STORAGE, b"K\0", build.text("6") + b"\x85", b"K\1\x85", *REST),
    "real number in the size": rebuilt(STORAGE, b"K\0", b"G" + struct.pack(">d", 6.0) + b"\x85", b"K\1\x85", *REST),
    "itself in the size": rebuilt(STORAGE, b"K\0", b"]q\1h\1a\x85", b"K\1\x85", *REST),
    "conjugated": rebuilt(STORAGE, *SIZES, *REST, b"}" + build.text("conj") + b"\x88s"),
    "dtype that is text": rebuilt(STORAGE, *SIZES, *REST, build.text("float32"), by="_rebuild_tensor_v3"),
    "dtype that is a storage": rebuilt(STORAGE, *SIZES, *REST, STORAGE_TYPE, by="_rebuild_tensor_v3"),
    "wider dtype": rebuilt(STORAGE, *SIZES, *REST, build.name("torch", "int64"), by="_rebuild_tensor_v3"),
    "parameter of text": rebuilt(build.text("x"), b"\x88", b"N", by="_rebuild_parameter"),
    "sparse": rebuilt(b"N", b")", by="_rebuild_sparse_tensor"),
    "quantised": rebuilt(b"N", b")", by="_rebuild_qtensor"),
    "size of text": b"\x80\x02" + build.call(build.name("torch", "Size"), build.text("x")) + b".",
    "OrderedDict of text": b"\x80\x02" + build.call(build.name("collections", "OrderedDict"), build.text("x")) + b".",
    "OrderedDict of no pairs": b"\x80\x02" + build.call(build.name("collections", "OrderedDict"), b"](K\1e") + b".",
}  # fmt: skip


MALFORMED = {
    "empty": b"",
    "no end": b"\x80\x02}",
    "end without a value": b"\x80\x02.",
    "protocol of the future": b"\x80\x06N.",
    "text longer than the file": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "text of 2**64 bytes": b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.",
    "text that is not UTF-8": b"\x80\x02U\2\xff\xfe.",
    "half a surrogate": b"\x80\x02X\3\0\0\0\xed\xa0\x80.",
    "name that is not UTF-8": b"\x80\x02c\xff\n\xfe\n.",
    "name without an end": b"\x80\x02ctorch",
    "name of control characters": b"\x80\x02c\x1b[2J\n\x07\n.",
    "name from the stack that is no text": b"\x80\x04K\1K\2\x93.",
    "endless integer": b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".",
    "LONG4": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "no mark": b"\x80\x02}K\1u.",
    "odd number of items": b"\x80\x02}(K\1u.",
    "tuple of too little": b"\x80\x02K\1\x87.",
    "item of a number": b"\x80\x02K\1K\1a.",
    "items of a tuple": b"\x80\x02)(K\1e.",
    "key that is a number": b"\x80\x02}K\1K\1s.",
    "key that is a list": b"\x80\x02}]K\1s.",
    "key that is a tuple": b"\x80\x02})K\1s.",
    "key that is a tensor": b"\x80\x02}" + build.tensor() + b"K\1s.",
    "value never made": b"\x80\x02h\x05.",
    "value never made, far away": b"\x80\x02j\xff\xff\xff\xff.",
    "memo with a hole": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "memo of nothing": b"\x80\x02q\x00.",
    "attributes of a tensor": b"\x80\x02" + build.tensor() + b"}b.",
    "attributes of a list": b"\x80\x02]}b.",
    "attributes that are no dict": b"\x80\x02}K\1b.",
    "DUP": b"\x80\x02}22.",
    "bytes": b"\x80\x03C\1x.",
    "bytearray": b"\x80\x05\x96" + b"\xff" * 8 + b".",
    "set": b"\x80\x04\x8f.",
}
OTHER_VALUES = {
    "a list": (b"\x80\x02].", "it holds a list, expected a state dict"),
    "one tensor": (b"\x80\x02" + build.tensor() + b".", "it holds a Tensor, expected a state dict"),
    "a storage": (b"\x80\x02" + STORAGE + b".", "it holds a Storage"),
    "a dict of dicts": (build.state_dict({"state_dict": b"}"}), "but state_dict is a dict"),
    "a number among them": (build.state_dict({"w": build.tensor(), "epoch": b"K\1"}), "but epoch is a int"),
    "a cycle": (b"\x80\x02}q\0" + build.text("me") + b"h\0s.", "but me is a dict"),
    "a dtype": (build.state_dict({"w": build.name("torch", "float32")}), "but w is a DType"),
    "name of control characters": (build.state_dict({"\x1b[2J" * 99: b"N"}), r"but '\\x1b\[2J"),
}


GENERAL = "is not a readable file of tensors: "
REFUSED = {
    **{
        f"storage: {what}": (build.state_dict({"w": build.tensor((1,), (1,), of=reference)}), "storage")
        for what, reference in REFERENCES.items()
    },
    **{f"tensor: {what}": (build.state_dict({"w": build.tensor(*view)}), "a tensor") for what, view in TENSORS.items()},
    **{f"call: {what}": (content, GENERAL) for what, content in CALLS.items()},
    **{f"malformed: {what}": (content, GENERAL) for what, content in MALFORMED.items()},
    **OTHER_VALUES,
}


@pytest.mark.parametrize("content, problem", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("form", FORMATS)
def test_refused_files(tmp_path, content, problem, form):
    refused(tmp_path, FORMATS[form](content, {"0": VALUES}), problem)


SIZE = 1 << 18
REFERENCE = build.storage()[:-1] + b"q\0"
PAIRS = b"](" + build.text("k") + b"Neq\1](" + b"h\1" * (SIZE // 4) + b"e\x85q\1"
BOMBS = {
    "lists": b"]" * SIZE,
    "dicts": b"}" * SIZE,
    "marks": b"(" * SIZE,
    "nested tuples": b")" + b"\x85" * SIZE,
    "nested lists": b"]" * (SIZE // 2) + b"a" * (SIZE // 2 - 1),
    "doubling tuples": b")q\0" + b"h\0h\0\x86q\0" * (SIZE // 7),
    "memo": b"N" + b"\x94" * SIZE,
    "storages": REFERENCE + b"h\0Q" * (SIZE // 3),
    "tensors": build.name("torch._utils", "_rebuild_tensor") + b"q\0(" + build.storage() + b"K\0("
    + b"K\1" * 8 + b"tq\1h\1tq\2" + b"h\0h\2R" * (SIZE // 5),
    "one list for many dicts": build.name("collections", "OrderedDict") + b"q\0" + PAIRS + b"h\0h\1R" * (SIZE // 10),
}  # fmt: skip


def test_memory_and_time_are_bounded():
    """No pickle gets more than 100 bytes for each of its own, and a few seconds.

    In a process of its own, whose memory is limited, so that a failure is an error and not a full machine.
    """
    code = "from tests.checkpoint.test_hostile_pickles import set_off_bombs; set_off_bombs()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stdout + result.stderr[-2000:]


def set_off_bombs() -> None:
    """Read each with little memory, in the process that the test above starts."""
    if sys.platform == "linux":
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        stack = 8 << 20  # it counts, and Python 3.14 frees nested tuples by recursion, as deep as the stack is
        resource.setrlimit(resource.RLIMIT_AS, (used + 100 * SIZE + stack, -1))
    for name, content in BOMBS.items():
        print(name, flush=True)
        began = time.process_time()
        with contextlib.suppress(Refused):
            read_pickle(b"\x80\x02" + content + b".", KNOWN_NAMES)
        assert time.process_time() - began < 30


OPCODES = [bytes([code]) for code in range(256)]
PIECES = [
    build.tensor(), build.storage(), build.ordered_dict(), build.name("torch", "Size"), b"h\0", b"q\0", b"K\1", b"N",
]  # fmt: skip


@given(st.lists(st.sampled_from([*OPCODES, *PIECES, *[b"(", b")", b"}", b"]", b"t", b"\x85", b"R", b"u", b"e"] * 5])))
@settings(max_examples=1000)
def test_any_opcodes_are_read_or_refused(pieces):
    with contextlib.suppress(Refused):
        read_pickle(b"\x80\x02" + b"".join(pieces) + b".", KNOWN_NAMES)
