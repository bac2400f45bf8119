"""bertcore embed --ray: a corpus in parts, on two workers of a Ray of their own."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bertcore import SentenceEncoder, use_backend
from bertcore.cli import main
from bertcore.plugins.corpus import KNOWN, parts_of, texts_of
from bertcore.training.data.files import files_of
from tests.cli.test_embed import START
from tests.refusals import refuses
from tests.tiny_bert import WIDTH, random_texts, save_tiny_encoder

TEXTS = ["the cat sat on a mat.", "", "paris is ü", "  the  ", *random_texts(95)]


def write_text(file, texts):
    file.write_bytes("".join(f"{text}\n" for text in texts).encode())


def write_json_lines(file, texts):
    lines = "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts))
    file.write_bytes(gzip.compress(lines.encode()) if file.suffix == ".gz" else lines.encode())


def write_parquet(file, texts):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"id": range(len(texts)), "text": texts})
    parquet.write_table(table, file, row_group_size=17)


WRITERS = {
    "a.txt": write_text,
    "a.txt.gz": lambda file, texts: file.write_bytes(gzip.compress("".join(f"{t}\r\n" for t in texts).encode())),
    "a.jsonl": write_json_lines,
    "a.jsonl.gz": write_json_lines,
    "a.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("count", [0, 1, 39, len(TEXTS)])
@pytest.mark.parametrize("rows", [1, 13, 17, 39, 1000])
def test_parts_have_all_rows_in_their_order(tmp_path, name, count, rows):
    WRITERS[name](tmp_path / name, TEXTS[:count])
    parts = list(parts_of(tmp_path / name, rows, "text"))
    assert len(parts) == max(1, -(-count // rows))
    assert [part.first for part in parts] == list(range(0, max(1, count), rows))
    found = [list(texts_of(part, "text")) for part in reversed(parts)][::-1]  # each alone, in any order
    assert [len(texts) for texts in found] == [part.rows for part in parts]
    assert [text for texts in found for text in texts] == TEXTS[:count]


def test_blank_lines_and_ends_of_lines(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\n\n{"text": "b"}\r\n   \n{"text": "c"}')
    found = [list(texts_of(part, "text")) for part in parts_of(tmp_path / "a.jsonl", 2, "text")]
    assert found == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.txt", b"a\nb\ncaf\xe9\n", r"a\.txt, line 3: byte 4"),
    ("a.jsonl", b'{"text": "a"}\n\n{"body": "b"}\n', r"a\.jsonl:3: has no text named 'text'; it has 'body'"),
    ("a.jsonl", b'{"text": "a"}\n{"text": null}\n', r"a\.jsonl:2: has no text named 'text'"),
    ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not JSON"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "\\ud800"}\n', r"a\.jsonl:2: not JSON, .*surrogates"),
    ("a.txt.gz", b"no gzip", r"compression of .*a\.txt\.gz is damaged: Not a gzipped file"),
    ("a.txt.gz", gzip.compress(b"a\n" * 9, mtime=0)[:-9], r"compression of .*a\.txt\.gz is damaged: .*ended before"),
    ("a.txt.gz", gzip.compress(b"a\n" * 9, mtime=0)[:-8] + bytes(8), r"compression of .*a\.txt\.gz is damaged: CRC"),
    ("a.jsonl", b'{"text": "a"}\n["a"]\n', r"a\.jsonl:2: a JSON list, expected an object"),
])  # fmt: skip
def test_rows_without_texts(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Exception, match=message):
        for part in parts_of(tmp_path / name, 2, "text"):
            list(texts_of(part, "text"))


def test_nulls_and_columns_of_parquet(tmp_path):
    write_parquet(tmp_path / "a.parquet", [*TEXTS, None])
    *_, last = parts_of(tmp_path / "a.parquet", 39, "text")
    refuses(ValueError, rf"a\.parquet:{len(TEXTS) + 1}: has no text named 'text'", list, texts_of(last, "text"))
    with pytest.raises(ValueError, match=r"--column is 'body', expected a column of .*a\.parquet: id, text"):
        list(parts_of(tmp_path / "a.parquet", 39, "body"))


def test_damage_to_parquet_is_named(tmp_path):
    file, rng = tmp_path / "a.parquet", np.random.default_rng(7)
    write_parquet(file, TEXTS)
    whole, refused = file.read_bytes(), 0
    for number in range(60):
        content = bytearray(whole[: rng.integers(len(whole)) if number % 3 == 0 else None])
        for place in rng.integers(max(len(content), 1), size=number % 3):
            content[-1 - place if number % 2 else place] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)
        try:
            for part in parts_of(file, 39, "text"):
                list(texts_of(part, "text"))
        except ValueError as error:
            refused += 1
            assert "a.parquet" in str(error) and "\n" not in str(error)
    assert refused > 20
    for values in ([[text] for text in TEXTS], [{"text": text} for text in TEXTS], range(len(TEXTS))):
        write_parquet(file, values)
        part = next(parts_of(file, 39, "text"))
        refuses(ValueError, r"a\.parquet:1: has no text named 'text'", list, texts_of(part, "text"))


def test_files_of_a_corpus(tmp_path):
    for name in ("b.txt", "a.jsonl.gz", "c.csv", "sub/a.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert files_of(tmp_path, KNOWN) == [tmp_path / name for name in ("a.jsonl.gz", "b.txt", "sub/a.md")]
    refuses(ValueError, r"c\.csv ends with \.csv, expected \.txt", files_of, tmp_path / "c.csv", KNOWN)
    refuses(FileNotFoundError, "nothing does not exist", files_of, tmp_path / "nothing", KNOWN)
    (tmp_path / "empty").mkdir()
    refuses(ValueError, "empty has no readable file, expected endings", files_of, tmp_path / "empty", KNOWN)


@pytest.mark.parametrize(("note", "said"), [("{", "is not valid JSON"), ("[]", "holds a JSON list")])
def test_unreadable_note(encoder_folder, tmp_path, capsys, note, said):
    write_text(tmp_path / "a.txt", TEXTS)
    out = tmp_path / "out"
    out.mkdir()
    (out / "part-000000.npy").write_bytes(b"")
    (out / "embed.json").write_text(note)
    assert main(["embed", str(encoder_folder), str(tmp_path / "a.txt"), "--ray", "1", "-o", str(out)]) == 1
    assert f"{out / 'embed.json'} {said}" in capsys.readouterr().err


@pytest.fixture(scope="module")
def two_workers():
    """A Ray of two CPUs, for one worker each."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False)
    yield
    ray.shutdown()


