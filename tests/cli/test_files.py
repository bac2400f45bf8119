"""Files that commands read and that are missing, folders, empty, endless, or hold no text: one line names them."""

import pytest

from bertcore.cli import main

KINDS = {
    "missing": "No such file or directory|does not exist",
    "folder": "a folder, expected a file|Is a directory|has no readable file",
    "empty": "empty|holds no|not valid JSON|examples in the corpus: 0|no line with step|0 texts|expected at least 3",
    "binary": "not UTF-8|not valid JSON",
    "endless": "a device|more than 67108864 bytes",
}
FILTERS = ("classify", "tag", "embed", "rerank", "queries")  # no lines in, no lines out
OUT = ["--out", "out", "--max-steps", "1"]
COMMANDS = {  # what stands for a command -> its arguments, with the ending of the file in question
    "answer": ["answer", "reader", "what ?", ".txt"],
    "classify": ["classify", "classifier", ".txt"],
    "calibration": ["classify", "classifier", "--text", "a", "--calibration", ".json"],
    "calibrate": ["calibrate", "classifier", ".jsonl", "--out", "out"],
    "tag": ["tag", "tagger", ".txt"],
    "embed": ["embed", "encoder", ".txt"],
    "precision": ["precision", "encoder", ".txt"],
    "rerank": ["rerank", "reranker", "the cat", ".txt"],
    "search": ["search", "encoder", ".txt", "the cat"],
    "queries": ["search", "encoder", "texts.txt", "--queries", ".txt"],
    "quantize": ["quantize", "encoder", "out", "--dtype", "int8", "--calibrate", ".txt"],
    "plot calibration": ["plot", "calibration", ".jsonl", "-o", "out.png"],
    "plot curves": ["plot", "curves", ".jsonl", "-o", "out.png"],
    "plot embeddings": ["plot", "embeddings", "encoder", ".txt", "-o", "out.png"],
    "pretrain": ["pretrain", ".txt", *OUT],
    "finetune": ["finetune", ".csv", "--model", "classifier", "--task", "sequence", *OUT],
    "finetune words": ["finetune", ".txt", "--model", "tagger", "--task", "token", *OUT],
    "distill": ["distill", ".jsonl", "--teacher", "classifier", "--task", "sequence", "--layers", "1", *OUT],
    "distill texts": ["distill", ".txt", "--teacher", "lm", "--task", "mlm", "--layers", "1", *OUT],
}


def made(kind, file):
    """The file in question, which is of that kind."""
    if kind == "folder":
        file.mkdir()
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    elif kind != "missing":
        file.write_bytes(b"" if kind == "empty" else bytes(range(255, -1, -1)) * 9)
    return file


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_file_is_named(command, kind, models, tmp_path, monkeypatch, capsys):
    if command.startswith("plot"):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("the cat\nthe mat\n", encoding="utf-8")
    arguments = [str(models / each) if (models / each).is_dir() else each for each in COMMANDS[command]]
    file = next(made(kind, tmp_path / f"in{each}") for each in arguments if each[:1] == ".")
    code = main([str(file) if each[:1] == "." else each for each in arguments] + ["--backend", "numpy"])
    captured = capsys.readouterr()
    if kind == "empty" and command in FILTERS:
        assert (code, captured.out, captured.err) == (0, "", "")
        return
    assert code == 1 and captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith(f"bertcore {arguments[0]}: ")
    assert any(part in captured.err for part in KINDS[kind].split("|"))
    assert "Errno" not in captured.err and "--traceback" not in captured.err
    has_no_name = kind == "empty" and command in ("distill texts", "plot embeddings")  # of several files; of texts
    assert file.name in captured.err or has_no_name
