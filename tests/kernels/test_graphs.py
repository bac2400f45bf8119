"""kernels/program: passes that are captured as CUDA graphs, and the one block of memory that each has."""

import copy
import threading
import weakref
from collections import OrderedDict, deque

import cupy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore import kernels
from bertcore.kernels.program import Graphs, NotCaptured, graphs
from bertcore.kernels.program.arena import ALIGNMENT, Arena, Lifetimes
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.cuda_emulator.streams import CaptureError, Graph, Stream

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def gpu():
    if unavailable_reason() is not None:
        pytest.skip(unavailable_reason())
    with driverless("round_robin") as gpu, kernels.use_backend("cupy"):
        gpu.launches = deque(maxlen=0)  # which would keep their arguments alive
        yield gpu


@pytest.fixture
def table(gpu):
    return cupy.asarray(ROWS)


def expected(ids):
    return np.asarray(np.tanh(2 * ROWS[ids]))


def build_of(table, extra=lambda array: None):
    """Rows of a table, doubled by a kernel of CuPy's, through a kernel of ours; `extra` is done on the way."""

    def build(ids):
        doubled = kernels.embedding(ids, table) * 2
        extra(doubled)
        return (kernels.activation(doubled, "tanh"),), None

    return build


def run(made, build, ids, rows=None, key="layout", version=1):
    ids = cupy.asarray(np.array(ids, np.int32))
    (found,) = made.run(version, key, build, ids, len(ids) if rows is None else rows)
    return found


def test_a_graph_computes_other_batches_of_its_layout(gpu, table):
    made, kept, found = Graphs(), [], []
    for ids in ([3, 0, 0], [1, 1, 2], [0, 3, 2]):
        found.append((ids, run(made, build_of(table), ids)))
        kept.append(next(iter(made._kept.values())))
    for ids, output in found:  # each has its own memory
        np.testing.assert_allclose(output.get(), expected(ids), rtol=1e-6)
    assert kept[0] is kept[1] is kept[2] and kept[0]._graph.launches == 3
    np.testing.assert_allclose(run(made, build_of(table), [2, 3, 1], rows=2).get(), expected([2, 3]), rtol=1e-6)


def test_a_graph_gives_several_results(gpu, table):
    def build(ids):
        first = kernels.embedding(ids, table)
        second = kernels.activation(first * 2, "tanh")
        return (first, second, first), None  # one of them twice

    made = Graphs()
    for ids in ([3, 0, 0], [1, 1, 2], [0, 3, 2]):
        found = made.run(1, "layout", build, cupy.asarray(np.array(ids, np.int32)), 2)
        for result, values in zip(found, (ROWS[ids], expected(ids), ROWS[ids]), strict=True):
            np.testing.assert_allclose(result.get(), values[:2], rtol=1e-6)
        assert len({result.data.ptr for result in found}) == 3


def test_a_pass_may_make_arrays_of_no_element(gpu, table):
    made = Graphs()
    for ids in ([3, 0], [1, 2]):
        found = run(made, build_of(table, lambda array: cupy.empty((0, 3)) * 2), ids)
        np.testing.assert_allclose(found.get(), expected(ids), rtol=1e-6)


def test_only_the_second_batch_of_a_layout_is_captured(gpu):
    made = Graphs()
    assert [made.has_seen(1, key) for key in "abab"] == [False, False, True, True]
    gpu.current = 1
    assert not made.has_seen(1, "a")  # on another GPU


