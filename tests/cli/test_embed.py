"""bertcore embed: lines in, embeddings out."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bertcore import SentenceEncoder, use_backend
from bertcore.cli import main
from bertcore.cli.inputs import write_npy
from bertcore.tasks.texts import read_lines
from tests.tiny_bert import WIDTH, random_texts, save_tiny_encoder, write_json

TEXTS = ["the cat sat on a mat.", "", "paris is ü", "  the  "]
LINES = "".join(f"{text}\n" for text in TEXTS).encode()

# As a shell starts it: a test run in the background has SIGINT ignored, and its children with it.
START = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from bertcore.cli import main; "


def embed(folder, *arguments):
    return main(["embed", str(folder), "--backend", "numpy", *map(str, arguments)])


def start(*arguments, **streams):
    command = [sys.executable, "-c", f"{START} sys.exit(main())", "embed", *map(str, arguments), "--backend", "numpy"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, **streams)


@pytest.fixture(scope="module")
def expected(encoder_folder):
    with use_backend("numpy"):
        return SentenceEncoder(encoder_folder).encode(TEXTS)


@pytest.fixture
def texts_file(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_bytes(LINES)
    return file


def read_jsonl(content):
    return np.array([json.loads(line) for line in content.splitlines()], np.float32)


@pytest.mark.parametrize(("arguments", "as_npy"), [
    (["-"], False),
    (["TEXTS"], False),
    (["TEXTS", "--format", "npy"], True),
    (["TEXTS", "-o", "out.npy"], True),
    (["TEXTS", "-o", "out.txt"], False),
    (["TEXTS", "-o", "out.npy", "--format", "jsonl"], False),
], ids=str)  # fmt: skip
def test_outputs(encoder_folder, expected, texts_file, stdin, capsysbinary, monkeypatch, arguments, as_npy):
    stdin(LINES)
    monkeypatch.chdir(texts_file.parent)
    assert embed(encoder_folder, *[str(texts_file) if part == "TEXTS" else part for part in arguments]) == 0
    captured = capsysbinary.readouterr()
    content = Path(arguments[2]).read_bytes() if "-o" in arguments else captured.out
    found = np.load(io.BytesIO(content)) if as_npy else read_jsonl(content)
    assert found.dtype == np.float32 and captured.err == b""
    np.testing.assert_array_equal(found, expected)
    written = {arguments[2]} if "-o" in arguments else set()
    assert {file.name for file in texts_file.parent.iterdir()} == {"texts.txt"} | written
    if as_npy and written:
        np.testing.assert_array_equal(np.load(arguments[2], mmap_mode="r"), expected)


def test_npy_is_not_written_to_a_terminal(encoder_folder, stdin, capsys, monkeypatch):
    stdin(LINES)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert embed(encoder_folder, "--format", "npy") == 1
    assert "which npy is not for" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "texts"), [
    (b"", []),
    (b"\n", [""]),
    (b"\n\n", ["", ""]),
    (b"the cat\nparis", ["the cat", "paris"]),
    (b"the cat\r\nparis\r\n", ["the cat", "paris"]),
    (b"\xef\xbb\xbfthe cat\n\xef\xbb\xbfparis", ["the cat", "\ufeffparis"]),
    (b"the\rcat\r\r\n", ["the\rcat\r"]),
    ("a\u2028b\x0bc\x85d\n".encode(), ["a\u2028b\x0bc\x85d"]),  # only a line feed ends a line
])  # fmt: skip
@pytest.mark.parametrize("suffix", ["npy", "jsonl"])
def test_lines(encoder_folder, content, texts, suffix, stdin, tmp_path):
    assert list(read_lines(io.BytesIO(content), "here")) == texts
    stdin(content)
    assert embed(encoder_folder, "-o", tmp_path / f"out.{suffix}") == 0
    file = tmp_path / f"out.{suffix}"
    found = np.load(file) if suffix == "npy" else read_jsonl(file.read_text()).reshape(-1, WIDTH)
    with use_backend("numpy"):
        np.testing.assert_array_equal(found, SentenceEncoder(encoder_folder).encode(texts))


def test_options_reach_the_encoder(tmp_path, texts_file):
    folder = save_tiny_encoder(tmp_path / "model")
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "paris is "}})
    encoder, out = SentenceEncoder(folder, max_seq_length=4), tmp_path / "out.npy"
    common = [folder, texts_file, "-o", out, "--max-seq-length", 4, "--batch-tokens", 9]
    common += ["--dtype", "float64", "--backend", "numpy"]
    for arguments, options in [
        (["--normalize"], {"normalize_embeddings": True}),
        (["--prompt", "a "], {"prompt": "a "}),
        (["--prompt-name", "query"], {"prompt_name": "query"}),
    ]:
        assert embed(*common, *arguments) == 0
        with use_backend("numpy"):
            np.testing.assert_allclose(np.load(out), encoder.encode(TEXTS, **options), atol=1e-6)


def test_long_texts_are_chunked_or_refused(encoder_folder, texts_file, tmp_path, capsys):
    vectors = []
    for truncation in ("warn", "chunk"):
        out = tmp_path / f"{truncation}.npy"
        assert embed(encoder_folder, texts_file, "--max-seq-length", 4, "--truncation", truncation, "-o", out) == 0
        assert ("cut" in capsys.readouterr().err) == (truncation == "warn")
        vectors.append(np.load(out))
    assert not np.array_equal(*vectors)
    assert embed(encoder_folder, texts_file, "--max-seq-length", 4, "--truncation", "error") == 1
    assert "4 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "place"), [
    (b"fine\ncaf\xe9\n", "line 2: byte 4 (0xe9)"),
    ("the cat\n".encode("utf-16"), "line 1: byte 1 (0xff)"),
    (b"cut short \xe2\x82", "line 1: byte 11 (0xe2)"),
])  # fmt: skip
def test_bytes_that_are_not_utf8(encoder_folder, content, place, tmp_path, capsys):
    (tmp_path / "texts.txt").write_bytes(content)
    assert embed(encoder_folder, tmp_path / "texts.txt", "-o", tmp_path / "out.npy") == 1
    assert f"texts.txt, {place} is not UTF-8" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["texts.txt"]


def test_a_failure_leaves_the_old_output(encoder_folder, tmp_path, stdin):
    (tmp_path / "out.npy").write_bytes(b"old")
    stdin(b"a\n\xff\n")
    assert embed(encoder_folder, "-o", tmp_path / "out.npy") == 1
    assert (tmp_path / "out.npy").read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 1
    stdin(LINES)
    assert embed(encoder_folder, "-o", tmp_path / "out.npy") == 0
    assert np.load(tmp_path / "out.npy").shape == (4, WIDTH)


def test_files_that_cannot_be_read_or_written(encoder_folder, tmp_path, texts_file, capsys):
    (tmp_path / "empty-model").mkdir()  # loading it would fail in another way: the output is tried before
    nowhere, empty = tmp_path / "nowhere" / "out.npy", "--output is empty, expected the name of a file, or - for stdout"
    for arguments, said in [
        ([encoder_folder, tmp_path / "nothing.txt", "-o", tmp_path / "out.npy"], "nothing.txt"),
        ([tmp_path / "empty-model", texts_file, "-o", nowhere], f"{nowhere} cannot be written: No such file"),
        ([encoder_folder, texts_file, "-o", tmp_path], f"{tmp_path} cannot be written: Is a directory"),
        ([encoder_folder, texts_file, "-o", ""], empty),
    ]:
        assert embed(*arguments) == 1
        assert said in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["empty-model", "texts.txt"]


@pytest.mark.parametrize("form", ["npy", "jsonl"])
def test_closed_streams(encoder_folder, texts_file, monkeypatch, capsys, tmp_path, form):
    """Python has None for a stream that was closed before it started (`>&-`, `<&-`)."""
    with monkeypatch.context() as closed:
        closed.setattr("sys.stdout", None)
        assert embed(encoder_folder, texts_file, "--format", form) == 1
        assert embed(encoder_folder, texts_file, "--format", form, "-o", tmp_path / "out") == 0
    assert capsys.readouterr().err == "bertcore embed: stdout is closed: there is nowhere to write to\n"
    monkeypatch.setattr("sys.stdin", None)
    assert embed(encoder_folder, "--format", form) == 2
    assert capsys.readouterr().err.startswith(
        "bertcore embed: FILE is missing, expected a file of texts, - for standard"
    )


@pytest.mark.skipif(os.name == "nt", reason="POSIX files")
def test_links_and_devices_stay_what_they_are(encoder_folder, texts_file, tmp_path):
    (tmp_path / "real.npy").write_bytes(b"old")
    (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
    assert embed(encoder_folder, texts_file, "-o", tmp_path / "link.npy") == 0
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "real.npy").shape == (4, WIDTH)
    for form in ("npy", "jsonl"):
        assert embed(encoder_folder, texts_file, "-o", "/dev/null", "--format", form) == 0
        assert os.path.exists("/dev/null") and not os.path.isfile("/dev/null")


def test_json_refuses_nan(encoder_folder, texts_file, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        "bertcore.tasks.sentence_encoder.encoder.pool", lambda hidden, cu, modes, skipped: np.full((4, WIDTH), np.nan)
    )
    assert embed(encoder_folder, texts_file) == 1
    assert "embedding of line 1 is not finite, which JSON cannot hold" in capsys.readouterr().err
    assert embed(encoder_folder, texts_file, "-o", tmp_path / "out.npy") == 0


@pytest.mark.parametrize("rows", [0, 1, 9, 10, 12345])
def test_npy_header_has_the_number_of_rows(rows, tmp_path):
    with open(tmp_path / "out.npy", "w+b") as stream:
        write_npy(stream, (np.full(3, row, np.float32) for row in range(rows)), 3)
    found = np.load(tmp_path / "out.npy")
    np.testing.assert_array_equal(found, np.repeat(np.arange(rows, dtype=np.float32), 3).reshape(-1, 3))


def test_results_come_while_the_input_is_still_open(encoder_folder):
    process = start(encoder_folder, "--batch-tokens", 64, stdout=subprocess.PIPE)
    texts = random_texts(700)
    process.stdin.write("".join(f"{text}\n" for text in texts).encode())
    process.stdin.flush()
    first = json.loads(process.stdout.readline())
    assert len(first) == WIDTH and process.poll() is None
    process.stdin.close()
    assert process.stdout.read().count(b"\n") == len(texts) - 1
    assert process.wait(timeout=300) == 0
    assert process.stderr.read() == b""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, b"bertcore embed: interrupted\n"), (signal.SIGTERM, 143, b"")],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_signal_leaves_nothing(encoder_folder, tmp_path, number, code, said):
    process = start(encoder_folder, "-o", tmp_path / "out.npy")
    process.stdin.write(LINES)
    process.stdin.flush()
    deadline = time.monotonic() + 300
    while not any(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [file.suffix for file in tmp_path.iterdir()] == [".tmp"]
    for _ in range(4):  # Python drops an interrupt that comes while it runs a finaliser
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)  # long: a second one while it ends is another thing
            break
    assert process.wait(timeout=300) == code
    assert process.stderr.read() == said
    assert not list(tmp_path.iterdir())
    process.stdin.close()


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_closed_pipe(encoder_folder, tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"the cat\n" * 5000)
    process = start(encoder_folder, tmp_path / "texts.txt", "--batch-tokens", 16, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=300) == 141
    assert process.stderr.read() == b""
    process.stdin.close()


def test_a_line_sums_up(encoder_folder, tmp_path, capsys):
    output = str(tmp_path / "rows.npy")
    command = ["embed", str(encoder_folder), "--text", "a cat", "--text", "", "-o", output, "--backend", "numpy"]
    assert main([*command, "--progress"]) == 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"{re.escape(output)}: 2 texts, 39 dimensions, [\d,]+ texts a second", said)
    assert main([*command, "--no-progress"]) == 0 and not capsys.readouterr().err
