"""The benchmark of the family's members: what is compared, and what is written of it."""

import numpy as np
import pytest

from bench import machine
from bench.measure import Times
from bench.models import plot
from bench.models.__main__ import BESIDE, _parse, main, summarised
from bench.models.cases import BERT, MEMBERS, Case, comparable
from bench.peers import compare
from bench.peers import plot as peers_plot
from bench.peers.cases import PRECISIONS, Size
from bench.peers.libraries import OURS, Session
from bench.report import read_csv
from bertcore.presets import PRESETS

# --- cases ----------------------------------------------------------------------------------------


def test_members_are_presets():
    assert set(MEMBERS) <= set(PRESETS)
    assert MEMBERS[0] == BERT and BERT in comparable()


def test_a_case_is_its_preset():
    case = Case(BERT, "8x128")
    assert case.flops == Size().flops(case.lengths)
    assert case.batch().input_ids.shape == (8, 128)
    assert Case(BERT, "8x128", quick=True).flops < 1e-3 * case.flops


def test_the_padding_stands_only_where_there_is_padding():
    case = Case("roberta-base", "ragged", quick=True)
    batch = case.batch()
    assert (batch.input_ids[~batch.is_real] == 1).all()
    assert (batch.input_ids[batch.is_real] != 1).all()
    assert {0, 2} < set(batch.input_ids[batch.is_real].tolist()) <= set(range(97))


def test_options():
    options = _parse([])
    assert options.models == [name for name in MEMBERS if name in comparable()]
    assert (options.shapes, options.precision, options.threads) == (["8x128"], ["float32"], 2)
    assert options.csv == plot.CSV
    options = _parse(["--quick", "--models", "mini-bert", "--precision", *PRECISIONS])
    assert (options.models, options.csv, options.rounds) == (["mini-bert"], None, 3)
    with pytest.raises(SystemExit):
        _parse(["--models", "transfo-xl-wt103"])


# --- rows -----------------------------------------------------------------------------------------


def test_rows_have_the_ratio_to_what_stands_beside(monkeypatch):
    case = Case(BERT, "1x16", quick=True)
    batch = case.batch()
    truth = np.ones((16, 3), np.float32)
    padded = np.ones((1, 16, 3), np.float32)
    sessions = {name: Session(lambda batch: lambda: padded) for name in (OURS, "torch")}
    sessions["wrong"] = Session(lambda batch: lambda: 2 * padded)
    seconds = {OURS: [1.0, 2.0, 1.0], "torch": [3.0, 6.0, 3.0], BESIDE: [4.0, 8.0, 2.0]}
    times = {name: Times(np.array(samples), 1) for name, samples in seconds.items()}
    monkeypatch.setattr(compare, "measure", lambda calls, *_: {name: times[name] for name in calls})
    plan = compare.Plan(rounds=1, seconds=0)
    rows = compare.compare(case, "float32", batch, sessions, {}, truth, plan, {BESIDE: None})
    assert [(row["library"], row[f"time_vs_{BESIDE}"]) for row in rows] == [
        (OURS, 0.25),
        ("torch", 0.75),
        ("wrong", None),
    ]
    assert [row["is_best_peer"] for row in rows] == [0, 1, None]
    (line,) = summarised(rows)
    assert (line[OURS], line["torch"], line["ratio"], line["beside"]) == (1, 3, 3, 0.25)
    assert line["note"].startswith("wrong wrong: off by 1")


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parity
def test_the_command_writes_a_row_for_each_library(tmp_path, capsys):
    path = tmp_path / "models.csv"
    arguments = ["--quick", "--models", "mini-bert", "--shapes", "1x16", "--rounds", "1", "--csv", str(path)]
    status = main([*arguments, "--workdir", str(tmp_path / "work")])
    printed = capsys.readouterr().out
    assert status == 0, printed
    rows = read_csv(path)
    versions = ["transformers", "fma_limit_gflop_per_s"]  # PyTorch's is among the machine's
    assert list(rows[0]) == [*compare.COLUMNS, f"time_vs_{BESIDE}", *machine.COLUMNS, *versions]
    assert [(row["model"], row["library"], row["status"]) for row in rows] == [
        ("mini-bert", OURS, "ok"),
        ("mini-bert", "torch", "ok"),
    ]
    assert all(float(row[f"time_vs_{BESIDE}"]) > 0 for row in rows)
    if peers_plot.unavailable_reason() is None:
        assert path.with_suffix(".png").stat().st_size > 1000


def test_a_plot_has_a_bar_for_each_model_and_library():
    class Panel:
        def __init__(self):
            self.bars = {}

        def barh(self, places, widths, height, *, color, label):
            self.bars[label] = (places, widths)

        def set_yticks(self, places, labels):
            self.ticks = labels

    panel = Panel()
    rows = [("a", OURS, "0.5"), ("a", "torch", "1"), ("b", "torch", "2")]
    named = [dict(zip(("model", "library", "median_s"), row, strict=True)) for row in rows]
    plot._bars(panel, ["a", "b"], named)
    assert panel.bars == {OURS: ([-0.2], [500.0]), "torch": ([0.2, 1.2], [1000.0, 2000.0])}
    assert panel.ticks == ["a", "b"]


@pytest.mark.parametrize("command", [plot, peers_plot], ids=["models", "peers"])
def test_plot_explains_itself_and_names_a_file_that_is_not_there(command, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0 and "beside the CSV" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        command.main([tmp_path / "nothing.csv"])
    assert ended.value.code == 2 and f"there is no file {tmp_path / 'nothing.csv'}" in capsys.readouterr().err
