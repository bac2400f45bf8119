"""One convention for texts: FILE or - as a position, --text for literal texts, standard input if neither is given."""

import io
import json

import pytest

from bertcore.cli import COMMANDS, main, program

ONE = "the [MASK] sat on a mat"
COMMAND_LINES = {  # command: (its words before FILE, words after it)
    "answer": (["reader", "what ?"], []),
    "classify": (["classifier"], ["--json"]),
    "embed": (["encoder"], []),
    "explain": (["classifier"], ["--method", "rollout"]),
    "fill-mask": (["lm"], []),
    "generate": (["gpt2"], ["--greedy", "--max-new-tokens", "2"]),
    "index": (["encoder"], ["-o", "OUT"]),
    "plot": (["masking", "lm"], ["-o", "out.svg", "--epochs", "1"]),
    "precision": (["encoder"], ["--dtype", "bfloat16", "--json"]),
    "preview": (["lm"], ["--epochs", "1"]),
    "quantize": (["encoder", "OUT"], []),
    "rerank": (["reranker", "a query"], []),
    "search": (["encoder"], []),
    "tag": (["tagger"], ["--json"]),
}
OTHERS = {"calibrate", "compare", "demo", "distill", "doctor", "evaluate", "export", "finetune", "info"}
OTHERS |= {"pretrain", "serve", "warmup"}


def line(command, source, tmp_path, models):
    """The command line that reads a text from a file, "-", standard input, or --text."""
    before, after = ([*part] for part in COMMAND_LINES[command])
    words = {"file": [str(tmp_path / "text.txt")], "-": ["-"], "stdin": [], "--text": ["--text", ONE]}[source]
    if command == "quantize" and source != "--text":
        words = ["--calibrate", *(words or ["-"])]
    if command == "search":
        words = [*words, "a query"] if source in ("file", "-") else [*words, "--queries", str(tmp_path / "queries.txt")]
    before = [str(models / word) if (models / word).is_dir() else word for word in before]
    return [
        command,
        *(word.replace("OUT", f"out-{source}") for word in (*before, *words, *after)),
        "--backend",
        "numpy",
    ]


def test_each_command_is_in_the_table():
    assert set(COMMAND_LINES) | OTHERS == set(COMMANDS)
    with_text = {name for name in COMMANDS if any("--text" in param.opts for param in program.load(name).params)}
    assert with_text - {"calibrate", "distill", "finetune"} == set(COMMAND_LINES)  # there it names a column


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_every_source_gives_the_same_answer(command, models, tmp_path, monkeypatch, stdin, capsys):
    if command == "plot":
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(ONE + "\n" * (command != "answer"), encoding="utf-8")
    (tmp_path / "queries.txt").write_text("a query\n", encoding="utf-8")
    found = []
    for source in ("file", "-", "stdin", "--text"):
        stdin((tmp_path / "text.txt").read_bytes())
        assert main(line(command, source, tmp_path, models)) == 0, capsys.readouterr().err
        out = capsys.readouterr().out
        if command == "precision":
            out = {name: value for name, value in json.loads(out)["bfloat16"].items() if name != "speed"}
        if command == "index":  # it has the digests of the vectors and texts
            out = (tmp_path / f"out-{source}" / "index.json").read_text()
        found.append("" if command in ("plot", "quantize") else out)
    if command == "search":  # --queries puts the number of the query first
        found = [text.removeprefix("1\t") for text in found]
    assert found[0] == found[1] == found[2] == found[3]
    assert (tmp_path / "out.svg").is_file() == (command == "plot")


@pytest.mark.parametrize("text", [ONE, ""])
@pytest.mark.parametrize("command", sorted(set(COMMAND_LINES) - {"quantize", "search"}))
def test_a_text_in_the_place_of_a_file_is_refused(command, text, models, tmp_path, monkeypatch, stdin, capsys):
    monkeypatch.chdir(tmp_path)
    stdin(b"another text\n")
    words = line(command, "-", tmp_path, models)
    words[words.index("-")] = text
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith(f" is {text!r}, which does not exist; literal texts are given by --text\n")


@pytest.mark.parametrize("command", sorted(set(COMMAND_LINES) - {"quantize"}))
def test_a_terminal_is_not_read_unless_asked_for(command, models, tmp_path, monkeypatch, capsys):
    terminal = io.TextIOWrapper(io.BytesIO(b"a text\n"))
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(line(command, "stdin", tmp_path, models)) == 2
    assert " is missing, expected a file of texts, - for standard input, or --text" in capsys.readouterr().err


@pytest.mark.parametrize("old, new", [
    (["classify", "classifier", "--input", "FILE"], ["classify", "classifier", "FILE"]),
    (["tag", "tagger", "--input", "FILE"], ["tag", "tagger", "FILE"]),
    (["answer", "reader", "a ?", "--input", "FILE"], ["answer", "reader", "a ?", "FILE"]),
    (["embed", "encoder", "FILE", "--max-seq-length", "9"], ["embed", "encoder", "FILE", "--max-length", "9"]),
    (["preview", "lm", "--input", "FILE"], ["preview", "lm", "FILE"]),
])  # fmt: skip
def test_old_spellings_go_on_working(old, new, models, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("the cat sat\n", encoding="utf-8")
    shown = []
    for words in (old, new):
        words = [str(tmp_path / "text.txt") if word == "FILE" else word for word in words]
        words = [str(models / word) if (models / word).is_dir() else word for word in words]
        assert main([*words, "--backend", "numpy"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""


def test_two_texts_are_a_pair(models, capsys, tmp_path):
    (tmp_path / "pairs.tsv").write_text("the cat\tsat\n", encoding="utf-8")
    given = ["--text", "the cat", "--text-pair", "sat"], [str(tmp_path / "pairs.tsv"), "--pairs"]
    shown = []
    for words in given:
        assert main(["classify", str(models / "classifier"), *words, "--backend", "numpy"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