def test_a_replay_launches_nothing_else_and_waits_for_nothing(gpu, table):
    made = Graphs()
    run(made, build_of(table), [3, 0])
    gpu.launches, gpu.waits = [], []
    gpu.uploads.clear()
    run(made, build_of(table), [1, 2])
    assert (gpu.launches, gpu.waits, len(gpu.uploads)) == ([], [], 1)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (lambda array: array.get(), "waits for the device"),
        (lambda array: bool(array.sum() > 0), "waits for the device"),
        (lambda array: cupy.cuda.get_current_stream().synchronize(), "waits for the device"),
        (lambda array: cupy.asarray(np.ones(3)), "memory of the host"),
        (lambda array: cupy.matmul(array.reshape(1, -1), array.reshape(-1, 1)), "matmul is cuBLAS's"),
    ],
)
def test_what_a_graph_cannot_hold_is_an_error(gpu, table, extra, message):
    made = Graphs()
    with pytest.raises(NotCaptured, match=message):
        run(made, build_of(table, extra), [1, 2])
    assert gpu.capture is None
    assert [made.has_seen(version, "layout") for version in (1, 1, 2, 2)] == [False] * 4  # none is tried again


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_pass_that_fails_says_so_itself(gpu, table, error):
    """Memory that does not suffice, in whichever run, and what fails without any graph, too."""
    runs = iter((True, error is RuntimeError))

    def fail(array):
        if next(runs) == (error is RuntimeError):
            raise error("not here")

    made = Graphs()
    with pytest.raises(error, match="not here") as raised:
        run(made, build_of(table, fail), [1, 2])
    assert raised.type is error
    assert [made.has_seen(1, "layout") for _ in range(2)] == [False, True]


def test_memory_from_elsewhere_is_refused_within_a_capture(gpu, table):
    source = cupy.cuda.get_allocator()
    with pytest.raises(NotCaptured, match="are allocated while a stream is captured"):
        run(Graphs(), build_of(table, lambda array: source(64)), [1, 2])


def test_the_default_stream_cannot_be_captured(gpu):
    with pytest.raises(CaptureError, match="default stream"):
        cupy.cuda.get_current_stream().begin_capture()


def test_a_pass_that_changes_between_its_runs_is_an_error(gpu, table):
    sizes = iter((3, 3, 5))
    with pytest.raises(NotCaptured, match=r"array 2 of a pass that is captured takes 5 bytes, expected 3 bytes"):
        run(Graphs(), build_of(table, lambda array: cupy.empty(next(sizes), np.int8)), [1, 2])
    left = iter((True, True, False))
    with pytest.raises(NotCaptured, match="expected none"):
        run(Graphs(), build_of(table, lambda array: next(left) or [cupy.empty(3) for _ in range(9)]), [1, 2])


def test_a_pass_may_keep_what_it_makes_once(gpu, table):
    kept = []

    def build(ids):
        if not kept:
            kept.append(cupy.zeros(1000, np.float32) + 1)
        return (kernels.embedding(ids, table) + kept[0][:3],), None

    made = Graphs()
    for ids in ([3, 0], [1, 2]):
        np.testing.assert_array_equal(run(made, build, ids).get(), ROWS[ids] + 1)
    (graph,) = made._kept.values()
    assert graph.block.mem.size == 2 * ALIGNMENT
    with pytest.raises(NotCaptured, match="keeps 12 bytes beside its results"):
        run(Graphs(), build_of(table, lambda array: kept.append(array[:1] * 1)), [1, 2])


def test_what_comes_after_the_output_leaves_it_alone(gpu, table):
    def build(ids):
        output = kernels.embedding(ids, table) * 2
        cupy.concatenate([output] * 400) * 0  # of more memory than what was freed below the output
        return (output,), None

    made = Graphs()
    for ids in ([3, 0], [1, 2]):
        np.testing.assert_array_equal(run(made, build, ids).get(), 2 * ROWS[ids])


def test_graphs_of_a_model_share_memory(gpu, table):
    made = Graphs()
    for key, ids in (("long", [0] * 100), ("short", [1, 2]), ("long", [3] * 100), ("short", [2, 0])):
        np.testing.assert_allclose(run(made, build_of(table), ids, key=key).get(), expected(ids), rtol=1e-6)
    long, short = made._kept.values()
    assert long.block is short.block


def test_graphs_in_a_block_that_is_too_small_are_captured_again(gpu, table):
    made = Graphs()
    run(made, build_of(table), [1, 2], key="short")
    (graph,) = map(weakref.ref, made._kept.values())
    run(made, build_of(table), [0] * 100, key="long")
    assert [key for _, key in made._kept] == ["long"] and graph() is None
    np.testing.assert_allclose(run(made, build_of(table), [2, 0], key="short").get(), expected([2, 0]), rtol=1e-6)
    assert len({id(graph.block) for graph in made._kept.values()}) == 1


