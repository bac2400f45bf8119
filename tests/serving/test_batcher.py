"""The batcher: turns of requests, batches of rows, failures, clients that go away."""

import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bertcore.serving.batcher import Batcher
from bertcore.serving.models import ServedModel
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


@pytest.mark.parametrize("small", [["a"], ["a b", "c"], ["a"] * 10])
def test_a_small_request_beside_giants_takes_at_most_three_times_its_time_alone(server, monkeypatch, small):
    """A model that takes 2 ms for a text and 1 ms for a token: a giant request takes seconds."""
    whole = ServedModel.on_backend

    def slow(self, compute):
        def call(rows):
            time.sleep(0.002 * len(rows) + 0.001 * sum(map(len, rows)))
            return whole(self, compute)(rows)

        return call

    monkeypatch.setattr(ServedModel, "on_backend", slow)
    client = server(max_client_batch_size=500)

    def seconds():
        start = time.perf_counter()
        assert client.post("/embed", json={"inputs": small}).status_code == 200
        return time.perf_counter() - start

    alone, beside = statistics.median(seconds() for _ in range(7)), []
    with ThreadPoolExecutor(2) as pool:
        body = {"inputs": ["the cat sat on an mat"] * 120}
        giants = [pool.submit(client.post, "/embed", json=body) for _ in range(2)]
        while "waiting_tokens 0.0" in client.get("/metrics").text:
            pass
        while len(beside) < 7 and not any(giant.done() for giant in giants):
            beside.append(seconds())
        assert min(beside[:-1]) < 3 * alone  # on a busy machine the giants may end before the last
        assert [giant.result().status_code for giant in giants] == [200, 200]


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
