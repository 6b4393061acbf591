"""Calls that another transaction holds up: repeated alone, for a bounded time, apart from all other calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from treadle import Locked
from treadle.core.model import NewJob, Record, State
from treadle.producer.batching import Sender
from treadle.storage import locked_calls


class Store:
    """A storage in which another transaction holds some keys. It notes its requests."""

    def __init__(self, *held: str) -> None:
        self.held = set(held)
        self.requests: list[list[str]] = []

    async def __call__(self, jobs: list[NewJob]) -> Sequence[Record]:
        self.requests.append([job.id for job in jobs])
        await asyncio.sleep(0)
        stuck = [job.id for job in jobs if job.key in self.held]
        if stuck:
            raise Locked("here", "a key", stuck)
        return [Record(job=job, state=State.READY, version=0) for job in jobs]


def a_job(id: str, key: str | None = None, after: tuple[str, ...] = ()) -> NewJob:
    return NewJob(id=id, task="t", key=key, after=after)


async def test_a_call_with_a_held_key_is_sent_alone_until_the_key_is_free() -> None:
    store = Store("k")
    send = Sender(store)
    held = asyncio.create_task(_stored(send, a_job("a", "k")))
    others = [asyncio.create_task(_stored(send, job)) for job in (a_job("b", "other"), a_job("c"))]
    assert await asyncio.gather(*others) == ["b", "c"]
    again = asyncio.create_task(_stored(send, a_job("d", "k")))
    await asyncio.sleep(0)
    assert await _stored(send, a_job("e", "x")) == "e"
    store.held.clear()
    assert await asyncio.gather(held, again) == ["a", "d"]
    with_held = [request for request in store.requests if set(request) & {"a", "d"}]
    assert all(len(request) == 1 for request in with_held)


async def test_such_a_call_is_repeated_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_calls, "PATIENCE", 0.0)
    store = Store("k")
    send = Sender(store)
    with pytest.raises(Locked):
        await send([a_job("a", "k")])
    assert len(store.requests) >= 2
    store.held.clear()
    assert await _stored(send, a_job("a", "k")) == "a"


async def test_a_job_is_sent_after_the_jobs_that_it_may_wait_for() -> None:
    store = Store()
    send = Sender(store)
    calls = [asyncio.create_task(_stored(send, job)) for job in (a_job("a"), a_job("b", after=("a",)))]
    await asyncio.gather(*calls)
    assert store.requests == [["a"], ["b"]]


async def _stored(send: Sender, job: NewJob) -> str:
    [row] = await send([job])
    return row.job.id
