"""bench.peers: what is selected, checked, timed and told; all libraries that are installed, at a tiny size."""

import time
from pathlib import Path

import numpy as np
import pytest

from bench import machine
from bench.measure import Times
from bench.peers import clock, compare, plot, summary
from bench.peers.__main__ import VERSIONS, _parse, main
from bench.peers.cases import MEASURED_MODELS, MODELS, PRECISIONS, SHAPES, Case, Size, random_batch
from bench.peers.checkpoint import cached, hidden_states_alone, make_checkpoint
from bench.peers.libraries import OURS, Peer, Session, Unsupported, all_peers, missing_reason
from bench.report import read_csv

CASE = Case("tiny", "ragged")
PLAN = compare.Plan(rounds=1, seconds=0, fma_limit=1e9)


def truth(case, batch):
    """Hidden states that tell every token from every other."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(sum(case.lengths), 32)).astype(np.float32)


def padded(batch, tokens):
    out = np.full(
        (*batch.input_ids.shape, tokens.shape[1]), np.nan, np.float32
    )  # what stands at padding is not looked at
    out[batch.is_real] = tokens
    return out


def fake(name, spoil=lambda states: states, precisions=PRECISIONS, needs=()):
    """A library that returns the truth, spoilt."""

    def load(folder, precision, threads):
        def bind(batch):
            states = spoil(padded(batch, truth(CASE, batch)))
            return lambda: states

        return Session(bind)

    return Peer(name, precisions, needs, load)


def run(*peers, precision="float32"):
    (rows,) = compare.compare_model([CASE], precision, peers, Path("unused"), truth, PLAN)
    return {row["library"]: row for row in rows}


def off_by(error):
    """Changes the states by that part of their norm."""
    return lambda states: states * (1 + error)


def raising(error):
    def load(folder, precision, threads):
        raise error

    return load


# --- cases ----------------------------------------------------------------------------------------


def test_flops_are_twice_the_multiply_adds_of_real_tokens():
    size = Size(layers=3, hidden=10, heads=2, intermediate=7)
    per_token = 4 * 10 * 10 + 2 * 10 * 7
    assert size.flops((2, 5)) == 3 * (2 * per_token * 7 + 2 * 2 * 10 * (4 + 25))
    assert Case("bert-base", "1x128").flops == 22_347_251_712  # 85 million parameters of linear maps, and attention


def test_batches_are_padded_and_the_same_in_every_run():
    batch = random_batch((3, 5), vocabulary=4, seed=1)
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert (batch.input_ids[0, 3:] == 0).all()
    assert (batch.input_ids[batch.is_real] > 0).all()
    assert (batch.input_ids < 4).all()
    assert batch.input_ids.dtype == batch.attention_mask.dtype == np.int64
    for shape in SHAPES:
        first, second = (Case("tiny", shape).batch() for _ in range(2))
        assert (first.input_ids == second.input_ids).all()
        assert tuple(first.attention_mask.sum(1)) == SHAPES[shape]
    assert [sum(SHAPES[shape]) for shape in ("1x16", "8x128", "8x512")] == [16, 1024, 4096]


def test_options_choose_the_cases():
    options = _parse([])
    assert (options.model, options.shape, options.precision) == (MEASURED_MODELS, tuple(SHAPES), PRECISIONS)
    assert set(options.peers) == set(all_peers())
    assert options.csv.name == "peers.csv"
    options = _parse(["--quick"])
    assert (options.model, options.csv, options.rounds) == (("minilm-l6",), None, 3)
    options = _parse(["--quick", "--model", "tiny", "--shape", "8x512", "--precision", "int8", "--peers", "bertcore"])
    assert (options.model, options.shape, options.precision, options.peers) == (["tiny"], ["8x512"], ["int8"], [OURS])
    with pytest.raises(SystemExit):
        _parse(["--shape", "3x3"])


# --- checked, then timed --------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_too_far_from_the_truth_is_not_timed(precision, monkeypatch):
    tolerance = compare.TOLERANCES[precision]
    timed = []
    monkeypatch.setattr(compare, "measure", lambda calls, *_: timed.extend(calls) or {})
    wrong = run(fake("close", off_by(0.9 * tolerance)), fake("far", off_by(1.1 * tolerance)), precision=precision)
    assert timed == ["close"]
    (row,) = wrong.values()
    assert (row["library"], row["status"], row["median_s"]) == ("far", "wrong", None)
    assert row["error"] == pytest.approx(1.1 * tolerance, rel=1e-2)
    assert "off by" in row["note"]


def test_one_wrong_token_and_what_is_not_finite_are_wrong():
    def swapped(states):
        states[3, [0, 1]] = states[3, [1, 0]]
        return states

    def not_finite(states):
        states[0, 0, 0] = np.inf
        return states

    def lengths_ignored(states):
        return np.roll(states, 1, axis=0)

    rows = run(fake("swapped", swapped), fake("infinite", not_finite), fake("rolled", lengths_ignored))
    assert {row["status"] for row in rows.values()} == {"wrong"}
    assert rows["infinite"]["error"] == np.inf


def test_hidden_states_of_another_shape_cost_only_their_own_row():
    rows = run(fake("cut", lambda states: states[:, :-1]), fake(OURS))
    assert rows["cut"]["status"] == "failed"
    assert "have shape (32, 127, 32), expected (32, 128, 32)" in rows["cut"]["note"]
    assert rows[OURS]["status"] == "ok"


def test_missing_failing_and_unsupported_libraries_have_rows_that_say_so():
    rows = run(
        fake("absent", needs=("numpy", "no_such_module")),
        Peer("broken", PRECISIONS, (), raising(RuntimeError("no\n good"))),
        Peer("lesser", PRECISIONS, (), raising(Unsupported("not on this CPU"))),
        fake("other precision", precisions=("int8",)),
        fake(OURS),
    )
    assert {name: row["status"] for name, row in rows.items()} == {
        OURS: "ok",
        "absent": "unavailable",
        "broken": "failed",
        "lesser": "unavailable",
    }
    assert rows["absent"]["note"] == 'no_such_module not installed: pip install -e ".[bench,parity]"'
    assert rows["broken"]["note"] == "RuntimeError: no good"
    assert rows["lesser"]["note"] == "not on this CPU"


def test_ratios_are_to_the_fastest_peer_and_paired_by_round(monkeypatch):
    times = {
        OURS: Times(np.array([1.0, 1.0, 10.0]), 1),
        "slow": Times(np.array([4.0, 4.0, 40.0]), 1),
        "fast": Times(np.array([3.0, 2.0, 20.0]), 1),
    }
    assert compare.best_peer(times) == "fast"
    assert compare.best_peer({OURS: times[OURS]}) is None
    monkeypatch.setattr(compare, "measure", lambda *_: times)
    rows = run(fake(OURS), fake("slow"), fake("fast"))
    assert {name: row["time_vs_ours"] for name, row in rows.items()} == {OURS: 1, "slow": 4, "fast": 2}
    assert {name: row["is_best_peer"] for name, row in rows.items()} == {OURS: 0, "slow": 0, "fast": 1}
    assert rows[OURS]["gflop_per_s"] == CASE.flops / 1e9
    assert rows[OURS]["share_of_fma_limit"] == CASE.flops / 1e9
    line = summary.summarised(list(rows.values()))
    assert (line["best"], line["ratio"], line[OURS], line["slow"]) == ("fast", 2, 1, 4)
    assert line["gflop_per_s"] == rows[OURS]["gflop_per_s"]


def test_without_ours_there_are_medians_and_no_ratios():
    rows = run(fake("alone"))
    assert rows["alone"]["time_vs_ours"] is None
    assert "alone" in summary.tables(list(rows.values()))[0]


def test_tables_have_ours_first_and_notes_stand_once():
    rows = [*run(fake("other"), fake(OURS)).values(), *run(fake("far", off_by(1))).values()]
    (text,) = summary.tables(rows)
    assert text.split("\n")[1].split()[:3] == ["shape", OURS, "other"]
    twice = summary.notes([row | {"shape": shape} for row in rows for shape in ("1x16", "1x128")])
    assert len(twice) == 1
    assert "far float32 wrong in 2 cases, the first being tiny 1x16: off by 1" in twice[0]


# --- clock, cache, limit --------------------------------------------------------------------------


def test_settle_waits_for_what_still_runs(monkeypatch):
    spent = iter([0, 0.004, 0.004, 0.007, 0.007, 0.007])  # busy, busy, idle
    monkeypatch.setattr(clock.time, "process_time", lambda: next(spent))
    assert clock.settle()
    assert next(spent, None) is None


def test_settle_gives_up_on_what_never_sleeps(monkeypatch):
    monkeypatch.setattr(clock, "LONGEST_WAIT", 0.05)
    ticks = iter(range(10_000))
    monkeypatch.setattr(clock.time, "process_time", lambda: next(ticks))
    assert not clock.settle()


def test_short_calls_are_timed_after_an_untimed_one():
    calls = []
    assert clock.settled_clock(lambda: calls.append(1), 3) < 0.1
    assert len(calls) == 1 + 3
    calls.clear()
    assert clock.settled_clock(lambda: calls.append(time.sleep(0.06)), 1) >= 0.06
    assert len(calls) == 1


def test_an_interrupted_conversion_is_made_again(tmp_path):
    def fails(folder):
        (folder / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cached(tmp_path / "a", fails)
    assert not (tmp_path / "a").exists()
    made = cached(tmp_path / "a", lambda folder: (folder / "whole").write_text("1"))
    assert [path.name for path in made.iterdir()] == ["whole"]
    assert cached(made, fails) == made


def test_fma_limit_is_that_of_fused_multiply_adds():
    assert 1e9 < machine.fma_limit(1) < 1e12


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("peers")


@pytest.mark.parity
def test_the_command_writes_a_row_for_each_library_and_case(workdir, tmp_path, capsys):
    path = tmp_path / "peers.csv"
    arguments = ["--model", "tiny", "--shape", "1x16", "ragged", "--precision", "float32", "--rounds", "1"]
    status = main([*arguments, "--peers", OURS, "torch", "--workdir", str(workdir), "--csv", str(path)])
    printed = capsys.readouterr().out
    assert status == 0, printed
    rows = read_csv(path)
    assert list(rows[0]) == [*compare.COLUMNS, *machine.COLUMNS, *VERSIONS[1:], "fma_limit_gflop_per_s"]
    assert [(row["shape"], row["library"]) for row in rows] == [
        (shape, name) for shape in ("1x16", "ragged") for name in (OURS, "torch")
    ]
    for row in rows:
        assert row["status"] == "ok"
        assert float(row["gflop_per_s"]) == pytest.approx(
            Case("tiny", row["shape"]).flops / float(row["median_s"]) / 1e9
        )
    assert "tiny float32" in printed
    if plot.unavailable_reason() is None:
        assert path.with_suffix(".png").stat().st_size > 1000
    else:
        assert plot.unavailable_reason() in printed


@pytest.mark.parity
@pytest.mark.parametrize("model", ["tiny", "tiny-distilbert"])
def test_our_weights_are_those_of_transformers(model, workdir):
    folder = make_checkpoint(workdir, model, MODELS[model])
    alone = hidden_states_alone(folder)
    ours = [all_peers()[OURS]]
    (rows,) = compare.compare_model(
        [Case(model, "ragged")], "float32", ours, folder, lambda case, batch: alone(batch), PLAN
    )
    assert [row["status"] for row in rows] == ["ok"], rows


@pytest.mark.parity
@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "openvino-dynamic", "ctranslate2"])
def test_every_installed_library_is_right_in_every_precision_it_has(name, workdir):
    peer = all_peers()[name]
    if missing_reason(peer):
        pytest.skip(missing_reason(peer))
    folder = make_checkpoint(workdir, "tiny", MODELS["tiny"])
    alone = hidden_states_alone(folder)
    for precision in peer.precisions:
        sessions, failures = compare.open_sessions([peer], precision, folder, 2)
        if failures:
            assert failures[name].status == compare.UNAVAILABLE, failures
            continue
        for lengths in ((16,), (9, 40, 1)):
            batch = random_batch(lengths, MODELS["tiny"].vocabulary, seed=1)
            found = sessions[name].hidden(sessions[name].bind(batch)())
            assert compare.error_of(found, batch, alone(batch)) <= compare.TOLERANCES[precision]


def test_plot_draws_the_last_runs_alone(tmp_path):
    """Those of the last line's commit and CPU: a run may have been made in parts."""
    path = tmp_path / "peers.csv"
    columns = ["model", "shape", "precision", "library", "status", "gflop_per_s", "date", "commit", "cpu", "threads"]
    columns.append("fma_limit_gflop_per_s")
    runs = [("2026-01-01", "old", "cpu"), ("2026-01-02", "new", "other"), ("2026-01-03", "new", "cpu")]
    runs.append(("2026-01-04", "new", "cpu"))
    lines = [["m", "1x16", "int8", OURS, "ok", "5", *run, "2", "9"] for run in runs]
    lines.append(["m", "1x16", "int8", "torch", "failed", "", *runs[-1], "2", "9"])
    path.write_text("\n".join(",".join(line) for line in [columns, *lines]), encoding="utf-8")
    dates = ["2026-01-03", "2026-01-04"]
    assert [(row["date"], row["library"]) for row in plot.last_runs(path)] == [(date, OURS) for date in dates]
    said = plot.main([path])
    if plot.unavailable_reason() is None:
        assert said == f"plotted to {tmp_path / 'peers.png'}"
        assert (tmp_path / "peers.png").stat().st_size > 1000
    else:
        assert "pip install matplotlib" in said


def test_bars_stand_side_by_side_where_their_library_was_timed():
    class Panel:
        def __init__(self):
            self.bars = {}

        def bar(self, places, heights, width, *, color, label):
            self.bars[label] = (pytest.approx(places), heights, pytest.approx(width))

        def set_xticks(self, places, labels):
            self.ticks = (list(places), labels)

        def axhline(self, at, **options):
            self.limit = at

    common = {"fma_limit_gflop_per_s": "9"}
    rows = [
        {"shape": shape, "library": library, "gflop_per_s": speed, **common}
        for shape, library, speed in (("1x16", OURS, "5"), ("8x512", OURS, "7"), ("8x512", "torch", "3"))
    ]
    panel = Panel()
    plot._bars(panel, rows)
    assert panel.bars == {OURS: ([-0.2, 0.8], [5.0, 7.0], 0.4), "torch": ([1.2], [3.0], 0.4)}
    assert panel.ticks == ([0, 1], ["1x16", "8x512"])
    assert panel.limit == 9
