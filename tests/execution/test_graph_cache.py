"""Passes that are captured as CUDA graphs, and the memory that they share."""

import copy
import weakref
from collections import deque

import cupy
import numpy as np
import pytest

from bertcore import kernels
from bertcore.execution import graph_cache
from bertcore.execution.graph_cache import InferenceGraphs, NotCaptured, TrainingGraphs
from bertcore.kernels._cuda.capture import ALIGNMENT
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.cuda_emulator.streams import Graph, Stream
from tests.processes import in_threads
from tests.refusals import refuses

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
    """The result by a graph, also where this is the first batch of its layout."""
    ids = cupy.asarray(np.array(ids, np.int32))
    for _ in range(2):
        found = made.run(version, key, build, ids, len(ids) if rows is None else rows)
        if found is not None:
            return found[0]
    raise AssertionError("no graph")


def workspaces(made):
    return [each for on_device in made.workspaces.values() for each in on_device]


def captured(made):
    """The graphs that are kept."""
    return [graph for workspace in workspaces(made) for graph in workspace.graphs.values()]


def keys(made):
    return [key for workspace in workspaces(made) for key in workspace.graphs]


def test_a_graph_computes_other_batches_of_its_layout(gpu, table):
    made, kept, found = InferenceGraphs(), [], []
    for ids in ([3, 0, 0], [1, 1, 2], [0, 3, 2]):
        found.append((ids, run(made, build_of(table), ids)))
        kept += captured(made)
    for ids, output in found:  # each has its own memory
        np.testing.assert_allclose(output.get(), expected(ids), rtol=1e-6)
    assert kept[0] is kept[1] is kept[2] and kept[0].graph.launches == 3
    np.testing.assert_allclose(run(made, build_of(table), [2, 3, 1], rows=2).get(), expected([2, 3]), rtol=1e-6)


def test_a_graph_gives_several_results(gpu, table):
    def build(ids):
        first = kernels.embedding(ids, table)
        second = kernels.activation(first * 2, "tanh")
        return (first, second, first), None  # one of them twice

    made = InferenceGraphs()
    for count, ids in enumerate(([3, 0, 0], [3, 0, 0], [1, 1, 2], [0, 3, 2])):
        found = made.run(1, "layout", build, cupy.asarray(np.array(ids, np.int32)), 2)
        if count == 0:
            assert found is None
            continue
        for result, values in zip(found, (ROWS[ids], expected(ids), ROWS[ids]), strict=True):
            np.testing.assert_allclose(result.get(), values[:2], rtol=1e-6)
        assert len({result.data.ptr for result in found}) == 3


def test_a_pass_may_make_arrays_of_no_element(gpu, table):
    made = InferenceGraphs()
    for ids in ([3, 0], [1, 2]):
        found = run(made, build_of(table, lambda array: cupy.empty((0, 3)) * 2), ids)
        np.testing.assert_allclose(found.get(), expected(ids), rtol=1e-6)


def test_only_the_second_batch_of_a_layout_is_captured(gpu, table):
    made, ids = InferenceGraphs(), cupy.asarray(np.array([1], np.int32))
    assert [made.run(1, key, build_of(table), ids, 1) is None for key in "abab"] == [True, True, False, False]
    with cupy.cuda.Device(1):  # another GPU
        assert made.run(1, "a", build_of(table), ids, 1) is None


@pytest.mark.parametrize(("extra", "message"), [
    (lambda array: array.get(), "waits for the device"),
    (lambda array: bool(array.sum() > 0), "waits for the device"),
    (lambda array: cupy.cuda.get_current_stream().synchronize(), "waits for the device"),
    (lambda array: cupy.asarray(np.ones(3)), "memory of the host"),
    (lambda array: cupy.matmul(array.reshape(1, -1), array.reshape(-1, 1)), "matmul is cuBLAS's"),
])  # fmt: skip
def test_what_a_graph_cannot_hold_is_an_error(gpu, table, extra, message):
    made = InferenceGraphs()
    refuses(NotCaptured, message, run, made, build_of(table, extra), [1, 2])
    (workspace,) = workspaces(made)
    assert gpu.capture is None and workspace.block is None
    for version in (1, 1, 2, 2):  # none is tried again
        assert made.run(version, "layout", build_of(table, extra), cupy.zeros(2, np.int32), 2) is None


