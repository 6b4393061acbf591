"""Concurrent calls that share a request: whose error is whose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from treadle import BadOption, Locked, StorageUnavailable
from treadle.producer.batching import Batcher


class Requests:
    """The requests of a batcher. The first one waits for `go`; the others raise `error`, or are answered."""

    def __init__(self, error: Exception | None = None) -> None:
        self.made: list[list[int]] = []
        self.error, self.begun, self.go = error, asyncio.Event(), asyncio.Event()
        self.again = asyncio.Event()
        self.again.set()

    async def __call__(self, items: list[int]) -> Sequence[int]:
        self.made.append(items)
        self.begun.set()
        await (self.go if len(self.made) == 1 else self.again).wait()
        if self.error is not None and 13 in items:
            raise self.error
        return [10 * item for item in items]


async def batched(requests: Requests, *items: int) -> list[asyncio.Task[Sequence[int]]]:
    """Calls that share the request after the first one."""
    batcher = Batcher[int, int](requests, 100)
    tasks = [asyncio.create_task(batcher([0]))]
    await requests.begun.wait()
    tasks += [asyncio.create_task(batcher([item])) for item in items]
    await asyncio.sleep(0)  # each of them begins
    return tasks


async def test_a_call_that_is_refused_fails_alone() -> None:
    requests = Requests(BadOption("enqueue", "no"))
    tasks = await batched(requests, 1, 13, 2)
    requests.go.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[:2] == [[0], [10]]
    assert isinstance(answers[2], BadOption)
    assert answers[3] == [20]
    assert requests.made == [[0], [1, 13, 2], [1], [13], [2]]


async def test_an_unavailable_storage_is_called_once_for_all_callers() -> None:
    """One by one, the last of a hundred callers would wait for the timeouts of the others."""
    requests = Requests(StorageUnavailable("no route to host"))
    tasks = await batched(requests, 1, 13, 2)
    requests.go.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[0] == [0]
    assert [str(error) for error in answers[1:]] == ["no route to host"] * 3
    assert len({id(error) for error in answers[1:]}) == 3  # each has a traceback of its own
    assert requests.made == [[0], [1, 13, 2]]


async def test_calls_that_another_transaction_holds_up_are_separated() -> None:
    """They get the error, and the others share the next request."""
    requests = Requests(Locked("here", "the key '13'"))
    batcher = Batcher[int, int](requests, 100, waits=lambda error, items: 13 in items)
    tasks = [asyncio.create_task(batcher([0]))]
    await requests.begun.wait()
    tasks += [asyncio.create_task(batcher([item])) for item in (1, 13, 2)]
    await asyncio.sleep(0)
    requests.go.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [answers[0], answers[1], answers[3]] == [[0], [10], [20]]
    assert isinstance(answers[2], Locked)
    assert requests.made == [[0], [1, 13, 2], [1, 2]]


async def test_a_call_waits_for_the_requests_before_it() -> None:
    requests = Requests()
    batcher = Batcher[int, int](requests, 100, at_once=True)
    await batcher.all_before()
    before = asyncio.create_task(batcher([0]))
    await requests.begun.wait()
    after = asyncio.create_task(batcher.all_before())
    await asyncio.sleep(0)
    assert not after.done()
    requests.go.set()
    await after
    assert before.done()
    assert requests.made == [[0]]


async def test_calls_that_were_cancelled_are_not_sent_again() -> None:
    requests = Requests(BadOption("enqueue", "no"))
    tasks = await batched(requests, 1, 13, 2)
    requests.again.clear()
    requests.begun.clear()
    requests.go.set()
    await requests.begun.wait()
    assert requests.made == [[0], [1, 13, 2]]
    for task in (tasks[1], tasks[3]):
        task.cancel()
    await asyncio.wait([tasks[1], tasks[3]])
    requests.again.set()
    with pytest.raises(BadOption):
        await tasks[2]
    assert requests.made == [[0], [1, 13, 2], [13]]
