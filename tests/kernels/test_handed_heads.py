"""Heads handed to attention by tiles in bfloat16: who writes them, what of float32 is left, and that no bit depends
on it. What is noted is looked at on every level, what it computes where attention is on tiles."""

import gc
import itertools

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels import RelativePositions
from bertcore.kernels._numba import LEVEL
from bertcore.kernels._numba.low_precision.rounded_rows import HEADS
from bertcore.kernels.attention.cpu import OPERANDS
from bertcore.kernels.attention.cpu import step as attention_step
from bertcore.kernels.linear.cpu import step as linear_step
from bertcore.kernels.program import Program, Recordings
from bertcore.kernels.rotary import step as rotary_step
from tests.kernels.strategies import normal
from tests.kernels.test_handed_rows import values
from tests.kernels.test_program import packed

DTYPES = ["bfloat16", "int8"]
on_tiles = pytest.mark.skipif(LEVEL.tiles is None, reason="attention is not on tiles")


class Layer:
    """A joined projection or two, rotary positions, attention and a projection back, as an encoder calls them."""

    def __init__(self, heads=2, key_heads=None, head_dim=32, turned=0, is_split=False, dtype="bfloat16", **options):
        key_heads = key_heads or heads
        self.counts, self.head_dim, self.is_split = (heads, key_heads, key_heads), head_dim, is_split
        self.options, width = {"compute_dtype": "bfloat16", **options}, heads * head_dim

        def weight(seed, rows):
            array = normal(seed, (rows, width), np.float32, scale=width**-0.5)
            return kernels.prepare_weight(array, dtype=dtype, backend="numba")

        self.width, widths = width, (width, 2 * key_heads * head_dim)
        self.projections = [weight(1 + i, rows) for i, rows in enumerate(widths if is_split else (sum(widths),))]
        self.out = weight(3, width)
        self.tables = kernels.rotary_tables(600, turned) if turned else None

    def projected(self, x, cu_seqlens):
        """(query, key, value), each (tokens, its heads, head_dim)."""
        queries, keys, _ = self.counts
        joined = [kernels.linear(x, weight).reshape(x.shape[0], -1, self.head_dim) for weight in self.projections]
        if self.tables is not None:
            for array, heads in zip(joined, (queries, keys) if self.is_split else (queries + keys,), strict=True):
                kernels.rotary(array[:, :heads], *self.tables, cu_seqlens=cu_seqlens, inplace=True)
        if self.is_split:
            return joined[0], joined[1][:, :keys], joined[1][:, keys:]
        return joined[0][:, :queries], joined[0][:, queries : queries + keys], joined[0][:, queries + keys :]

    def __call__(self, x, cu_seqlens):
        attended = kernels.attention(*self.projected(x, cu_seqlens), cu_seqlens=cu_seqlens, **self.options)
        return kernels.linear(attended.reshape(x.shape[0], self.width), self.out)


def handed(program, kind):
    """Of each step of a kind: None if it hands no heads over, else (first column, whether it writes no float32)."""
    found = [dict(zip(HEADS.names, step["heads"], strict=True)) for step in values(program, kind)]
    return [(it["first"], bool(it["is_alone"])) if it["address"] else None for it in found]


def read(program):
    """Which operands the attentions read rounded."""
    steps = values(program, attention_step.STEP)
    return [tuple(bool(step[f"{name}_is_rounded"]) for name in OPERANDS[:3]) for step in steps]


@pytest.fixture
def offering(monkeypatch):
    """Steps offer heads as they do where there are tiles; what is noted so is not run."""
    if LEVEL.tiles is None:
        for step in (linear_step, rotary_step, attention_step):
            monkeypatch.setattr(step, "HEADS_BESIDE", {np.uint16, np.int8})