def test_the_graphs_used_last_are_kept(gpu, table, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_KEPT", 2)
    made = Graphs()
    for key in "abac":
        run(made, build_of(table), [1], key=key)
    assert [key for _, key in made._kept] == ["a", "c"]
    monkeypatch.setattr(graphs, "MOST_SEEN", 2)
    assert [made.has_seen(1, key) for key in "abca"] == [False] * 4


def test_graphs_of_another_version_are_dropped_when_no_stream_runs_them(gpu, table):
    made = Graphs()
    assert [made.has_seen(1, "a"), made.has_seen(1, "a")] == [False, True]
    with cupy.cuda.Stream():
        run(made, build_of(table), [1], key="a")
    gpu.waits.clear()
    old, cleared = made._kept, []
    made._kept = type("Kept", (OrderedDict,), {"clear": lambda kept: cleared.append([*gpu.waits])})(old)
    assert not made.has_seen(2, "a")
    assert cleared == [["Event.synchronize"]]  # waited first
    gpu.waits.clear()
    assert made.has_seen(2, "a") and not gpu.waits


def test_a_copy_captures_its_own(gpu, table):
    made = Graphs()
    run(made, build_of(table), [1])
    assert not copy.deepcopy(made)._kept


def test_a_graph_is_launched_on_the_callers_stream_after_the_pass_before(gpu, table, monkeypatch):
    did = []
    for name in ("launch", "wait_event"):
        owner = Graph if name == "launch" else Stream
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda self, given, name=name, real=real: (did.append((name, self, given)), real(self, given))
        )
    made, stream = Graphs(), cupy.cuda.Stream()
    run(made, build_of(table), [0, 1])
    with stream:
        run(made, build_of(table), [2, 3])
    done = made._on_devices[0].done
    default, (graph,) = gpu.stream, made._kept.values()
    assert did == [
        *(("wait_event", default, done), ("launch", graph._graph, default)),
        *(("wait_event", stream, done), ("launch", graph._graph, stream)),
    ]


def test_threads_share_graphs(gpu, table):
    """One at a time gives a batch to the GPU: what one reads is not what another computes."""
    made, wrong = Graphs(), []
    run(made, build_of(table), [0, 0])

    def work(first):
        for second in range(4):
            found = run(made, build_of(table), [first, second])
            if not np.allclose(found.get(), expected([first, second])):
                wrong.append((first, second))

    threads = [threading.Thread(target=kernels.use_backend("cupy")(work), args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 6)), min_size=1, max_size=40))
def test_arrays_that_live_at_once_stand_apart(sizes):
    """Of each array its bytes, and how many of the next ones it lives through."""
    if unavailable_reason() is not None:
        pytest.skip(unavailable_reason())
    with driverless(emulated=False):
        lifetimes = Lifetimes()
        ends = _allocate(lifetimes.allocate, sizes)
        layout = lifetimes.layout((ends.pop(),))
        del ends
        places = []
        memory = cupy.cuda.alloc(layout.nbytes)
        arena = Arena(layout, memory)
        _allocate(lambda size: places.append(arena.allocate(size)) or places[-1], sizes)
    spans = [(place.ptr - memory.ptr, size) for place, (size, _) in zip(places, sizes, strict=True)]
    for index, ((start, size), (_, kept)) in enumerate(zip(spans, sizes, strict=True)):
        assert start % ALIGNMENT == 0 and start + size <= layout.nbytes
        for other, length in spans[index + 1 : index + 1 + kept]:
            assert start + size <= other or other + length <= start


def _allocate(allocate, sizes):
    """Arrays of these bytes; the last one is kept."""
    live = {}
    for index, (size, kept) in enumerate(sizes):
        live[index] = index + kept, cupy.ndarray(size, np.int8, allocate(size))
        for other in [other for other, (last, _) in live.items() if last <= index and other != len(sizes) - 1]:
            del live[other]
    return [live[len(sizes) - 1][1]]
