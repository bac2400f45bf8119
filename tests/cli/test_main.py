"""The command as such: help, exit codes, one-line errors, start-up."""

import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest

import bertcore
from bertcore.checkpoint import open_checkpoint
from bertcore.cli import COMMANDS, main
from bertcore.cli.doctor import Doctor
from bertcore.cli.embed import Embed
from tests.checkpoint.files import write_tensors

HEAVY = ["numba", "cupy", "tokenizers", "safetensors", "tqdm", "torch", "transformers", "bertcore.models.model"]


def run(code, *args):
    return subprocess.run([sys.executable, *code, *args], capture_output=True, text=True, timeout=300)


def test_help_names_every_command(capsys):
    assert main(["-h"]) == main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_examples_and_backends(command, capsys):
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Examples:\n  bertcore {command}" in shown
    assert "--backend" in shown and "--traceback" in shown


@pytest.mark.parametrize("how", ["option", "environment"])
def test_traceback_on_request(tmp_path, capsys, monkeypatch, how):
    monkeypatch.setenv("BERTCORE_TRACEBACK", "1" if how == "environment" else "0")
    option = ["--traceback"] if how == "option" else []
    assert main(["fill-mask", str(tmp_path), "--text", "a [MASK]", "--backend", "numpy", *option]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_unexpected_error_names_its_type(monkeypatch, capsys):
    def broken(args):
        raise KeyError("word")

    monkeypatch.setattr(Doctor, "run", broken)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "bertcore doctor: KeyError: 'word' (--traceback shows where)\n"


# The interrupt comes while `bertcore.cli` imports its commands; before, nothing takes long (see below).
INTERRUPTED_IMPORT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)

class Finder:
    def find_spec(self, name, *rest):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

sys.meta_path.insert(0, Finder())
import bertcore.cli
print("imported")
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("module", ["click", "bertcore.cli.options"])
def test_an_interrupt_at_the_start(module):
    result = run(["-c", INTERRUPTED_IMPORT], module)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "bertcore: interrupted\n")


# An impatient supervisor sends a second one while Python shuts down.
TERMINATED_TWICE = """
import atexit, os, signal, sys
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
from bertcore.cli import main
from bertcore.cli.doctor import Doctor
Doctor.run = lambda args: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(main(["doctor"]))
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_second_termination_changes_nothing():
    result = run(["-c", TERMINATED_TWICE])
    assert (result.returncode, result.stdout, result.stderr) == (143, "", "")


def test_bertcore_itself_imports_at_once():
    result = run(["-c", "import sys, bertcore; print('numpy' in sys.modules, bertcore.kernels.softmax.__name__)"])
    assert result.stdout == "False softmax\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [
    ["--help"],
    ["embed", "--help"],
    ["--version"],
    ["info"],
    ["info", "mini-bert", "--json"],
    ["compare", "mini-bert"],
    ["compare", "mini-bert", "--csv"],
    ["doctor", "--backend", "numpy"],
    ["fill-mask", "MASKED", "--text", "[MASK]", "--backend", "numpy"],
    ["embed", "ENCODER", "--backend", "numpy"],
    ["embed", "ENCODER", "--backend", "numpy", "--format", "npy"],
    ["embed", "ENCODER", "--backend", "numpy", "-o", "/dev/full"],
], ids=" ".join)  # fmt: skip
def test_unwritable_output(command, encoder_folder, masked_lm_folder, monkeypatch, capsys, stdin):
    stdin(b"the cat\n")
    folders = {"MASKED": str(masked_lm_folder), "ENCODER": str(encoder_folder)}
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        assert main([folders.get(part, part) for part in command]) == 1
    name = "" if command[0].startswith("--") or "--help" in command else f" {command[0]}"
    where = "/dev/full" if "-o" in command else "stdout"
    said = capsys.readouterr().err
    assert said.endswith(f"bertcore{name}: {where} cannot be written: No space left on device\n")
    assert said.count("cannot be written") == 1 and "Traceback" not in said


def test_control_characters_do_not_reach_the_terminal(tmp_path, masked_lm_folder, monkeypatch, capsys):
    folder = shutil.copytree(masked_lm_folder, tmp_path / "model")
    arrays = dict(open_checkpoint(folder)) | {"\x1b[2Jbert.x\u202e": np.ones(3)}
    write_tensors(folder / "model.safetensors", arrays)
    assert main(["fill-mask", str(folder), "--text", "[MASK]", "--backend", "numpy"]) == 1
    assert r"\x1b[2Jbert.x\u202e" in capsys.readouterr().err
    monkeypatch.setattr("bertcore.tokenization.Tokenizer.decode", lambda *args, **options: "\x1b[31mred ü")
    assert main(["fill-mask", str(masked_lm_folder), "--text", "[MASK]", "--backend", "numpy"]) == 0
    assert r"\x1b[31mred ü" in capsys.readouterr().out


def test_warnings_are_lines_of_the_command(monkeypatch, capsys):
    monkeypatch.setattr(Doctor, "run", lambda args: warnings.warn("take\ncare", stacklevel=1))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().err == "bertcore doctor: take care\n"


def test_missing_backend(encoder_folder, monkeypatch, capsys):
    monkeypatch.setattr("bertcore.kernels.dispatch.unavailable_reason", lambda name: f"no {name} for you")
    assert main(["embed", str(encoder_folder), "--text", "a", "--backend", "cupy"]) == 1
    assert "backend 'cupy' cannot run here: no cupy for you" in capsys.readouterr().err


def test_the_module_runs_too():
    result = run(["-m", "bertcore"], "--version")
    assert (result.returncode, result.stdout) == (0, f"bertcore {bertcore.__version__}\n")
    assert run(["-m", "bertcore"]).returncode == 2


def test_options_do_not_depend_on_docstrings():
    code = (
        "from bertcore.cli import program as p; print([each.opts for name in p.table for each in p.load(name).params])"
    )
    with_texts, without = (run([*flags, "-c", code]).stdout for flags in ([], ["-OO"]))
    assert with_texts == without != ""


def test_help_imports_nothing_heavy():
    commands = ["", "embed", "classify", "search", "rerank", "index", "evaluate", "compare", "info"]
    code = (
        "import sys; from bertcore.cli import main\n"
        f"for command in {commands}:\n    assert main([*command.split(), '--help']) == 0\n"
        f"    print([name for name in {['numpy', *HEAVY]} if name in sys.modules], file=sys.stderr)"
    )
    result = run(["-c", code])
    assert (result.returncode, result.stderr) == (0, "[]\n" * len(commands))


@pytest.mark.parametrize("arguments", [
    ["model", "texts", "-o", "out"],
    ["-o", "out", "model", "texts"],
    ["model", "-o", "out", "texts"],
    ["model", "--backend", "numpy", "texts", "-oout"],
])  # fmt: skip
def test_options_may_stand_anywhere(arguments, monkeypatch):
    monkeypatch.setattr(Embed, "run", lambda args: seen.append((args.model, args.file, args.output)))
    seen = []
    assert main(["embed", *arguments]) == 0
    assert seen == [("model", "texts", "out")]


@pytest.mark.skipif(os.name == "nt", reason="pipes break in another way there")
def test_help_into_a_closed_pipe_is_silent():
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as stdout:
        command = [sys.executable, "-m", "bertcore", "--help"]
        result = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=300)
    assert result.stderr == b""
