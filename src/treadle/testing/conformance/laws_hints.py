"""Hints: whom `watch` wakes, and that nothing depends on it. Law 11."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from treadle.core.model import Limit, State
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle.testing.conformance.kit import (
    CANCELLED,
    FAILED,
    SUCCEEDED,
    WAITING,
    back,
    beat,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    hold,
    job,
    jobs,
    out,
    row,
    tend,
)
from treadle.testing.conformance.run import Connect

LONG = 10.0  # s; nobody waits that long unless a hint is missing
BEGUN = 0.5  # s after which a storage that began to listen has woken all who wait


async def heard(watching: Storage, topics: tuple[str, ...], act: Callable[[], Awaitable[object]]) -> set[str]:
    """What a watcher that was there before hears of an act."""
    if len(topics) > 1:
        await _over(watching, topics)
    watch = asyncio.create_task(watching.watch(topics, LONG))
    await asyncio.sleep(0)
    await act()
    return await watch


async def _over(watching: Storage, topics: tuple[str, ...]) -> None:
    """Outlast the moment, 0.25 s after a storage began to listen, at which it wakes all who wait: it would pass for a
    hint. A topic of which nobody speaks shows that it has come."""
    silent = f"{topics[0].partition(':')[0]}:nobody"
    loop = asyncio.get_running_loop()
    until = loop.time() + BEGUN
    while (left := until - loop.time()) > 0 and silent not in await watching.watch([*topics, silent], left):
        pass


def only_if(speaks: bool) -> None:
    if not speaks:
        pytest.skip("this storage only sleeps in watch")


async def test_law11_a_watch_ends_by_itself(storage: Storage) -> None:
    """After `timeout` seconds at the latest, having heard nothing."""
    assert await storage.watch(["queue:default", "job:a"], 0.01) == set()
    assert await storage.watch(["queue:default"], 0) == set()


async def test_law11_an_enqueue_is_heard(storage: Storage, speaks: bool) -> None:
    """By those who watch its queue."""
    only_if(speaks)
    spoken = await heard(storage, ("queue:other", "queue:default"), lambda: storage.enqueue(jobs("a")))
    assert spoken == {"queue:default"}


async def test_law11_another_connection_is_heard(storage: Storage, connect: Connect, speaks: bool) -> None:
    """Hints cross connections of one process."""
    only_if(speaks)
    other = await connect()
    assert await heard(storage, ("queue:default",), lambda: other.enqueue(jobs("a"))) == {"queue:default"}


async def test_law11_an_unblocked_job_is_heard(storage: Storage, speaks: bool) -> None:
    """In its own queue, when its last upstream ends."""
    only_if(speaks)
    await storage.enqueue([job("a"), job("b", after=("a",), queue="next")])
    a = await claim_one(storage)
    assert await heard(storage, ("queue:next",), lambda: storage.settle([done(a)])) == {"queue:next"}


async def test_law11_then_is_heard(storage: Storage, speaks: bool) -> None:
    """Jobs born of an outcome speak as if they had been enqueued."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    outcome = done(await claim_one(storage), then=(job("x", queue="next"),))
    assert await heard(storage, ("queue:next",), lambda: storage.settle([outcome])) == {"queue:next"}


async def test_law11_a_freed_slot_is_heard(storage: Storage, speaks: bool) -> None:
    """By the queue of whoever comes back in line for it."""
    only_if(speaks)
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),)), job("b", limits=(("one", 1),), queue="next")])
    a, *_ = await claim(storage, 9, "default", "next")
    assert await heard(storage, ("queue:next",), lambda: storage.settle([done(a)])) == {"queue:next"}