def test_a_pass_that_fails_says_so_itself(gpu, table):

    def fail(array):
        raise RuntimeError("not here")

    made = InferenceGraphs()
    with pytest.raises(RuntimeError, match="not here") as raised:
        run(made, build_of(table, fail), [1, 2])
    assert raised.type is RuntimeError
    np.testing.assert_allclose(run(made, build_of(table), [1, 2]).get(), expected([1, 2]), rtol=1e-6)


def test_memory_that_does_not_suffice_may_later(gpu, table, monkeypatch):
    """A layout that found none is tried again when it has been seen twice more."""
    made, ids, source = InferenceGraphs(), cupy.asarray(np.array([1, 2], np.int32)), cupy.cuda.alloc
    tried = []

    def alloc(size):
        tried.append(size)
        if len(tried) < 3:
            raise MemoryError
        return source(size)

    monkeypatch.setattr(cupy.cuda, "alloc", alloc)
    found = [made.run(1, "layout", build_of(table), ids, 2) for _ in range(6)]
    assert [result is None for result in found] == [True] * 5 + [False] and len(tried) == 3
    np.testing.assert_allclose(found[-1][0].get(), expected([1, 2]), rtol=1e-6)


def test_memory_from_elsewhere_is_refused_within_a_capture(gpu, table):
    source = cupy.cuda.get_allocator()
    with pytest.raises(NotCaptured, match="are allocated while a stream is captured"):
        run(InferenceGraphs(), build_of(table, lambda array: source(64)), [1, 2])


def test_a_pass_that_changes_between_its_runs_is_an_error(gpu, table):
    sizes = iter((3, 3, 5))
    with pytest.raises(NotCaptured, match=r"array 2 of a captured pass takes 5 bytes, expected 3 bytes"):
        run(InferenceGraphs(), build_of(table, lambda array: cupy.empty(next(sizes), np.int8)), [1, 2])
    left = iter((True, True, False))
    with pytest.raises(NotCaptured, match="expected none"):
        run(InferenceGraphs(), build_of(table, lambda array: next(left) or [cupy.empty(3) for _ in range(9)]), [1, 2])


def test_a_pass_may_keep_what_it_makes_once(gpu, table):
    kept = []

    def build(ids):
        if not kept:
            kept.append(cupy.zeros(1000, np.float32) + 1)
        return (kernels.embedding(ids, table) + kept[0][:3],), None

    made = InferenceGraphs()
    for ids in ([3, 0], [1, 2]):
        np.testing.assert_array_equal(run(made, build, ids).get(), ROWS[ids] + 1)
    (workspace,) = workspaces(made)
    assert workspace.block.mem.size == 2 * ALIGNMENT
    kept = []
    with pytest.raises(NotCaptured, match="keeps 12 bytes besides its results"):
        run(InferenceGraphs(), build_of(table, lambda array: kept.append(array[:1] * 1)), [1, 2])


def test_what_comes_after_the_output_leaves_it_alone(gpu, table):
    def build(ids):
        output = kernels.embedding(ids, table) * 2
        output.repeat(400, axis=0) * 0  # of more memory than what was freed below the output
        return (output,), None

    made = InferenceGraphs()
    for ids in ([3, 0], [1, 2]):
        np.testing.assert_array_equal(run(made, build, ids).get(), 2 * ROWS[ids])


def test_graphs_of_a_model_share_memory(gpu, table):
    made = InferenceGraphs()
    for key, ids in (("long", [0] * 100), ("short", [1, 2]), ("long", [3] * 100), ("short", [2, 0])):
        np.testing.assert_allclose(run(made, build_of(table), ids, key=key).get(), expected(ids), rtol=1e-6)
    long, short = captured(made)
    assert long.block is short.block


def test_graphs_in_a_block_that_is_too_small_are_captured_again(gpu, table):
    made = InferenceGraphs()
    run(made, build_of(table), [1, 2], key="short")
    (graph,) = map(weakref.ref, captured(made))
    run(made, build_of(table), [0] * 100, key="long")
    assert keys(made) == ["long"]
    np.testing.assert_allclose(run(made, build_of(table), [2, 0], key="short").get(), expected([2, 0]), rtol=1e-6)
    assert len({id(each.block) for each in captured(made)}) == 1 and graph() is None


def test_the_graphs_used_last_are_kept(gpu, table, monkeypatch):
    monkeypatch.setattr(graph_cache, "MOST_KEPT", 2)
    made, ids = InferenceGraphs(), cupy.asarray(np.array([1], np.int32))
    for key in "abac":
        run(made, build_of(table), [1], key=key)
    assert keys(made) == ["a", "c"]
    monkeypatch.setattr(graph_cache, "MOST_SEEN", 2)
    assert [made.run(1, key, build_of(table), ids, 1) for key in "defd"] == [None] * 4


