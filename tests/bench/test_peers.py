"""bench.peers and bench.models: cases, checks, ratios, reports; installed libraries at a tiny size."""

import numpy as np
import pytest

from bench import machine, plot
from bench import models as members
from bench.measure import Times
from bench.peers import __main__ as command
from bench.peers import compare
from bench.peers.cases import MODELS, PRECISIONS, SHAPES, Case, Size, random_batch
from bench.peers.checkpoint import hidden_states_alone, make_checkpoint
from bench.peers.libraries import OURS, Peer, Session, Unsupported, all_peers
from bench.report import read_csv
from bertcore.presets import PRESETS
from tests.refusals import refuses

CASE = Case("tiny", "ragged")
PLAN = compare.Plan(rounds=1, seconds=0, fma_limit=1e9)
TRUTH = np.random.default_rng(0).normal(size=(sum(CASE.lengths), 32)).astype(np.float32)


def fake(name, spoil=lambda states: states, precisions=PRECISIONS, needs=()):
    """A library that returns the truth, spoilt; padding is NaN."""

    def load(folder, precision, threads):
        def bind(batch):
            states = np.full((*batch.input_ids.shape, TRUTH.shape[1]), np.nan, np.float32)
            states[batch.is_real] = TRUTH
            states = spoil(states)
            return lambda: states

        return Session(bind)

    return Peer(name, precisions, needs, load)


def run(*peers, precision="float32"):
    sessions, failures = compare.open_sessions(peers, precision, "unused", 1)
    rows = compare.compare(CASE, precision, CASE.batch(), sessions, failures, TRUTH, PLAN)
    return {row["library"]: row for row in rows}


def off_by(error):
    return lambda states: states * (1 + error)


def raising(error):
    def load(folder, precision, threads):
        raise error

    return load


def test_flops_are_twice_the_multiply_adds_of_real_tokens():
    size = Size(layers=3, hidden=10, heads=2, intermediate=7)
    per_token = 4 * 10 * 10 + 2 * 10 * 7
    assert size.flops((2, 5)) == 3 * (2 * per_token * 7 + 2 * 2 * 10 * (4 + 25))
    assert Case("bert-base", "1x128").flops == 22_347_251_712  # 85 million parameters of linear maps, and attention
    assert members.Case(members.BERT, "8x128").flops == Size().flops(SHAPES["8x128"])


def test_batches_are_padded_and_the_same_in_every_run():
    batch = random_batch((3, 5), vocabulary=4, seed=1)
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0, 0], [1] * 5]
    assert (batch.input_ids[0, 3:] == 0).all() and (batch.input_ids[batch.is_real] > 0).all()
    assert batch.input_ids.dtype == batch.attention_mask.dtype == np.int64 and (batch.input_ids < 4).all()
    for shape, lengths in SHAPES.items():
        first, second = (Case("tiny", shape).batch() for _ in range(2))
        assert (first.input_ids == second.input_ids).all() and tuple(first.attention_mask.sum(1)) == lengths
    padded = members.Case("roberta-base", "ragged", quick=True).batch()
    assert (padded.input_ids[~padded.is_real] == 1).all() and (padded.input_ids[padded.is_real] != 1).all()


def test_members_are_presets_that_transformers_has():
    assert set(members.MEMBERS) <= set(members.comparable()) <= set(PRESETS)
    for parse, arguments in ((command._parse, ["--shape", "3x3"]), (members._parse, ["--models", "transfo-xl-wt103"])):
        refuses(SystemExit, None, parse, arguments)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_wrong_results_are_not_timed(precision, monkeypatch):
    tolerance, timed = compare.TOLERANCES[precision], []
    monkeypatch.setattr(compare, "measure", lambda calls, *_: timed.extend(calls) or {})
    rows = run(fake("close", off_by(0.9 * tolerance)), fake("far", off_by(1.1 * tolerance)), precision=precision)
    assert timed == ["close"]
    assert (rows["far"]["status"], rows["far"]["median_s"]) == ("wrong", None)
    assert rows["far"]["error"] == pytest.approx(1.1 * tolerance, rel=1e-2) and "off by" in rows["far"]["note"]