@pytest.fixture
def corpus(tmp_path):
    """A folder with the texts in three files."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_text(folder / "a.txt", TEXTS[:50])
    write_json_lines(folder / "b.jsonl", TEXTS[50:57])
    write_parquet(folder / "c.parquet", TEXTS[57:])
    return folder


def embed(folder, *arguments):
    return main(["embed", str(folder), "--backend", "numba", *map(str, arguments)])


def parts_in(folder):
    return sorted(folder.glob("part-*"))


@pytest.mark.slow
def test_the_bits_of_one_process(two_workers, encoder_folder, corpus, tmp_path, capsys):
    write_text(tmp_path / "all.txt", TEXTS)
    options = ["--prompt", "a ", "--normalize", "--max-seq-length", 9, "--truncation", "cut"]
    for suffix in ("npy", "jsonl"):
        one, out = tmp_path / f"one.{suffix}", tmp_path / suffix
        assert embed(encoder_folder, tmp_path / "all.txt", "-o", one, *options) == 0
        command = [corpus, "-o", out, "--format", suffix, "--ray", 2, "--part-rows", 13, *options]
        assert embed(encoder_folder, *command) == 0, capsys.readouterr().err
        found = parts_in(out)
        assert [file.name for file in found] == [f"part-{number:06}.{suffix}" for number in range(4 + 1 + 4)]
        assert {file.name for file in out.iterdir()} == {"embed.json", *(file.name for file in found)}
        if suffix == "npy":
            np.testing.assert_array_equal(np.concatenate([np.load(file) for file in found]), np.load(one))
        else:
            assert b"".join(file.read_bytes() for file in found) == one.read_bytes()


@pytest.mark.slow
def test_second_run_makes_missing_parts(two_workers, encoder_folder, corpus, tmp_path):
    out = tmp_path / "out"
    command = [encoder_folder, corpus, "-o", out, "--ray", 2, "--part-rows", 13]
    (corpus / "c.parquet").rename(tmp_path / "good.parquet")
    write_parquet(corpus / "c.parquet", [*TEXTS[57:], None])
    assert embed(*command) == 1
    done = {file: file.stat().st_mtime_ns for file in parts_in(out)}
    assert len(done) < 9 and all(np.load(file).shape[1] == WIDTH for file in done)
    os.replace(tmp_path / "good.parquet", corpus / "c.parquet")
    assert embed(*command) == 1  # another corpus
    for file in out.iterdir():  # a worker that was ended may leave a temporary folder, which the next run removes
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert embed(*command) == 0
    whole = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in parts_in(out)}
    gone = parts_in(out)[2:5]
    for file in gone:
        file.unlink()
    (out / f".{gone[0].name}.0123456789abcdef.tmp").mkdir()  # of a process that is gone
    assert embed(*command, "--batch-tokens", 64) == 0
    assert {file: file.read_bytes() for file in parts_in(out)} == {
        file: content for file, (_, content) in whole.items()
    }
    for file, (made, _) in whole.items():
        assert (file.stat().st_mtime_ns == made) == (file not in gone)


@pytest.mark.slow
def test_refused_folders_and_options(two_workers, encoder_folder, corpus, tmp_path, capsys):
    out = tmp_path / "out"
    command = [corpus, "-o", out, "--part-rows", 50]

    def said(folder, *arguments):
        assert embed(folder, *arguments) == 1
        return capsys.readouterr().err

    assert "--ray is 3, expected at most the 2 CPUs of Ray" in said(encoder_folder, *command, "--ray", 3)
    assert "--prompt-name is 'no', this model has query" in said(
        encoder_folder, *command, "--ray", 2, "--prompt-name", "no"
    )
    assert not out.exists()
    error = said(encoder_folder, corpus / "b.jsonl", "-o", out, "--ray", 2, "--column", "body")
    assert error.startswith(f"bertcore embed: {corpus / 'b.jsonl'}:1: has no text named 'body'") and not parts_in(out)
    assert embed(encoder_folder, *command, "--ray", 2) == 0
    for name, arguments in {
        "part_rows": ["--part-rows", 51],
        "format": ["--format", "jsonl"],
        "normalize": ["--normalize"],
        "prompt": ["--prompt", "a "],
        "truncation": ["--truncation", "cut"],
        "dtype": ["--dtype", "bfloat16"],
    }.items():
        assert f"{out} has parts of another {name} (" in said(encoder_folder, *command, "--ray", 2, *arguments)
    write_text(corpus / "a.txt", TEXTS[:51])
    assert f"{out} has parts of another corpus (" in said(encoder_folder, *command, "--ray", 2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.md").write_bytes(b"")
    expected = f"{tmp_path / 'other'} holds files and no embed.json, expected a new or empty folder"
    assert expected in said(encoder_folder, corpus, "-o", tmp_path / "other", "--ray", 2)
    expected = f"{corpus / 'a.txt'} is a file, expected a folder"
    assert expected in said(encoder_folder, corpus, "-o", corpus / "a.txt", "--ray", 2)


@pytest.mark.slow
def test_another_model(two_workers, encoder_folder, corpus, tmp_path, capsys):
    command = [corpus, "-o", tmp_path / "out", "--ray", 2]
    model = save_tiny_encoder(tmp_path / "model")
    assert embed(model, *command) == 0
    assert embed(encoder_folder, *command) == 0  # the same files
    (model / "vocab.txt").write_text((model / "vocab.txt").read_text().replace("paris", "berlin"))
    assert embed(model, *command) == 1
    assert "has parts of another model (" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_terminated_run_goes_on(two_workers, encoder_folder, tmp_path):
    texts, out = random_texts(6000), tmp_path / "out"
    write_text(tmp_path / "a.txt", texts)
    command = [encoder_folder, tmp_path / "a.txt", "-o", out, "--ray", 2, "--part-rows", 2]
    start = [sys.executable, "-c", f"{START} sys.exit(main())", "embed", *command, "--backend", "numba"]
    with subprocess.Popen(list(map(str, start)), stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while len(parts_in(out)) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 143
    done = parts_in(out)
    assert 3 <= len(done) < 3000 and all(np.load(file).shape == (2, WIDTH) for file in done)
    times = [file.stat().st_mtime_ns for file in done]
    assert embed(*command) == 0
    assert [file.stat().st_mtime_ns for file in done] == times
    with use_backend("numba"):
        expected = SentenceEncoder(encoder_folder).encode(texts)
    np.testing.assert_array_equal(np.concatenate([np.load(file) for file in parts_in(out)]), expected)
