"""Ray Data over our actor, with two workers of its own."""

import numpy as np
import pytest

from bertcore import use_backend
from tests.plugins.texts import LONG, TEXTS
from tests.tiny_bert import random_texts

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

from bertcore.plugins.ray import BatchEmbedder  # noqa: E402

pytestmark = pytest.mark.slow
MANY = [*TEXTS, *random_texts(160)]


@pytest.fixture(scope="module", autouse=True)
def two_workers():
    """A Ray of two CPUs, for one actor each."""
    ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False)
    yield
    ray.shutdown()


def embedded(items, *arguments, **options):
    """The rows of `items` as two actors make them."""
    data = ray.data.from_items(items, override_num_blocks=4)
    return data.map_batches(
        BatchEmbedder, fn_constructor_args=arguments, fn_constructor_kwargs=options, concurrency=2, batch_size=39
    )


def test_the_bits_of_one_process(folder, encoder):
    rows = embedded([{"id": number, "text": text} for number, text in enumerate(MANY)], folder).take_all()
    rows.sort(key=lambda row: row["id"])
    assert [row["text"] for row in rows] == MANY
    with use_backend("numba"):
        expected = encoder.encode(MANY)
    found = np.stack([row["embedding"] for row in rows])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_options_and_columns(folder, encoder):
    options = {"prompt_name": "query", "normalize_embeddings": True, "truncate_dim": 7, "truncation": "chunk"}
    rows = embedded([{"body": LONG}], folder, text_column="body", embedding_column="vector", **options).take_all()
    with use_backend("numba"):
        np.testing.assert_array_equal(rows[0]["vector"], encoder.encode(LONG, **options))


def test_an_empty_dataset(folder):
    assert embedded([], folder).take_all() == []
    found = BatchEmbedder(folder)({"text": np.array([], object)})
    assert found["embedding"].shape == (0, 39) and found["embedding"].dtype == np.float32


@pytest.mark.parametrize(("items", "options", "message"), [
    ([{"body": "a", "id": 1}], {}, "text_column is 'text', expected one of the dataset's columns: body, id"),
    ([{"text": "a", "embedding": 1}], {}, "embedding_column is 'embedding', which exists in the dataset: text"),
    ([{"text": "a"}, {"text": None}], {}, r"text\[\d\] is NoneType, expected str"),
    ([{"text": 1.5}], {}, r"text\[0\] is float64, expected str"),
    ([{"text": "a"}], {"prompt_name": "no"}, "prompt_name is 'no'"),
])  # fmt: skip
def test_what_is_refused(folder, items, options, message):
    with pytest.raises(Exception, match=message):
        embedded(items, folder, **options).take_all()
