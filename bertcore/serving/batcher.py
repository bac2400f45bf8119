"""Dynamic batching: rows of several requests are computed together, and the requests take turns."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from typing import Any

from bertcore.kernels import get_num_threads
from bertcore.kernels.threads import threads_here
from bertcore.serving.requests import overloaded

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
