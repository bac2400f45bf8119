"""The benchmark of training steps: what is trained, and how losses are compared."""

import math

import numpy as np
import pytest

from bench.training import objectives
from bench.training.__main__ import COLUMNS, TOLERANCE, TOLERANCES, _compare, _parse, loss_errors
from bench.training.cases import (
    CASES,
    CLASSIFICATION,
    IN_BACKWARD,
    IN_BFLOAT16,
    IN_EIGHT_BITS,
    LABELLED,
    MASKED_LM,
    OURS,
    RECOMPUTING,
    TORCH,
    Case,
    Loop,
    checkpoint_of,
    find_case,
    in_backward,
    in_bfloat16,
    ours,
    recomputing,
)

SMALL = find_case("mini-bert/ragged", quick=True)


def test_batches_label_real_tokens_alone():
    batches = SMALL.batches()
    assert not np.array_equal(batches[0]["input_ids"], batches[1]["input_ids"])
    for again, batch in zip(SMALL.batches(), batches, strict=True):
        assert all(np.array_equal(again[name], batch[name]) for name in batch)
        is_labelled = batch["labels"] != -100
        assert (batch["attention_mask"][is_labelled] == 1).all()
        assert (batch["input_ids"][is_labelled] == 96).all()
        assert abs(is_labelled.sum() / sum(SMALL.lengths) - LABELLED) < 0.02
    assert find_case("deberta-v3-base/8x128", quick=True).batches()[0]["labels"].shape == (8,)


def test_flops_of_a_step_are_three_times_those_of_a_forward():
    layers, width, inner, words, tokens = 3, 192, 768, 8192, 8 * 64
    linear = tokens * 2 * (4 * width**2 + 2 * width * inner)
    attention = tokens * 4 * 64 * width
    head = 2 * LABELLED * tokens * width * (width + words)
    assert math.isclose(CASES[0].flops, 3 * (layers * (linear + attention) + head))
    classifier, language_model = (Case("mini-bert", "8x64", task).flops for task in (CLASSIFICATION, MASKED_LM))
    assert math.isclose(language_model - classifier, 3 * head)


def test_losses_tell_whether_loops_train_alike(tmp_path):
    folder, batches = checkpoint_of(SMALL, tmp_path), SMALL.batches()
    loops = {RECOMPUTING: recomputing(SMALL, folder), OURS: ours(SMALL, folder)}
    assert loss_errors(loops, batches) == {RECOMPUTING: 0.0, OURS: 0.0}
    loops = {IN_BACKWARD: in_backward(SMALL, folder), OURS: ours(SMALL, folder)}
    assert loss_errors(loops, batches) == {IN_BACKWARD: 0.0, OURS: 0.0}
    loops = {IN_BFLOAT16: in_bfloat16(SMALL, folder), OURS: ours(SMALL, folder)}
    assert 0 < loss_errors(loops, batches)[IN_BFLOAT16] <= TOLERANCES[IN_BFLOAT16]
    lazy = Loop(lambda batch: 4.5, lambda on: None)
    assert loss_errors({"lazy": lazy, OURS: ours(SMALL, folder)}, batches)["lazy"] > TOLERANCE
    broken = Loop(lambda batch: math.nan, lambda on: None)
    assert loss_errors({"broken": broken, OURS: ours(SMALL, folder)}, batches)["broken"] == math.inf


@pytest.mark.slow  # a quarter of a minute: five loops, one of them PyTorch's
@pytest.mark.parity
def test_rows_of_a_case(tmp_path):
    options = _parse(["--quick", "--threads", "1"])
    rows = list(_compare(SMALL, options, tmp_path, 1e9))
    assert [row["library"] for row in rows] == [OURS, RECOMPUTING, IN_BACKWARD, IN_EIGHT_BITS, TORCH]
    for row in rows:
        assert tuple(row) == COLUMNS and None not in row.values()
        assert row["status"] == "ok" and row["loss_error"] <= TOLERANCE
    assert rows[0]["time_vs_ours"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", objectives.CASES)
def test_steps_of_objectives_are_right(name):
    case = objectives.CASES[name](objectives.Sizes(8, 32, 4, 128, 1000), np.random.default_rng(0))
    assert objectives.error_of(case) <= objectives.TOLERANCE
    assert set(objectives.ratio_of(case, rounds=1, seconds=0)) == {"step_s", "passes_s", "ratio", "spread"}
