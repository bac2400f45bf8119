"""Batches of examples, and examples stored in files."""

import pickle
import tracemalloc
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcore.training.data import Batches, StoredExamples, store_examples
from bertcore.training.data import stored as module
from bertcore.training.data.batches import SHUFFLED
from tests.refusals import refuses

LENGTHS = np.random.default_rng(1).integers(1, 160, 397).tolist()
EXAMPLES = [{"input_ids": [index] * length} for index, length in enumerate(LENGTHS)]


class Stream:
    """An iterable that may be read again, and has no length."""

    def __iter__(self):
        return iter(EXAMPLES)


def numbers(batches, epoch=0, **options):
    return [[example["input_ids"][0] for example in batch] for batch in batches.epoch(epoch, **options)]


@pytest.mark.parametrize("dataset", [EXAMPLES, Stream()], ids=["sequence", "stream"])
@given(
    batch_size=st.integers(1, 450),
    max_tokens=st.none() | st.integers(1, 5000),
    shuffle=st.booleans(),
    group_by_length=st.booleans(),
    seed=st.integers(0, 9),
    skip=st.integers(0, 9),
)
def test_every_example_once(dataset, skip, **options):
    batches = Batches(dataset, **options)
    found = numbers(batches)
    assert sorted(chain(*found)) == list(range(len(EXAMPLES)))
    assert found == numbers(batches)
    assert found[skip:] == numbers(batches, skip=skip)
    for batch in found:
        assert len(batch) <= options["batch_size"]
        assert len(batch) == 1 or sum(LENGTHS[index] for index in batch) <= (options["max_tokens"] or 10**9)
    if options["max_tokens"] is None and dataset is EXAMPLES and not options["group_by_length"]:
        assert len(batches) == len(found)


@pytest.mark.parametrize("dataset", [EXAMPLES, Stream()], ids=["sequence", "stream"])
def test_epochs_differ_and_order_is_kept_if_asked(dataset):
    batches = Batches(dataset, batch_size=7)
    assert numbers(batches, 0) != numbers(batches, 1)
    assert list(chain(*numbers(Batches(dataset, batch_size=7, shuffle=False)))) == list(range(len(EXAMPLES)))
    assert numbers(batches) != numbers(Batches(dataset, batch_size=7, seed=1))


def test_batches_of_like_lengths():
    def spread(**options):
        batches = numbers(Batches(EXAMPLES, batch_size=4, **options))
        return np.mean([np.ptp([LENGTHS[index] for index in batch]) for batch in batches])

    assert spread(group_by_length=True) < 0.2 * spread()


def test_only_the_last_batch_of_an_epoch_is_left_out():
    batches = Batches(EXAMPLES, batch_size=10, drop_last=True)
    found = numbers(batches)
    assert {len(batch) for batch in found} == {10}
    assert len(found) == len(batches) == len(EXAMPLES) // 10
    dataset = [{"input_ids": [index] * 3} for index in range(1000)]
    batches = Batches(dataset, batch_size=4, max_tokens=10, group_by_length=True, drop_last=True)
    assert len(list(chain(*numbers(batches)))) >= 1000 - 3


def test_a_long_stream_is_shuffled_within_a_part():
    dataset = ({"input_ids": [index]} for index in range(3 * SHUFFLED))
    order = np.array(list(chain(*numbers(Batches(dataset, batch_size=64)))))
    assert (np.sort(order) == np.arange(3 * SHUFFLED)).all()
    assert (order < np.arange(3 * SHUFFLED) + SHUFFLED).all()


def test_a_function_is_called_for_every_epoch_and_an_iterator_has_one():
    batches = Batches(lambda: iter(EXAMPLES), batch_size=7)
    assert numbers(batches, 0) == numbers(batches, 0) == numbers(Batches(Stream(), batch_size=7))
    once = Batches(iter(EXAMPLES), batch_size=7)
    assert numbers(once, 0) == numbers(batches, 0)
    refuses(ValueError, "an iterator, which can be read once", numbers, once, 1)


class Rows:
    """Rows like those of a Hugging Face Dataset: rows by number, no slices of NumPy's integers, and features."""

    features = MappingProxyType({"input_ids": "List", "label": "Value"})

    def __len__(self):
        return len(EXAMPLES)

    def __getitem__(self, index):
        assert type(index) is int
        return EXAMPLES[index]

    def __iter__(self):
        raise AssertionError("it is read by number")


def test_rows_of_a_table():
    assert numbers(Batches(Rows(), batch_size=7)) == numbers(Batches(EXAMPLES, batch_size=7))


@pytest.mark.parity
def test_datasets_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(EXAMPLES)
    assert numbers(Batches(table, batch_size=7)) == numbers(Batches(EXAMPLES, batch_size=7))
    stream = table.to_iterable_dataset()
    assert numbers(Batches(stream, batch_size=7)) == numbers(Batches(Stream(), batch_size=7))


class Table:
    """A table like pandas': with a shape, read by column names."""

    columns, shape = ("input_ids",), (2, 1)

    def __len__(self):
        return 2

    def __getitem__(self, name):
        return {"input_ids": [[5], [6]]}[name]