def test_graphs_that_go_are_waited_for(gpu, table):
    made, ids = InferenceGraphs(), cupy.asarray(np.array([1], np.int32))
    with cupy.cuda.Stream():
        run(made, build_of(table), [1])
    (graph,) = map(weakref.ref, captured(made))
    gpu.waits.clear()
    gpu.is_busy = True
    made.run(2, "layout", build_of(table), ids, 1)
    assert graph() is None and len(gpu.waits) == 1
    made.keep_only(None)  # nothing is left to ask the version for


def training_build(factor):
    """Twice the rows, times those of `factor`, which has a gradient."""

    def build(hidden):
        output = hidden * factor * 2
        return output, lambda gradient: (gradient * factor * 2, (gradient * hidden).sum(0) * 2), factor

    return build


def begun(made, build, hidden, key="layout", version=1):
    """A pass by graphs, also where this is the first of its layout."""
    arrays = [(hidden, len(hidden) + 1)]
    return made.begin(version, key, build, arrays) or made.begin(version, key, build, arrays)


def check_pass(pass_, hidden, factor):
    np.testing.assert_allclose(pass_.forward([hidden]).get(), hidden.get() * factor.get() * 2)
    of_hidden, of_factor = pass_.backward(cupy.ones_like(hidden))
    np.testing.assert_allclose(of_hidden.get()[: len(hidden)], 0 * hidden.get() + factor.get() * 2)
    np.testing.assert_allclose(of_factor.get(), hidden.get().sum(0) * 2)


def test_passes_that_are_under_way_at_once_have_memory_of_their_own(gpu, table):
    made, factor = TrainingGraphs(), cupy.asarray(np.array([1, 2, 3], np.float32))
    hidden = [table * number for number in range(1, 4)]
    passes = [begun(made, training_build(factor), each) for each in hidden]
    assert made.begin(1, "layout", training_build(factor), [(table, 5)]) is None  # no more
    outputs = [each.forward([rows]) for each, rows in zip(passes, hidden, strict=True)]
    for each, rows, output in zip(passes, hidden, outputs, strict=True):
        np.testing.assert_allclose(output.get(), rows.get() * factor.get() * 2)
        np.testing.assert_allclose(each.backward(cupy.ones_like(rows))[1].get(), rows.get().sum(0) * 2)
    assert len(captured(made)) == 3
    del passes, each
    check_pass(begun(made, training_build(factor), table), table, factor)
    assert len(captured(made)) == 3


def test_a_pass_under_way_keeps_its_graphs(gpu, table):
    made, factor = TrainingGraphs(), cupy.asarray(np.array([1, 2, 3], np.float32))
    pass_ = begun(made, training_build(factor), table)
    graph = weakref.ref(pass_.graph)
    made.begin(2, "layout", training_build(factor), [(table, 5)])
    assert not captured(made) and graph() is not None
    check_pass(pass_, table, factor)
    gpu.waits.clear()
    gpu.is_busy = True
    del pass_
    assert graph() is None and len(gpu.waits) == 1


def test_a_copy_captures_its_own(gpu, table):
    made = InferenceGraphs()
    run(made, build_of(table), [1])
    assert not captured(copy.deepcopy(made))


def test_a_graph_is_launched_on_the_callers_stream_after_the_pass_before(gpu, table, monkeypatch):
    did = []
    for name in ("launch", "wait_event"):
        owner = Graph if name == "launch" else Stream
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda self, given, name=name, real=real: (did.append((name, self, given)), real(self, given))
        )
    made, stream = InferenceGraphs(), cupy.cuda.Stream()
    run(made, build_of(table), [0, 1])
    del did[:]
    run(made, build_of(table), [0, 1])
    with stream:
        run(made, build_of(table), [2, 3])
    (workspace,) = workspaces(made)
    done, default, (graph,) = workspace.done, gpu.stream, captured(made)
    assert did == [
        *(("wait_event", default, done), ("launch", graph.graph, default)),
        *(("wait_event", stream, done), ("launch", graph.graph, stream)),
    ]


def test_threads_share_graphs(gpu, table):
    made, wrong = InferenceGraphs(), []
    run(made, build_of(table), [0, 0])

    def work(first):
        for second in range(4):
            found = run(made, build_of(table), [first, second])
            if not np.allclose(found.get(), expected([first, second])):
                wrong.append((first, second))

    in_threads(kernels.use_backend("cupy")(work), range(4))
    assert not wrong