def test_a_library_that_cannot_run_costs_only_its_own_row():
    rows = run(
        fake("absent", needs=("numpy", "no_such_module")),
        Peer("broken", PRECISIONS, (), raising(RuntimeError("no\n good"))),
        Peer("lesser", PRECISIONS, (), raising(Unsupported("not on this CPU"))),
        fake("other precision", precisions=("int8",)),
        fake("cut", lambda states: states[:, :-1]),
        fake(OURS),
    )
    assert {name: (row["status"], row["note"]) for name, row in rows.items()} == {
        OURS: ("ok", ""),
        "absent": ("unavailable", 'no_such_module not installed: pip install -e ".[bench,parity]"'),
        "broken": ("failed", "RuntimeError: no good"),
        "lesser": ("unavailable", "not on this CPU"),
        "cut": ("failed", "ValueError: the hidden states have shape (32, 127, 32), expected (32, 128, 32)"),
    }


def test_ratios_are_to_the_fastest_peer_and_paired_by_round(monkeypatch):
    seconds = {OURS: [1.0, 1.0, 10.0], "slow": [4.0, 4.0, 40.0], "fast": [3.0, 2.0, 20.0]}
    times = {name: Times(np.array(samples), 1) for name, samples in seconds.items()}
    assert compare.best_peer({OURS: times[OURS]}) is None
    monkeypatch.setattr(compare, "measure", lambda *_: times)
    rows = run(*map(fake, times))
    assert {name: row["time_vs_ours"] for name, row in rows.items()} == {OURS: 1, "slow": 4, "fast": 2}
    assert {name: row["is_best_peer"] for name, row in rows.items()} == {OURS: 0, "slow": 0, "fast": 1}
    assert rows[OURS]["gflop_per_s"] == rows[OURS]["share_of_fma_limit"] == CASE.flops / 1e9
    line = command.summarised(list(rows.values()))
    assert (line["best"], line["ratio"], line[OURS], line["slow"]) == ("fast", 2, 1, 4)


def test_members_have_the_ratio_to_our_bert(monkeypatch):
    case, truth, padded = members.Case(members.BERT, "1x16", quick=True), np.ones((16, 3)), np.ones((1, 16, 3))
    sessions = {name: Session(lambda batch: lambda: padded) for name in (OURS, "torch")}
    sessions["wrong"] = Session(lambda batch: lambda: 2 * padded)
    seconds = {OURS: [1.0, 2.0, 1.0], "torch": [3.0, 6.0, 3.0], members.BESIDE: [4.0, 8.0, 2.0]}
    times = {name: Times(np.array(samples), 1) for name, samples in seconds.items()}
    monkeypatch.setattr(compare, "measure", lambda calls, *_: {name: times[name] for name in calls})
    rows = compare.compare(case, "float32", case.batch(), sessions, {}, truth, PLAN, {members.BESIDE: None})
    assert [row[f"time_vs_{members.BESIDE}"] for row in rows] == [0.25, 0.75, None]
    (line,) = members.summarised(rows)
    assert (line[OURS], line["torch"], line["ratio"], line["beside"]) == (1, 3, 3, 0.25)
    assert line["note"].startswith("wrong wrong: off by 1")


TINY = ["--model", "tiny", "--shape", "1x16", "ragged", "--precision", "float32", "--peers", OURS, "torch"]
MINI = ["--quick", "--models", "mini-bert", "--shapes", "1x16"]


@pytest.mark.parity
@pytest.mark.parametrize("main, arguments, shapes", [(command.main, TINY, 2), (members.main, MINI, 1)])
def test_the_commands_write_a_row_for_each_library_and_case(main, arguments, shapes, tmp_path, capsys):
    path = tmp_path / "results.csv"
    status = main([*arguments, "--rounds", "1", "--workdir", str(tmp_path / "work"), "--csv", str(path)])
    printed, rows = capsys.readouterr().out, read_csv(path)
    assert status == 0, printed
    assert list(rows[0])[: len(compare.COLUMNS)] == list(compare.COLUMNS)
    assert list(rows[0])[-1] == "fma_limit_gflop_per_s" and {*machine.COLUMNS} < {*rows[0]}
    assert [row["library"] for row in rows] == [OURS, "torch"] * shapes
    assert {row["status"] for row in rows} == {"ok"} and rows[0]["model"] in printed
    assert path.with_suffix(".png").exists() or plot.unavailable_reason() in printed


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("model", ["tiny", "tiny-distilbert"])
def test_installed_libraries_have_the_weights_of_transformers(model, tmp_path):
    folder, case = make_checkpoint(tmp_path, model, MODELS[model]), Case(model, "ragged")
    for precision in PRECISIONS:
        sessions, failures = compare.open_sessions(all_peers().values(), precision, folder, 1)
        truth = hidden_states_alone(folder)(case.batch())
        for row in compare.compare(case, precision, case.batch(), sessions, failures, truth, PLAN):
            assert row["status"] in ("ok", "unavailable"), row