@pytest.mark.parametrize("options, error", [
    ({"batch_size": 0}, "batch_size is 0"),
    ({"batch_size": True}, "batch_size is True"),
    ({"max_tokens": 1.5}, "max_tokens is 1.5"),
    ({"max_tokens": float("nan")}, "max_tokens is nan"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": None}, "seed is None"),
    ({"shuffle": "no"}, "shuffle is 'no'"),
    ({"group_by_length": 1}, "group_by_length is 1"),
    ({"dataset": "text"}, "dataset is str, expected a sequence"),
    ({"dataset": 3}, "dataset is int, expected a sequence"),
    ({"dataset": Table()}, "dataset is Table, expected a sequence or an iterable of examples"),
    ({"dataset": {"train": EXAMPLES}}, "dataset is dict, expected a sequence or an iterable of examples"),
])  # fmt: skip
def test_invalid_settings(options, error):
    refuses((TypeError, ValueError), error, Batches, **{"dataset": EXAMPLES} | options)
    refuses(TypeError, "unknown for a stream", len, Batches(Stream()))
    for epoch in ({"number": -1}, {"number": 0, "skip": -1}, {"number": 0, "skip": 1.5}):
        refuses((TypeError, ValueError), "expected an integer of at least 0", Batches(EXAMPLES).epoch, **epoch)
    refuses(ValueError, "an example has no input_ids", list, Batches([{"labels": 1}], group_by_length=True).epoch(0))


STORED_LENGTHS = [0, 1, 39, 160, 7]
STORED_EXAMPLES = [
    {"input_ids": list(range(size)), "token_type_ids": np.ones(size, np.int64), "label": size, "score": size / 4}
    for size in STORED_LENGTHS
]


def check_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert np.ndim(found[name]) == np.ndim(value)


@pytest.mark.parametrize("buffered", [1, 50, 1 << 18])
def test_what_was_stored_comes_back(tmp_path, monkeypatch, buffered):
    monkeypatch.setattr(module, "BUFFERED", buffered)
    stored = store_examples(tmp_path / "new" / "examples", iter(STORED_EXAMPLES), {"max_length": 160})
    for read in (stored, StoredExamples(stored.folder), pickle.loads(pickle.dumps(stored))):
        assert len(read) == len(STORED_EXAMPLES) and read.facts == {"max_length": 160}
        for index, example in enumerate(STORED_EXAMPLES):
            check_same(read[index], example)
        check_same(read[-1], STORED_EXAMPLES[-1])
    with pytest.raises(IndexError):
        stored[len(STORED_EXAMPLES)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_names_the_folder(tmp_path, monkeypatch):
    def full(path, stack):
        return stack.enter_context(Path("/dev/full").open("wb"))

    monkeypatch.setattr(module, "open_file", full)
    refuses(OSError, r"No space left on device: '.*new'", store_examples, tmp_path / "new", STORED_EXAMPLES)
    assert not list(tmp_path.iterdir())


def test_no_examples(tmp_path):
    assert len(store_examples(tmp_path / "a", [])) == 0


def test_memory_does_not_grow_with_the_examples(tmp_path):
    def examples():
        for index in range(30_000):
            yield {"input_ids": [index % 1000] * 100}

    tracemalloc.start()
    stored = store_examples(tmp_path / "a", examples())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(stored) == 30_000 and peak < 4 << 20  # 12 million bytes of ids


def test_batches_read_only_what_is_in_them(tmp_path, monkeypatch):
    stored = store_examples(tmp_path / "a", ({"input_ids": [index]} for index in range(100)))
    read, get = [], StoredExamples.__getitem__
    monkeypatch.setattr(StoredExamples, "__getitem__", lambda self, index: read.append(index) or get(self, index))
    batch = next(Batches(stored, batch_size=5).epoch(0, skip=7))
    assert len(read) == len(batch) == 5


@pytest.mark.parametrize("second, message", [
    ({"input_ids": [1], "other": 1}, r"examples\[1\] has input_ids, other, examples\[0\] has input_ids"),
    ({"input_ids": 3}, r"examples\[1\]\['input_ids'\] is 3"),
    ({"input_ids": [2**31]}, r"examples\[1\]\['input_ids'\]"),
    ({"input_ids": [0.5]}, r"examples\[1\]\['input_ids'\] is \[0.5\]"),
    ({"input_ids": "text"}, r"examples\[1\]\['input_ids'\] is 'text'"),
    ({"input_ids": [[1]]}, r"examples\[1\]\['input_ids'\]"),
])  # fmt: skip
def test_an_example_of_another_kind_leaves_nothing(tmp_path, second, message):
    refuses((TypeError, ValueError), message, store_examples, tmp_path / "a", [{"input_ids": [1]}, second])
    assert not list(tmp_path.iterdir())


def test_damage_is_seen(tmp_path):
    store_examples(tmp_path / "a", STORED_EXAMPLES)
    refuses(FileExistsError, "exists already", store_examples, tmp_path / "a", STORED_EXAMPLES)
    refuses(FileNotFoundError, "holds no examples", StoredExamples, tmp_path)
    values = tmp_path / "a" / "input_ids.values"
    content = values.read_bytes()
    for damaged in (content[:-1], content[:-4], content + bytes(4)):
        values.write_bytes(damaged)
        refuses(ValueError, r"input_ids\.values", StoredExamples, tmp_path / "a")
    for damaged in ("{", "{}", "[]"):
        (tmp_path / "a" / "examples.json").write_text(damaged)
        refuses(ValueError, r"examples\.json is damaged", StoredExamples, tmp_path / "a")