def noted(layer, lengths=(5, 1, 31)):
    x, cu_seqlens = packed(lengths, layer.width)
    program = Program()
    result = layer(program.enter(x), cu_seqlens)
    gc.collect()  # where a kernel was compiled meanwhile, that kept the arrays of the calls
    return program, result


ALL = (True,) * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_projection_writes_what_attention_reads(offering, dtype):
    program, _ = noted(Layer(dtype=dtype))
    assert handed(program, linear_step.STEP) == [(0, True), None]
    assert read(program) == [ALL]


def test_projections_apart_write_theirs(offering):
    program, _ = noted(Layer(4, 2, is_split=True))
    assert handed(program, linear_step.STEP) == [(0, True), (0, True), None]
    assert read(program) == [ALL]


def test_what_is_turned_is_rounded_afterwards(offering):
    program, _ = noted(Layer(4, 2, turned=16))
    assert handed(program, linear_step.STEP) == [(6 * 32, True), None]  # the values; what is turned stays float32
    assert handed(program, rotary_step.STEP) == [(0, True)]
    assert read(program) == [ALL]
    program, _ = noted(Layer(4, 2, turned=16, is_split=True))
    assert handed(program, linear_step.STEP) == [None, (2 * 32, True), None]
    assert handed(program, rotary_step.STEP) == [(0, True)] * 2


@pytest.mark.parametrize("head_dim", [16, 40, 48, 80])
def test_heads_that_fill_no_tiles_stay_float32(offering, head_dim):
    program, _ = noted(Layer(head_dim=head_dim))
    assert handed(program, linear_step.STEP) == [None, None]
    assert read(program) == [(False,) * 3]


def test_float32_that_is_read_is_written(offering):
    layer = Layer()
    x, cu_seqlens = packed([5, 1], layer.width)
    program = Program()
    query, key, value = layer.projected(program.enter(x), cu_seqlens)
    kernels.attention(query, key, value, cu_seqlens=cu_seqlens, compute_dtype="bfloat16")
    kernels.linear(query.reshape(6, -1) if query.array.flags.c_contiguous else query.result().reshape(6, -1), layer.out)
    del query, key, value
    assert not program.steps or handed(program, linear_step.STEP)[0] == (0, False)


def test_steps_that_have_run_hand_nothing_over(offering):
    layer = Layer()
    x, cu_seqlens = packed([5, 1], layer.width)
    program = Program()
    heads = layer.projected(program.enter(x), cu_seqlens)
    program.steps.clear()  # as if they had run
    program.steps = []
    kernels.attention(*heads, cu_seqlens=cu_seqlens, compute_dtype="bfloat16")
    assert read(program) == [(False,) * 3]


@pytest.mark.parametrize("turned", [slice(1, 3), slice(0, 1)])
def test_heads_turned_twice_or_in_the_middle_are_rounded_by_attention(offering, turned):
    layer = Layer(turned=32)
    x, cu_seqlens = packed([5, 1], layer.width)
    program = Program()
    joined = kernels.linear(program.enter(x), layer.projections[0]).reshape(6, -1, 32)
    options = {"cu_seqlens": cu_seqlens, "inplace": True}
    kernels.rotary(joined[:, :2], *layer.tables, **options)
    kernels.rotary(joined[:, turned], *layer.tables, **options)
    kernels.attention(joined[:, :2], joined[:, 2:4], joined[:, 4:], cu_seqlens=cu_seqlens, compute_dtype="bfloat16")
    assert read(program) == [(False,) * 3]
    assert handed(program, linear_step.STEP) == [None]


def test_memory_for_a_step_that_was_noted_is_used_by_no_later_one():
    """Room that is asked for afterwards is not what a step since then took and gave back."""
    program = Program()
    kind = np.dtype([("a", np.intp), ("b", np.intp)])
    early = program.empty((100,), np.float32)
    place = program.address(early)
    del early
    program.note(kind, 1, a=0, b=0)
    noted = program.last_step()
    late = program.empty((100,), np.float32)
    assert program.address(late) == place  # given back before the step
    program.note(kind, 1, a=0, b=0)
    del late
    assert program.address(program.empty((100,), np.float32, before=noted)) != place
    assert program.address(program.empty((100,), np.float32)) == place