async def test_law11_a_job_handed_back_is_heard(storage: Storage, speaks: bool) -> None:
    """An idle peer takes it up."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await heard(storage, ("queue:default",), lambda: storage.settle([back(a)])) == {"queue:default"}


async def test_law11_a_lifted_pause_is_heard(storage: Storage, speaks: bool) -> None:
    """The line did not grow, but it may move again."""
    only_if(speaks)
    await storage.set_limits([Limit("queue:default", slots=0)])
    await storage.enqueue(jobs("a"))
    act = lambda: storage.set_limits([Limit("queue:default")])  # noqa: E731
    assert await heard(storage, ("queue:default",), act) == {"queue:default"}


@pytest.mark.parametrize("ending", [SUCCEEDED, FAILED, CANCELLED])
async def test_law11_an_ending_is_heard(storage: Storage, speaks: bool, ending: State) -> None:
    """By those who wait for that job's result."""
    only_if(speaks)
    await storage.enqueue(jobs("a b"))
    a = await claim_one(storage)
    assert await heard(storage, ("job:b", "job:a"), lambda: storage.settle([out(a, ending)])) == {"job:a"}


async def test_law11_endings_by_the_storage_are_heard(storage: Storage, clock: HandClock, speaks: bool) -> None:
    """Doomed, superseded, expired."""
    only_if(speaks)
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c", key="k"), job("d", deadline=5)])
    a = await claim_one(storage)
    assert await heard(storage, ("job:b",), lambda: storage.settle([failed(a)])) == {"job:b"}
    replacing = [job("e", key="k", key_conflict="replace")]
    assert await heard(storage, ("job:c",), lambda: storage.enqueue(replacing)) == {"job:c"}
    clock.advance(5)
    assert await heard(storage, ("job:d",), lambda: tend(storage)) == {"job:d"}


async def test_law11_a_result_before_the_ending_is_heard(storage: Storage, speaks: bool) -> None:
    """A parent whose own result stands while its children run."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    goes_on = out(a, WAITING, result="1", ran=True, then=(job("b"),), after=("b",))
    assert await heard(storage, ("job:a",), lambda: storage.settle([goes_on])) == {"job:a"}


async def test_law11_a_note_is_heard(storage: Storage, speaks: bool) -> None:
    """Progress, by those who watch the job."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await heard(storage, ("job:a",), lambda: beat(storage, hold(a, note="half"))) == {"job:a"}


async def test_law11_a_cancellation_from_outside_is_heard_by_the_holder(storage: Storage, speaks: bool) -> None:
    """The worker need not wait for its heartbeat."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    await claim_one(storage, worker="me")
    a = await row(storage, "a")
    assert await heard(storage, ("worker:me", "worker:you"), lambda: storage.settle([cancelled(a)])) == {"worker:me"}


async def test_law11_all_that_spoke_are_named(storage: Storage, speaks: bool) -> None:
    """One call may speak of several topics. Of one workflow: where those are spread, each place speaks by itself."""
    only_if(speaks)
    born = (job("b", queue="y", parent="a", root="a"), job("c", queue="z", parent="a", root="a"))
    act = lambda: storage.enqueue([job("a", queue="x"), *born])  # noqa: E731
    assert await heard(storage, ("queue:x", "queue:y", "queue:w"), act) == {"queue:x", "queue:y"}


async def test_law11_everybody_hears(storage: Storage, speaks: bool) -> None:
    """A hint is not used up by the first who hears it, and the same one may watch again."""
    only_if(speaks)
    watches = [asyncio.create_task(storage.watch(["queue:default"], LONG)) for _ in range(5)]
    await asyncio.sleep(0)
    await storage.enqueue(jobs("a"))
    assert await asyncio.gather(*watches) == [{"queue:default"}] * 5
    assert await heard(storage, ("queue:default",), lambda: storage.enqueue(jobs("b"))) == {"queue:default"}


async def test_law11_a_watch_may_be_given_up(storage: Storage) -> None:
    """Cancelled, it leaves nothing behind that hinders a call or another watch."""
    watch = asyncio.create_task(storage.watch(["queue:default"], LONG))
    await asyncio.sleep(0)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    await storage.enqueue(jobs("a"))
    assert await storage.watch(["queue:default"], 0) in (set(), {"queue:default"})
    assert await claim_ids(storage) == ["a"]
