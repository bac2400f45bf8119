"""Jobs, texts tokenized for pipelines or attention, and dynamic batching.

Rows of several requests are computed together, and the requests take turns.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels import get_num_threads
from bertcore.kernels.threads import threads_here
from bertcore.serving.requests import invalid, overloaded, too_large, too_long, unsupported
from bertcore.tasks.gliner2_schema import KEYS, Schema

MASK = 32  # tokens that a mask counts as in a batch: its scores of the vocabulary take as much memory
MOST_VALUES, MOST_CHARACTERS = 1000, 20_000  # of a schema
MOST_FIELDS = 40  # of records and relations: each is scored for up to 19 instances
MOST_INSTANCES = 19
VALUE, PLAIN = 100, 50  # bytes that a mention takes beside its text, with score and place or without
SCORE = 330  # most bytes of a label and its score, or a word and its probability, in an answer


@dataclass(frozen=True)
class Job:
    """A text, the number of its tokens, the options of its call, and the number of words in its answer.

    Its len is the number of tokens that it counts as in a batch.
    """

    text: str
    tokens: int
    options: tuple[tuple[str, Any], ...]
    masks: int = 0
    words: int = 0
    spans: tuple[tuple[int, int], ...] = ()  # of marked entities

    @property
    def given(self) -> str | dict[str, Any]:
        return {"text": self.text, "spans": self.spans} if self.spans else self.text

    def __len__(self) -> int:
        return self.tokens + MASK * self.masks + self.words


def read_jobs(
    model: Any,
    texts: Sequence[str],
    *,
    truncate: bool,
    most: int | None = None,
    names: Callable[[int], str] = "inputs[{}]".format,
    **options: Any,
) -> list[Job]:
    """Return the texts as jobs of a `ServedModel` with these options.

    Raises RequestError: 413 for a text of more than `most` tokens (by default the model's limit), unless `truncate`,
        and as `ServedModel.check_read` does; 422 for a text without a mask if `top_k` words are requested.
    """
    jobs, most = [], most or model.max_seq_length
    texts = [model.shortened(text, "right", names(index)) for index, text in enumerate(texts)]
    labels = options.get("labels", options["schemas"].words() if "schemas" in options else ())
    model.check_read(sum(map(len, texts)) + len(texts) * sum(map(len, labels)), "characters")
    for index, text in enumerate(texts):
        if labels:
            size, is_long = labelled_size(model, text, labels, options.get("schemas"))
        else:
            ids = model.tokenizer(text, truncation=truncate, max_length=most if truncate else None)["input_ids"]
            size, is_long = len(ids), len(ids) > most
        if is_long and not truncate:
            read = "schema" if "schemas" in options else "labels"
            words = f"{model.engine.gliner.max_words} words, or {most} tokens with the {read}" if labels else ""
            raise too_long(f"{names(index)} has more than {words or f'{most} tokens'}, the limit")
        top = min(options.get("top_k", 0), len(model.tokenizer))
        masks = ids.count(model.tokenizer.mask_token_id) if top else 0
        if top and not masks:
            raise invalid(f"{names(index)} has no {model.tokenizer.mask_token}, expected one for each missing word")
        jobs.append(Job(text, size, tuple(options.items()), masks, top * masks))
    return jobs


def labelled_size(model: Any, text: str, labels: Sequence[str], schema: Schema | None) -> tuple[int, bool]:
    """Return the number of tokens of labels or a schema and a text, and whether it is cut.

    Raises RequestError for too long labels.
    """
    reader = model.engine.gliner
    try:
        if schema is None:
            ((row, was_cut),) = reader.token_rows([(text, {label: label for label in labels})])
        else:
            row, was_cut = reader.token_row(text, schema, reader.model.max_len)
    except ValueError as error:
        raise invalid(str(error)) from error
    return len(row), was_cut


def read_marked(model: Any, inputs: Sequence[Any], *, names: Callable[[int], str], **options: Any) -> list[Job]:
    """Return texts with marked entities, each {"text", "spans"}, as jobs; RequestError (413, 422) as `read_jobs`."""
    jobs, most = [], model.max_seq_length
    for index, given in enumerate(inputs):
        text, name = given["text"], names(index)
        is_long = len(model.shortened(text, "right", name)) < len(text)
        try:
            tokens = most + 1 if is_long else model.pipeline.length_of(given, name)
        except (TypeError, ValueError) as error:
            raise invalid(str(error)) from error
        if tokens > most:
            raise too_long(f"{name} has more than {most} tokens, the limit")
        jobs.append(Job(text, tokens, tuple(options.items()), spans=tuple(map(tuple, given["spans"]))))
    return jobs


def checked_schema(data: Any) -> Schema:
    """Return the schema of a request. Raises RequestError (413, 422) for a schema that is too large or wrong."""
    rest, values, characters = [data], 0, 0
    while rest:  # before it is read, which takes time by the square of its parts
        each = rest.pop()
        values += 1
        characters += len(each) if isinstance(each, str) else 0
        rest += [*each, *each.values()] if isinstance(each, dict) else each if isinstance(each, list) else []
        if values > MOST_VALUES or characters > MOST_CHARACTERS:
            limits = f"{MOST_VALUES} names and values or {MOST_CHARACTERS} characters"
            raise too_large(f"schema has more than {limits}, the limit")
    try:
        schema = Schema.from_dict(data)
    except (TypeError, ValueError) as error:
        raise invalid(str(error)) from error
    if not (parts := schema.ordered()):
        raise invalid(f"schema is empty, expected {', '.join(KEYS)}")
    repeated = sum(len(part.fields) for part in parts if part.kind in ("records", "relations"))
    if repeated > MOST_FIELDS:
        raise too_large(f"schema has {repeated} fields of records and ends of relations, the limit is {MOST_FIELDS}")
    return schema


def _extracted_bytes(schema: Schema, found: int) -> int:
    """Return the most bytes of an answer to a schema, if the mentions of one label take `found` bytes."""
    total = 0
    for part in schema.ordered():
        instances = MOST_INSTANCES if part.kind in ("records", "relations") else 1
        around = SCORE if part.kind == "classes" else PLAIN
        each = sum(around + 6 * len(label.encode()) for label in part.fields)
        if part.kind != "classes":
            choices = [choice for field in part.fields.values() for choice in field.choices]
            each += found * len(part.fields) + sum(VALUE + 6 * len(choice.encode()) for choice in choices)
        total += SCORE + 6 * len(part.name.encode()) + instances * each
    return total


def answers(model: Any, jobs: Sequence[Job]) -> list[Any]:
    """Return the answers of the model's pipeline; jobs with equal options are computed together."""
    found: dict[int, Any] = {}
    for options in dict.fromkeys(job.options for job in jobs):
        places = [place for place, job in enumerate(jobs) if job.options == options]
        texts = (jobs[place].given for place in places)  # an iterator, as a list of one is answered like its text
        compute = model.engine.gliner.extract_stream if "schemas" in dict(options) else model.pipeline
        answered = compute(texts, truncation=True, show_progress_bar=False, **dict(options))
        found |= zip(places, answered, strict=True)
    return [found[place] for place in range(len(jobs))]


def attentions(model: Any, jobs: Sequence[Job]) -> list[Any]:
    """Return (tokens, tokens) attention probabilities of a head, or the mean of heads, or an error, for each job."""
    found: list[Any] = []
    for job in jobs:
        encoded, options = model.tokenizer(job.text), dict(job.options)
        arrays = {name: np.array([encoded[name]]) for name in model.tokenizer.model_input_names}
        layers = model.engine.model(**arrays, output_attentions=True).attentions
        layer = layers[options["layer"] - 1] if layers else None
        if layer is None or isinstance(layer, tuple):
            found.append(unsupported(f"{model.name} does not return attention"))
            continue
        heads = kernels.to_host(layer)[0].astype(np.float32)
        found.append(heads.mean(axis=0) if options["head"] is None else heads[options["head"] - 1])
    return found


def answer_bytes(model: Any, job: Job) -> int:
    """Return the most bytes that a pipeline's answer takes: entities, or masks' words, each with the text."""
    if model.kind == "marked":
        return sum(SCORE + 6 * len(label.encode()) for label in model.labels)
    text = 6 * len(job.text.encode())  # with JSON's escapes
    options = dict(job.options)
    if "schemas" in options:
        each = VALUE if options["include_confidence"] or options["include_spans"] else PLAIN
        return _extracted_bytes(options["schemas"], text + each * job.tokens)
    if model.kind == "gliner":
        depth = 1 if options["flat_ner"] else model.engine.gliner.most_nested
        each = text + job.tokens * (SCORE + 6 * max(len(label.encode()) for label in options["labels"]))
        return depth * each * (len(options["labels"]) if options["multi_label"] else 1)
    if model.kind == "tagger":
        return text + job.tokens * (SCORE + 6 * max(len(label.encode()) for label in model.labels))
    return job.words * (SCORE + text + 16 * job.tokens)


Compute = Callable[[list[Any]], Sequence[Any]]


NICER = 10  # with it, small requests beside others took 1.2 to 2.1 times their time alone; without, 4.1


class Lanes:
    """Two executors of one thread each, for the batches of long and of short requests of all models.

    A batch uses all cores, but a short one uses a quarter of them while a long one computes: its parts would wait for
    those of the long one.
    """

    def __init__(self, short_executor: Executor, long_executor: Executor):
        self.short_executor, self.long_executor = short_executor, long_executor
        self._is_long_busy = False

    def long(self, compute: Compute) -> Compute:

        def call(rows: list[Any]) -> Sequence[Any]:
            self._is_long_busy = True
            try:
                return compute(rows)
            finally:
                self._is_long_busy = False

        return call

    def short(self, compute: Compute) -> Compute:

        def call(rows: list[Any]) -> Sequence[Any]:
            with threads_here(max(1, get_num_threads() // 4)) if self._is_long_busy else nullcontext():
                return compute(rows)

        return call


class Batcher:
    """Collect rows and compute them in batches of at most `batch_tokens`.

    While a batch computes, rows wait; the next batch takes as many as fit, one row of each request after the other, so
    that a short request does not wait for all of a long one. A single row is computed at once. Rows beyond
    `queue_tokens` are rejected. `compute` takes the rows of a batch (len of a row is its tokens) and returns a result
    for each; `observe` is called with the numbers of rows and tokens of each batch.
    """

    def __init__(
        self,
        compute: Compute,
        executor: Executor,
        *,
        batch_tokens: int,
        queue_tokens: int,
        observe: Callable[[int, int], None] = lambda rows, tokens: None,
    ):
        self._compute, self._executor, self._observe = compute, executor, observe
        self._batch_tokens, self._queue_tokens = batch_tokens, queue_tokens
        self._requests: deque[deque[tuple[Any, asyncio.Future]]] = deque()
        self._worker: asyncio.Task | None = None
        self.waiting_tokens = 0

    async def submit(self, rows: Sequence[Any]) -> list[Any]:
        """Return the results of the rows; cancelling the caller removes the rows that still wait.

        Raises RequestError (429) if the queue cannot take the rows, and whatever `compute` raises.
        """
        if not rows:
            return []
        tokens = sum(map(len, rows))
        if self.waiting_tokens and self.waiting_tokens + tokens > self._queue_tokens:
            raise overloaded(f"{self.waiting_tokens} tokens are waiting, the limit is {self._queue_tokens}: try again")
        loop = asyncio.get_running_loop()
        entries = [(row, loop.create_future()) for row in rows]
        self._requests.append(deque(entries))
        self.waiting_tokens += tokens
        if self._worker is None:
            self._worker = loop.create_task(self._work())
        try:
            return list(await asyncio.gather(*(future for _, future in entries)))
        finally:
            for _, future in entries:
                future.cancel()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while batch := self._next_batch():
                rows = [row for row, _ in batch]
                try:
                    results = await loop.run_in_executor(self._executor, self._compute, rows)
                except Exception as error:  # each of these requests is answered with it
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (_, future), result in zip(batch, results, strict=True):
                    if not future.done():
                        future.set_result(result)
        finally:
            self._worker = None

    def _next_batch(self) -> list[tuple[Any, asyncio.Future]]:
        batch: list[tuple[Any, asyncio.Future]] = []
        tokens = 0
        while self._requests:
            rows = self._requests[0]
            row, future = rows[0]
            if not future.done():  # done: its caller was cancelled
                if batch and tokens + len(row) > self._batch_tokens:
                    break
                batch.append((row, future))
                tokens += len(row)
            rows.popleft()
            self.waiting_tokens -= len(row)
            self._requests.rotate(-1)
            if not rows:
                self._requests.pop()
        if batch:
            self._observe(len(batch), tokens)
        return batch
