"""Programs: the same bits as the operations called at once, whatever is noted, read in between or let go."""

import copy
import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bertcore import kernels
from bertcore.kernels import program as program_module
from bertcore.kernels._numba import threads
from bertcore.kernels.deferred import Deferred
from bertcore.kernels.embedding import EMBEDDING
from bertcore.kernels.program import Program, Recordings
from bertcore.kernels.program import cpu as program_cpu
from tests.kernels.attention_forms import arguments, attend
from tests.kernels.strategies import normal
from tests.refusals import refuses

DTYPES = [None, "bfloat16", "int8"]


class Block:
    """A transformer block on the kernels: what a program is for."""

    def __init__(self, width, inner, heads, dtype=None):
        def weight(seed, rows, columns):
            array = normal(seed, (rows, columns), np.float32, scale=columns**-0.5)
            return kernels.prepare_weight(array, dtype=dtype, backend="numba")

        self.heads, self.compute_dtype = heads, None if dtype is None else "bfloat16"
        self.qkv, self.out = weight(1, 3 * width, width), weight(2, width, width)
        self.expand, self.contract = weight(3, inner, width), weight(4, width, inner)
        self.biases = [normal(5, (size,), np.float32) for size in (3 * width, width, inner, width)]
        self.norm = normal(6, (width,), np.float32), normal(7, (width,), np.float32)

    def __call__(self, x, cu_seqlens):
        tokens, width = x.shape
        qkv = kernels.linear(x, self.qkv, self.biases[0]).reshape(tokens, 3, self.heads, width // self.heads)
        context = kernels.attention(
            qkv[:, 0], qkv[:, 1], qkv[:, 2], cu_seqlens=cu_seqlens, compute_dtype=self.compute_dtype
        )
        x = kernels.linear(context.reshape(tokens, width), self.out, self.biases[1], residual=x)
        x = kernels.layer_norm(x, *self.norm)
        inner = kernels.linear(x, self.expand, self.biases[2], activation="gelu")
        return kernels.layer_norm(kernels.linear(inner, self.contract, self.biases[3]), *self.norm, residual=x)


def packed(lengths, width):
    return normal(8, (sum(lengths), width), np.float32), np.cumsum([0, *lengths], dtype=np.int32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("lengths", "sizes"), [([1], (39, 160, 1)), ([5, 1, 31], (48, 97, 4)), ([300], (64, 64, 2))])
def test_the_same_bits(lengths, sizes, dtype):
    block, (x, cu_seqlens) = Block(*sizes, dtype), packed(lengths, sizes[0])
    expected = hidden = x
    noted = Program().enter(x)
    for _ in range(3):
        expected, noted = block(expected, cu_seqlens), block(noted, cu_seqlens)
    assert type(noted) is Deferred and noted.shape == hidden.shape and len(noted.recorder.steps) == 3 * 7
    np.testing.assert_array_equal(noted.result(), expected)
    np.testing.assert_array_equal(np.asarray(noted), expected)


class ModernBlock:
    """Steps that later encoders have: norms without biases and weights, rotary positions, gates."""

    def __init__(self, width, heads, inplace):
        self.heads, self.inplace = heads, inplace
        self.qkv = kernels.prepare_weight(normal(1, (3 * width, width), np.float32), backend="numba")
        self.up = kernels.prepare_weight(normal(3, (2 * width, width // 2), np.float32), backend="numba")
        self.norm, self.tables = normal(2, (width,), np.float32), kernels.rotary_tables(64, width // heads // 4 * 2)

    def __call__(self, x, cu_seqlens):
        tokens, width = x.shape
        x = kernels.affine(kernels.affine(x, self.norm, self.norm), self.norm, self.norm, residual=x)
        x = kernels.layer_norm(kernels.rms_norm(x, self.norm), self.norm, residual=x)
        qkv = kernels.linear(kernels.rms_norm(kernels.layer_norm(x), residual=x), self.qkv)
        qkv = qkv.reshape(tokens, 3, self.heads, width // self.heads)
        options = {"cu_seqlens": cu_seqlens, "inplace": self.inplace}
        turned = kernels.rotary(qkv[:, :2], *self.tables, **options)
        key = kernels.rotary(turned[:, 1], *self.tables, interleaved=True, inplace=self.inplace)
        context = kernels.attention(turned[:, 0], key, qkv[:, 2], cu_seqlens=cu_seqlens)
        gated = kernels.gated_activation(context.reshape(tokens, width), "silu", gate="second")
        return kernels.gated_activation(kernels.linear(gated, self.up), "gelu")


@pytest.mark.parametrize("inplace", [False, True])
def test_steps_of_modern_encoders(inplace):
    block, recordings = ModernBlock(64, 2, inplace), Recordings()
    for lengths in ([5, 1, 31], [36, 0, 1], [0, 37, 0]):
        x, cu_seqlens = packed(lengths, 64)
        expected, noted = block(x.copy(), cu_seqlens), block(Program().enter(x), cu_seqlens)
        assert type(noted) is Deferred and len(noted.recorder.steps) == 13
        np.testing.assert_array_equal(noted.result(), expected)
        for _ in range(2):
            recorded(recordings, block, lengths)


RELATIVE_TERMS = [
    "position_key", "position_query", "position_key position_query", "position_key query_for_position segment_scores",
    "position_key position_query query_for_position segment_scores",
]  # fmt: skip


@pytest.mark.parametrize("dtype", [None, pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_attention_with_relative_terms(dtype):
    x, _ = packed([20, 19], 64)
    every = arguments("relative terms", [20, 19], dtype=np.float32, heads=4, head_dim=16, distances=9)
    weight = kernels.prepare_weight(normal(1, (256, 64), np.float32), dtype=dtype, backend="numba")

    def attended(hidden, terms):
        projected = kernels.linear(hidden, weight).reshape(39, 4, 4, 16)
        given = {name: every[name] for name in ("cu_seqlens", "distance_rows", *terms)}
        if "segment_scores" in terms:
            given["segment_ids"] = every["segment_ids"]
        names = ["query", "key", "value", *(name for name in terms if name == "query_for_position")]
        given |= {name: projected[:, place] for place, name in enumerate(names)}
        return attend(given, compute_dtype=dtype)

    for terms in map(str.split, RELATIVE_TERMS):
        noted = attended(Program().enter(x), terms)
        assert type(noted) is Deferred and not noted.recorder.has_run
        np.testing.assert_array_equal(noted.result(), attended(x, terms), err_msg=str(terms))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_a_table(dtype):
    table, ids = normal(1, (50, 39), np.float32).astype(dtype), np.array([49, 0, 7, 7])
    odd = np.frombuffer(b"\0" + table.tobytes(), np.uint8)[1:].view(dtype).reshape(table.shape)  # as in a mapped file
    for each in (table, odd, table[::-1], table[:, ::2]):
        noted = EMBEDDING.forward("numba", Program().enter(ids), each)
        assert type(noted) is (Deferred if each.strides[1] == each.itemsize else np.ndarray)
        np.testing.assert_array_equal(np.asarray(noted), EMBEDDING.forward("numba", ids, each))


def test_rotary_in_place_keeps_the_input_of_a_program():
    x, tables = normal(1, (5, 2, 8), np.float32), kernels.rotary_tables(5, 8)
    before = x.copy()
    kernels.rotary(Program().enter(x), *tables, inplace=True)
    np.testing.assert_array_equal(x, kernels.rotary(before, *tables))  # at once, as asked for
    too_short = kernels.rotary_tables(4, 8)  # for the next texts, maybe
    found = kernels.rotary(Program().enter(before), *too_short, cu_seqlens=np.array([0, 2, 5]))
    np.testing.assert_array_equal(found, kernels.rotary(before, *too_short, cu_seqlens=np.array([0, 2, 5])))


@pytest.mark.parametrize("count", [1, 3])
def test_any_number_of_threads(count, monkeypatch):
    block, (x, cu_seqlens) = Block(64, 160, 4, "int8"), packed([100, 39], 64)
    expected = block(x, cu_seqlens)
    monkeypatch.setattr(threads, "thread_count", lambda: kernels.threads.ThreadCount(count, "test"))
    np.testing.assert_array_equal(block(Program().enter(x), cu_seqlens).result(), expected)


def test_memory_reuse():
    block, (x, cu_seqlens) = Block(64, 160, 4), packed([50], 64)
    noted = Program().enter(x)
    for _ in range(10):
        noted = block(noted, cu_seqlens)
    gc.collect()
    after_ten = noted.recorder.nbytes
    for _ in range(10):
        noted = block(noted, cu_seqlens)
    assert noted.recorder.nbytes == after_ten and len(noted.recorder.steps) == 20 * 7


def test_read_results_are_not_overwritten():
    block, (x, cu_seqlens) = Block(64, 160, 4), packed([50], 64)
    first = block(Program().enter(x), cu_seqlens)
    early = first.result()
    before = early.copy()
    noted = block(first, cu_seqlens)
    del first
    for _ in range(3):
        noted = block(noted, cu_seqlens)
    noted.result()
    np.testing.assert_array_equal(early, before)


def test_inputs_stay_alive_until_the_run():
    block, (x, cu_seqlens) = Block(64, 160, 4), packed([50], 64)
    expected = block(block(x, cu_seqlens), cu_seqlens)
    noted = block(Program().enter(x.copy()), cu_seqlens.copy())  # the only references to the copies
    noted.result()  # nor, from now on, this memory
    noted = block(noted, cu_seqlens.copy())
    rubbish = [np.full(size, np.nan, np.float32) for size in (3200, 50 * 192, 51, 3300) for _ in range(20)]
    np.testing.assert_array_equal(noted.result(), expected)
    assert rubbish


WEIGHT = normal(1, (64, 64), np.float32)
MASK = np.arange(20) < 7


def multiplied(x, array=WEIGHT, dtype=None, **options):
    return kernels.linear(x, kernels.prepare_weight(array, dtype=dtype, backend="numba"), **options)


def attended(x, **options):
    qkv = x.reshape(39, 4, 16)
    return kernels.attention(qkv, qkv, qkv, cu_seqlens=np.array([0, 20, 39], np.int32), **options)


PARTS = [0, 2], np.array([1]), (0, 0), 3, slice(1, 3), (None, slice(2)), np.arange(39) < 3
SAME_AT_ONCE = {
    "no deferred form": lambda x: kernels.softmax(multiplied(x)),
    "a raw weight": lambda x: kernels.linear(x, WEIGHT),
    "a slice of columns": lambda x: multiplied(x[:, :32], WEIGHT[:, :32].copy()),
    "a mask": lambda x: attended(x, attn_mask=MASK),
    "lse": lambda x: attended(x, return_lse=True)[1],
    "no weights": lambda x: kernels.layer_norm(x, WEIGHT[0], WEIGHT[1]),
    "weights of two kinds": lambda x: multiplied(multiplied(x), dtype="int8"),
    "two programs": lambda x: multiplied(x, residual=multiplied(Program().enter(np.asarray(x)))),
    "a transpose": lambda x: multiplied(x).transpose(1, 0).reshape(-1),
    "a copy": lambda x: multiplied(x).copy(),
    **{f"part {index}": lambda x, index=index: multiplied(x)[index] for index in PARTS},
}


@pytest.mark.parametrize("case", SAME_AT_ONCE)
def test_the_same_as_at_once(case):
    x, _ = packed([20, 19], 64)
    run = SAME_AT_ONCE[case]
    np.testing.assert_array_equal(np.asarray(run(Program().enter(x))), np.asarray(run(x)))


@pytest.mark.slow
def test_float64_computes_at_once():
    x = normal(1, (20, 64), np.float64)
    found = multiplied(Program().enter(x), WEIGHT.astype(np.float64))
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, multiplied(x, WEIGHT.astype(np.float64)))


def test_interrupted_run_can_be_repeated(monkeypatch):
    block, (x, cu_seqlens) = Block(64, 160, 4), packed([50], 64)
    noted = block(block(Program().enter(x), cu_seqlens), cu_seqlens)
    expected = block(block(x, cu_seqlens), cu_seqlens)
    with monkeypatch.context() as patch:
        patch.setattr(program_cpu.StepTable, "run", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        refuses(KeyboardInterrupt, None, noted.result)
    np.testing.assert_array_equal(noted.result(), expected)


def recorded(recordings, block, lengths, key=None, calls=None):
    """Run a recording on a batch of these lengths, and compare it with the operations called at once."""
    x, cu_seqlens = packed(lengths, 64)

    def build(hidden, offsets):
        if calls is not None:
            calls.append(lengths)
        return block(block(hidden, offsets), offsets)

    found = recordings.run(key, build, x, cu_seqlens)
    np.testing.assert_array_equal(found, block(block(x, cu_seqlens), cu_seqlens))
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_recording_with_other_values(dtype):
    recordings, block, calls = Recordings(), Block(64, 160, 4, dtype), []
    results = [recorded(recordings, block, lengths, calls=calls) for lengths in ([30, 9], [10, 29], [38, 1], [39, 0])]
    assert len(calls) == 2  # noted once, recorded once, and then run
    before = results[-1].copy()
    recorded(recordings, block, [1, 38])
    np.testing.assert_array_equal(results[-1], before)  # results have memory of their own


def test_recordings_depend_on_shapes_and_key():
    recordings, block, calls = Recordings(), Block(64, 160, 4), []
    for _ in range(3):
        for lengths, key in [([39], 1), ([30, 9], 1), ([38], 1), ([39], 2)]:
            recorded(recordings, block, lengths, key, calls)
    assert len(calls) == 2 * 4


def test_unrecordable_operation_is_remembered():
    recordings, (x, cu_seqlens), calls = Recordings(), packed([39], 64), []

    def build(hidden, offsets):
        calls.append(hidden)
        return kernels.layer_norm(kernels.softmax(hidden), x[0], x[1])

    expected = build(x, None)
    for _ in range(4):
        np.testing.assert_array_equal(recordings.run(None, build, x, cu_seqlens), expected)
    assert all(hidden.array is x for hidden in calls[1:]), "it was copied to be recorded again"


def test_failed_recording_is_not_repeated():
    recordings, (x, cu_seqlens), calls = Recordings(), packed([39], 64), []
    norm = normal(1, (2, 64), np.float32)

    def build(hidden, offsets):
        calls.append(hidden)
        return kernels.layer_norm(kernels.softmax(hidden) if len(calls) == 2 else multiplied(hidden), *norm)

    for _ in range(4):
        recordings.run(None, build, x, cu_seqlens)
    assert [hidden.array is x for hidden in calls] == [True, False, True, True], "it was copied to be recorded again"


def test_kept_memory_is_bounded(monkeypatch):
    recordings, block = Recordings(), Block(64, 160, 4)

    def kept():
        return [recording.nbytes for waiting in recordings.kept.values() for recording in waiting]

    for lengths in ([110], [110]):
        recorded(recordings, block, lengths)
    most = 2 * sum(kept())  # of one; it grows with the number of threads
    monkeypatch.setattr(program_module, "MOST_KEPT", most)
    for _ in range(2):
        for tokens in range(100, 110):
            recorded(recordings, block, [tokens])
    assert most / 2 < sum(kept()) <= most


def test_single_shapes_are_not_kept(monkeypatch):
    monkeypatch.setattr(program_module, "MOST_SEEN", 5)
    recordings, block = Recordings(), Block(64, 160, 4)
    for tokens in range(1, 20):
        recorded(recordings, block, [tokens])
    assert not recordings.kept and len(recordings.seen) <= 5


def test_threads_share_recordings():
    recordings, block, calls = Recordings(), Block(64, 160, 4), []
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda index: recorded(recordings, block, [20 + index % 3, 9], calls=calls), range(90)))
    assert len(recordings.kept) == 3 and len(calls) <= 3 * (4 + 4)  # noted, and recorded, by each thread at most


def test_copy_starts_empty():
    recordings, block = Recordings(), Block(64, 160, 4)
    for _ in range(3):
        recorded(recordings, block, [39])
    assert recordings.kept and not copy.deepcopy(recordings).kept
