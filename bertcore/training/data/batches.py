"""Batches of a dataset: by a number of examples or tokens, shuffled with a seed, on request of similar lengths."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertcore.arguments import check_count
from bertcore.kernels import checks

SHUFFLED = 4096  # examples of a stream that are shuffled together
LABELS = ("label", "labels", "score", "scores")  # names of the column of labels
DATASET = "dataset_name"  # name of the dataset of an example
APART = (*LABELS, DATASET)  # columns without texts
HASHED = 64  # examples that a fingerprint covers
GROUPED = 50  # batches whose examples are sorted by length together

Example = Mapping[str, Any]
Lazy = Callable[[], Example]  # an example, fetched at the first call


class Batches:
    """The batches of a dataset, epoch by epoch; the same seed and epoch give the same batches.

    Args:
        dataset: a sequence of examples (a list, `StoredExamples`, a Hugging Face Dataset), read batch by batch; or an
            iterable, or a function that returns one, read once for each epoch and shuffled within 4,096 examples. An
            iterator (a generator) has one epoch.
        batch_size: the most examples of a batch.
        max_tokens: the most tokens (of input_ids) of a batch; a longer example has a batch to itself. Padding does not
            count, since models leave it out.
        shuffle: whether examples come in random order.
        group_by_length: sort the examples of 50 batches by length before cutting batches, and shuffle these.
        drop_last: leave out the last batch of an epoch if it is not full.
        seed: seeds the random order.

    Raises TypeError or ValueError for anything but a dataset, and for a wrong number or flag.
    """

    def __init__(
        self,
        dataset: Iterable[Example] | Callable[[], Iterable[Example]],
        *,
        batch_size: int = 8,
        max_tokens: int | None = None,
        shuffle: bool = True,
        group_by_length: bool = False,
        drop_last: bool = False,
        seed: int = 0,
    ):
        is_any = _is_sized(dataset) or isinstance(dataset, Iterable) or callable(dataset)
        # A table iterates over its columns, not its rows.
        is_table = hasattr(dataset, "columns") and len(getattr(dataset, "shape", ())) == 2
        if not is_any or is_table or isinstance(dataset, str | Mapping):
            raise TypeError(f"dataset is {type(dataset).__name__}, expected a sequence or an iterable of examples")
        batch_size = check_count("batch_size", batch_size)
        max_tokens = None if max_tokens is None else check_count("max_tokens", max_tokens)
        for name, flag in {"shuffle": shuffle, "group_by_length": group_by_length, "drop_last": drop_last}.items():
            checks.boolean(name, flag)
        seed, self._is_read = check_count("seed", seed, 0), False
        self.dataset, self.batch_size, self.max_tokens = dataset, batch_size, max_tokens
        self.shuffle, self.group_by_length, self.drop_last, self.seed = shuffle, group_by_length, drop_last, seed

    def __len__(self) -> int:
        """Return the number of batches of an epoch. Raises TypeError for a stream or with `max_tokens`."""
        if not _is_sized(self.dataset) or self.max_tokens is not None:
            raise TypeError("the number of batches is unknown for a stream and with max_tokens")
        count = len(self.dataset)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    @property
    def num_examples(self) -> int | None:
        """The number of examples; None for a stream."""
        return len(self.dataset) if _is_sized(self.dataset) else None

    def fingerprint(self) -> str | None:
        """Return a hash of up to 64 examples, the first and the last among them, that identifies the dataset.

        It is None for a stream, an empty dataset, and one that changes between reads.
        """
        if not _is_sized(self.dataset) or not len(self.dataset):
            return None
        places, found = np.unique(np.linspace(0, len(self.dataset) - 1, HASHED).astype(int)).tolist(), []
        for _ in range(2):
            some = json.dumps([self.dataset[place] for place in places], default=_listed, sort_keys=True)
            found.append(hashlib.sha256(some.encode()).hexdigest()[:16])
        return found[0] if found[0] == found[1] else None

    def epoch(self, number: int, *, skip: int = 0, every: int = 1) -> Iterator[list[Example]]:
        """Yield every `every`-th batch of one epoch, from batch number `skip` on.

        Skipped examples of a sequence are not read (with `max_tokens` or `group_by_length` they are, for their
        lengths); examples of an iterable are read and dropped.

        Raises:
            TypeError, ValueError: unless the arguments are integers in range; for a second epoch of an iterator.
        """
        number, skip = check_count("number", number, 0), check_count("skip", skip, 0)
        every = check_count("every", every)
        rng = np.random.default_rng((self.seed, number))
        if _is_sized(self.dataset):
            order = rng.permutation(len(self.dataset)) if self.shuffle else range(len(self.dataset))
            examples = (_lazy(self.dataset, int(index)) for index in order)
        else:
            examples = self._of_stream(rng)
        batches = self._grouped(examples, rng) if self.group_by_length else self._cut(examples)
        return ([example() for example in batch] for batch in itertools.islice(batches, skip, None, every))

    def _of_stream(self, rng: np.random.Generator) -> Iterator[Lazy]:
        waiting: list[Example] = []
        for example in self._stream():
            waiting.append(example)
            if not self.shuffle or len(waiting) == SHUFFLED:
                yield _lazy([_take(waiting, rng)], 0)
        while waiting:
            yield _lazy([_take(waiting, rng)], 0)

    def _stream(self) -> Iterable[Example]:
        if not callable(self.dataset):
            if isinstance(self.dataset, Iterator) and self._is_read:
                raise ValueError("dataset is an iterator, which can be read once: for several epochs pass a function")
            self._is_read = True
            return self.dataset
        if not isinstance(found := self.dataset(), Iterable):
            raise TypeError(f"dataset() is {type(found).__name__}, expected an iterable of examples")
        return found

    def _cut(self, examples: Iterable[Lazy], *, is_end: bool = True) -> Iterator[list[Lazy]]:
        batch: list[Lazy] = []
        tokens = 0
        for example in examples:
            length = 0 if self.max_tokens is None else _length(example)
            are_enough = batch and self.max_tokens is not None and tokens + length > self.max_tokens
            if are_enough or len(batch) == self.batch_size:
                yield batch
                batch, tokens = [], 0
            batch.append(example)
            tokens += length
        if batch and not (self.drop_last and is_end and len(batch) < self.batch_size):
            yield batch

    def _grouped(self, examples: Iterator[Lazy], rng: np.random.Generator) -> Iterator[list[Lazy]]:
        while some := list(itertools.islice(examples, GROUPED * self.batch_size)):
            some.sort(key=_length, reverse=True)  # longest first: a lack of memory shows at once
            batches = list(self._cut(some, is_end=len(some) < GROUPED * self.batch_size))
            order = rng.permutation(len(batches)) if self.shuffle else range(len(batches))
            yield from (batches[index] for index in order)


class DistinctBatches(Batches):
    """Batches in which no text occurs twice; an example that would repeat one waits for the next batch."""

    def _cut(self, examples: Iterable[Lazy], *, is_end: bool = True) -> Iterator[list[Lazy]]:
        source, waiting = iter(examples), deque[Lazy]()
        while True:
            batch: list[Lazy] = []
            later: list[Lazy] = []
            seen: set[str] = set()
            while len(batch) < self.batch_size:
                example = waiting.popleft() if waiting else next(source, None)
                if example is None:
                    break
                texts = {value for name, value in _row(example).items() if isinstance(value, str) and name not in APART}
                if seen.isdisjoint(texts):
                    batch.append(example)
                    seen |= texts
                else:
                    later.append(example)
            waiting.extendleft(reversed(later))
            if not batch:
                return
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch


class LabelledBatches(Batches):
    """Batches with at least two labels and two examples of each; labels take turns until one is left."""

    def _cut(self, examples: Iterable[Lazy], *, is_end: bool = True) -> Iterator[list[Lazy]]:
        if self.batch_size < 4 or self.batch_size % 2:
            raise ValueError(f"batch_size is {self.batch_size}, expected an even number from 4 on to group by label")
        groups: dict[Any, list[Lazy]] = {}
        for example in examples:
            row = _row(example)
            label = next((row[name] for name in LABELS if name in row), None)
            label = label.tolist() if hasattr(label, "tolist") else label
            if not isinstance(label, int | float | str | None):
                raise TypeError(f"a label is {label!r:.60}, expected a number or a text to group by")
            groups.setdefault(label, []).append(example)
        groups = {label: some for label, some in groups.items() if len(some) > 1}
        if len(groups) < 2:
            raise ValueError(f"the data has {len(groups)} labels with two examples or more, expected at least two")
        turns = []
        while len(groups) > 1:
            turns += [group.pop() for group in groups.values() for _ in range(2)]
            groups = {label: some for label, some in groups.items() if len(some) > 1}
        yield from (batch for batch in super()._cut(turns, is_end=is_end) if len(batch) >= 4)


# By their names in the settings of encoders' trainers.
SAMPLERS: dict[str, type[Batches]] = {"batch_sampler": Batches, "no_duplicates": DistinctBatches}
SAMPLERS |= {"no_duplicates_hashed": DistinctBatches, "group_by_label": LabelledBatches}


class MixedBatches(Batches):
    """Batches of several datasets, each batch of one of them.

    Args:
        parts: the batches of each dataset.
        is_proportional: whether an epoch has all batches, in random order; otherwise the datasets take turns until one
            of them ends.
    """

    def __init__(self, parts: Sequence[Batches], is_proportional: bool):
        self.parts, self.is_proportional = parts, is_proportional

    def __len__(self) -> int:
        counts = [len(part) for part in self.parts]
        return sum(counts) if self.is_proportional else min(counts) * len(counts)

    @property
    def num_examples(self) -> int | None:
        return sum(part.num_examples or 0 for part in self.parts)

    def fingerprint(self) -> str | None:
        return " ".join(part.fingerprint() or "" for part in self.parts)

    def epoch(self, number: int, *, skip: int = 0, every: int = 1) -> Iterator[list[Example]]:
        sources = [part.epoch(number) for part in self.parts]
        if self.is_proportional:
            order = np.repeat(np.arange(len(sources)), [len(part) for part in self.parts])
            order = np.random.default_rng((self.parts[0].seed, number)).permutation(order)
            batches = (batch for place in order if (batch := next(sources[place], None)) is not None)
        else:
            batches = itertools.chain.from_iterable(zip(*sources, strict=False))
        return itertools.islice(batches, skip, None, every)


class Named(Sequence[Example]):
    """A dataset whose examples have its name, as "dataset_name"."""

    def __init__(self, name: str, dataset: Any):
        if not isinstance(name, str):
            raise TypeError(f"a dataset is called {name!r}, expected a text")
        if not _is_sized(dataset) or isinstance(dataset, str | Mapping):
            raise TypeError(f"dataset {name!r} is {type(dataset).__name__}, expected a sequence of examples")
        if not len(dataset):
            raise ValueError(f"dataset {name!r} is empty, expected at least one example")
        if not isinstance(dataset[0], Mapping):
            raise TypeError(f"dataset {name!r} has {type(dataset[0]).__name__}, expected mappings of columns")
        self.name, self.dataset = name, dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return {DATASET: self.name, **self.dataset[index]}


def _lazy(source: Sequence[Example], index: int) -> Lazy:
    return functools.cache(functools.partial(operator.getitem, source, index))


def _length(example: Lazy) -> int:
    """Return an example's number of tokens."""
    if "input_ids" not in (found := example()):
        raise ValueError(f"an example has no input_ids, which give its length; it has {', '.join(found)}")
    return len(found["input_ids"])


def _row(example: Lazy) -> Example:
    """Return an example with columns. Raises TypeError for another one."""
    if not isinstance(found := example(), Mapping):
        raise TypeError(f"an example is {type(found).__name__}, expected a mapping of columns")
    return found


def _take(waiting: list[Example], rng: np.random.Generator) -> Example:
    """Remove and return a random example; the last takes its place."""
    index = int(rng.integers(len(waiting)))
    waiting[index], waiting[-1] = waiting[-1], waiting[index]
    return waiting.pop()


def _listed(value: object) -> Any:
    """Return an array as lists, a mapping as a dict; for other values that JSON lacks, the name of their type."""
    if isinstance(value, Mapping):
        return dict(value)
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


def _is_sized(dataset: object) -> bool:
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
