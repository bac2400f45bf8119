"""The batcher: turns of requests, batches of rows, failures, clients that go away."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from bertcore.kernels.threads import thread_count
from bertcore.serving.batcher import Batcher, Lanes
from bertcore.serving.requests import RequestError


def run_batcher(scenario, compute, **sizes):
    """Run `scenario(batcher)` with a batcher; the rows of each batch that it computed."""
    batches = []

    def noted(rows):
        batches.append(len(rows))
        return compute(rows)

    async def main():
        with ThreadPoolExecutor(1) as executor:
            return await scenario(Batcher(noted, executor, **{"batch_tokens": 10, "queue_tokens": 100, **sizes}))

    return asyncio.run(main()), batches


def test_a_short_batch_beside_a_long_one_takes_a_quarter_of_the_threads(monkeypatch):
    monkeypatch.setattr("bertcore.serving.batcher.get_num_threads", lambda: 9)
    lanes = Lanes(None, None)
    short = lanes.short(lambda rows: thread_count().count)
    alone = thread_count().count
    assert (short([]), lanes.long(short)([]), short([])) == (alone, 2, alone)


def test_requests_have_their_turn_in_each_batch():
    async def scenario(batcher):
        giants = [asyncio.create_task(batcher.submit([[n] * 2] * 30)) for n in (1, 2)]
        await asyncio.sleep(0)
        await batcher.submit([[3] * 4])
        done = [giant.done() for giant in giants]
        return done, [await giant for giant in giants]

    seen = []
    (done, found), _ = run_batcher(scenario, lambda rows: seen.append(rows) or rows, queue_tokens=1000)
    assert done == [False, False] and found == [[[1] * 2] * 30, [[2] * 2] * 30]
    assert seen[0] == [[1] * 2, [2] * 2, [3] * 4, [1] * 2]


def test_rows_of_several_requests_are_computed_together():
    async def scenario(batcher):
        requests = [batcher.submit([[number] * 3] * count) for number, count in enumerate([1, 2, 3, 0, 4])]
        return await asyncio.gather(*requests)

    found, batches = run_batcher(scenario, lambda rows: [row[0] for row in rows])
    assert found == [[0], [1] * 2, [2] * 3, [], [4] * 4]
    assert batches == [3, 3, 3, 1]


def test_a_failure_is_the_answer_of_its_batch_alone():
    def compute(rows):
        if [13] in rows:
            raise RuntimeError("no such number")
        return rows

    async def scenario(batcher):
        return await asyncio.gather(*(batcher.submit([[n]]) for n in (1, 13, 2)), return_exceptions=True)

    found, _ = run_batcher(scenario, compute, batch_tokens=1)
    assert found[0] == [[1]] and found[2] == [[2]] and str(found[1]) == "no such number"


def test_who_goes_away_takes_the_rows_along():
    async def scenario(batcher):
        first = asyncio.create_task(batcher.submit([[1]]))
        gone = asyncio.create_task(batcher.submit([[2]] * 50))
        last = asyncio.create_task(batcher.submit([[3]]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(first, last)
        return batcher.waiting_tokens

    waiting, batches = run_batcher(scenario, lambda rows: rows, batch_tokens=1)
    assert waiting == 0 and sum(batches) <= 3


def test_one_request_may_be_larger_than_the_queue():
    async def scenario(batcher):
        first = asyncio.create_task(batcher.submit([[1] * 9] * 30))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="the limit is 100"):
            await batcher.submit([[1]])
        return len(await first)

    assert run_batcher(scenario, lambda rows: rows)[0] == 30