CASES = {
    "32": {"heads": 3},
    "64": {"head_dim": 64},
    "96": {"head_dim": 96, "heads": 1},
    "128": {"head_dim": 128, "heads": 1},
    "48": {"head_dim": 48},
    "grouped": {"heads": 4, "key_heads": 2, "is_split": True},
    "turned": {"head_dim": 64, "turned": 64},
    "turned in part": {"heads": 4, "key_heads": 2, "turned": 16},
    "turned apart": {"heads": 4, "key_heads": 2, "turned": 32, "is_split": True},
}


@on_tiles
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name, dtype):
    for options in ({}, {"window": (7, 0)}, {"is_causal": True}):
        layer = Layer(**CASES[name], dtype=dtype, **options)
        for lengths in ([1], [300, 17, 0, 33], [32, 16, 1, 15]):
            x, cu_seqlens = packed(lengths, layer.width)
            result = layer(layer(Program().enter(x), cu_seqlens), cu_seqlens)
            assert read(result.recorder) == [tuple(name != "48" for _ in range(3))] * 2
            np.testing.assert_array_equal(result.result(), layer(layer(x, cu_seqlens), cu_seqlens))


@on_tiles
@pytest.mark.parametrize("terms", ["position_bias", "both", "query_for_position"])
def test_the_same_bits_with_relative_terms(terms):
    """Those of MPNet, of DeBERTa, whose queries meet both keys and positions, and queries of positions' own."""

    def relative(x, layer):
        if terms == "position_bias":
            return RelativePositions(np.arange(9) % 5, position_bias=normal(4, (5, 2), np.float32))
        tables = [normal(seed, (5, 2, 32), np.float32) for seed in (4, 5)]
        given = dict(zip(("position_key", "position_query"), tables, strict=True))
        if terms == "query_for_position":
            given["query_for_position"] = kernels.linear(x, layer.out).reshape(-1, 2, 32)
        return RelativePositions(np.arange(9) % 5, **given)

    def compute(x, cu_seqlens):
        for _ in range(2):
            layer.options["relative"] = relative(x, layer)
            x = layer(x, cu_seqlens)
        return x

    layer = Layer()
    for lengths in ([1], [300, 17, 0, 33]):
        x, cu_seqlens = packed(lengths, layer.width)
        result = compute(Program().enter(x), cu_seqlens)
        steps = values(result.recorder, attention_step.STEP)
        assert [step["query_for_position_is_rounded"] for step in steps] == [terms != "position_bias"] * 2
        np.testing.assert_array_equal(result.result(), compute(x, cu_seqlens))


@on_tiles
@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, 1e-40, 3e38])
def test_special_values_are_rounded_alike(special):
    layer = Layer(head_dim=64)
    x, cu_seqlens = packed([5, 31], layer.width)
    x[7, 3] = special
    np.testing.assert_array_equal(layer(Program().enter(x), cu_seqlens).result(), layer(x, cu_seqlens))


@on_tiles
@pytest.mark.parametrize("turned", [0, 32])
def test_a_text_has_its_bits_in_every_batch_and_at_every_run(turned):
    layer, recordings = Layer(turned=turned), Recordings()
    lengths = [19, 40, 3]
    x, cu_seqlens = packed(lengths, layer.width)
    together = np.asarray(layer(Program().enter(x), cu_seqlens))
    for begin, end in itertools.pairwise(cu_seqlens):
        alone = layer(Program().enter(x[begin:end]), np.array([0, end - begin], np.int32))
        np.testing.assert_array_equal(together[begin:end], alone)
    for _ in range(4):
        np.testing.assert_array_equal(recordings.run(0, layer, x, cu_seqlens), together)
