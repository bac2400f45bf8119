"""A batch that memory does not suffice for is computed in halves, with the result of the whole."""

import warnings
from types import SimpleNamespace

import cupy
import numpy as np
import pytest

from bertcore import SentenceEncoder, pipeline, use_backend
from bertcore.kernels.dispatch import unavailable_reason as no_backend
from bertcore.tasks.texts import BatchHalvedWarning, by_halves, in_batches
from tests.cuda_emulator.driverless import driverless, unavailable_reason
from tests.demo import demo_folder  # noqa: F401
from tests.refusals import refuses
from tests.tasks.pipelines.folders import save_head

TEXTS = ["A kitten rests.", "Rain falls on the roof of the old house.", "", "The train is late again today."]


def at_most(tokens, tried):
    """Lengths of rows, where memory suffices for so many tokens."""

    def compute(rows):
        tried.append(len(rows))
        if sum(map(len, rows)) > tokens:
            raise MemoryError("no room")
        return [len(row) for row in rows]

    return compute


def test_halves_come_back_in_order():
    rows, tried = [[0] * size for size in (3, 1, 4, 1, 5)], []
    with pytest.warns(BatchHalvedWarning, match="no room: a batch of 5 texts, 14 tokens, is computed in halves"):
        assert by_halves(at_most(10, tried), rows) == [3, 1, 4, 1, 5]
    assert tried == [5, 2, 3]


def test_a_text_alone_is_not_halved():
    with pytest.raises(MemoryError, match="no room"), warnings.catch_warnings():
        warnings.simplefilter("ignore", BatchHalvedWarning)
        by_halves(at_most(4, []), [[0], [0], [0], [0] * 5])


def test_other_errors_stay():
    refuses(ZeroDivisionError, None, by_halves, lambda rows: 1 // 0, [[0], [0]])


def test_it_is_told_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        list(in_batches([[0] * 4] * 40, 40, at_most(20, []), lambda count: None))
    assert [warning.category for warning in caught] == [BatchHalvedWarning]


def test_a_servers_batch_is_halved():
    pytest.importorskip("orjson")
    from bertcore.serving.models import ServedModel

    compute = ServedModel.on_backend(SimpleNamespace(_backend="numpy"), at_most(3, []))
    with pytest.warns(BatchHalvedWarning):
        assert compute([[0], [0] * 2, [0] * 3]) == [1, 2, 3]


def test_answers_of_a_pipeline_are_those_of_the_whole_batch(tmp_path, monkeypatch):
    folder = save_head(tmp_path, "AutoModelForSequenceClassification", {"0": "yes", "1": "no"})
    with use_backend("numba"):  # on which no text's bits depend on the others
        classify = pipeline("text-classification", folder)
        expected, forward = classify(TEXTS), type(classify.model).__call__

        def of_two_at_most(model, input_ids, *args, **options):
            if len(input_ids) > 2:
                raise MemoryError("no room")
            return forward(model, input_ids, *args, **options)

        monkeypatch.setattr(type(classify.model), "__call__", of_two_at_most)
        with pytest.warns(BatchHalvedWarning, match="a batch of 4 texts"):
            assert classify(TEXTS) == expected


@pytest.fixture
def small_gpu():
    """A GPU in which no array has more than `most` bytes; `refused` counts those that would."""
    if unavailable_reason() is not None or no_backend("cupy") is None:
        pytest.skip(unavailable_reason() or "there is a GPU")
    with driverless() as gpu, use_backend("cupy"):
        gpu.most, gpu.refused = 1 << 40, 0
        allocate = gpu.allocate

        def allocate_some(size):
            if size > gpu.most:
                gpu.refused += 1
                raise cupy.cuda.memory.OutOfMemoryError(size, 0, gpu.most)
            return allocate(size)

        cupy.cuda.set_allocator(allocate_some)
        yield gpu


@pytest.mark.slow
def test_embeddings_are_those_of_the_whole_batch(small_gpu, demo_folder):  # noqa: F811
    encoder = SentenceEncoder(demo_folder)
    with use_backend("numpy"):
        expected = SentenceEncoder(demo_folder).encode(TEXTS)
    encoder.encode(TEXTS[:1])  # the parameters are there
    tokens = max(len(ids) for ids, _ in encoder.token_rows(TEXTS))
    small_gpu.most = 2 * tokens * encoder.model.spec.layers[0].intermediate_size * 4  # the widest array of two texts
    with pytest.warns(BatchHalvedWarning, match="Out of memory"):
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)
    assert small_gpu.refused
