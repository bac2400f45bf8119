"""Examples in files: what was stored comes back, of any place, in little memory; damaged files do not."""

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bertcore.training.data import Batches, StoredExamples, store_examples
from bertcore.training.data import stored as module
from tests.refusals import refuses

LENGTHS = [0, 1, 39, 160, 7]
EXAMPLES = [
    {"input_ids": list(range(size)), "token_type_ids": np.ones(size, np.int64), "label": size, "score": size / 4}
    for size in LENGTHS
]


def check_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert np.ndim(found[name]) == np.ndim(value)


@pytest.mark.parametrize("buffered", [1, 50, 1 << 18])
def test_what_was_stored_comes_back(tmp_path, monkeypatch, buffered):
    monkeypatch.setattr(module, "BUFFERED", buffered)
    stored = store_examples(tmp_path / "new" / "examples", iter(EXAMPLES), {"max_length": 160})
    for read in (stored, StoredExamples(stored.folder), pickle.loads(pickle.dumps(stored))):
        assert len(read) == len(EXAMPLES) and read.facts == {"max_length": 160}
        for index, example in enumerate(EXAMPLES):
            check_same(read[index], example)
        check_same(read[-1], EXAMPLES[-1])
    with pytest.raises(IndexError):
        stored[len(EXAMPLES)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_names_the_folder(tmp_path, monkeypatch):
    def full(path, stack):
        return stack.enter_context(Path("/dev/full").open("wb"))

    monkeypatch.setattr(module, "_opened", full)
    refuses(OSError, r"No space left on device: '.*new'", store_examples, tmp_path / "new", EXAMPLES)
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
    store_examples(tmp_path / "a", EXAMPLES)
    refuses(FileExistsError, "exists already", store_examples, tmp_path / "a", EXAMPLES)
    refuses(FileNotFoundError, "holds no examples", StoredExamples, tmp_path)
    values = tmp_path / "a" / "input_ids.values"
    content = values.read_bytes()
    for damaged in (content[:-1], content[:-4], content + bytes(4)):
        values.write_bytes(damaged)
        refuses(ValueError, r"input_ids\.values", StoredExamples, tmp_path / "a")
    (tmp_path / "a" / "examples.json").write_text("{")
    refuses(ValueError, r"examples\.json is damaged", StoredExamples, tmp_path / "a")
