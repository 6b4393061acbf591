"""Hints: which watchers a published topic wakes. Nothing else depends on hints. Law 11."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from treadle.core.limit_model import Limit
from treadle.core.model import PAUSED, State
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    SUCCEEDED,
    WAITING,
    advance_due,
    back,
    beat,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    job,
    jobs,
    out,
    renewal,
    row,
)
from treadle_testkit.conformance.run import Connect
from treadle_testkit.shows import shows

LONG = 10.0  # seconds; reached only if a hint is missing
BEGUN = 0.5  # seconds after which a storage that began to listen has woken all watchers


async def heard(watching: Storage, topics: tuple[str, ...], act: Callable[[], Awaitable[object]]) -> set[str]:
    """The topics that a watcher, waiting since before the act, gets from it."""
    if len(topics) > 1:
        await _over(watching, topics)
    watch = asyncio.create_task(watching.watch(topics, LONG))
    await asyncio.sleep(0)
    await act()
    return await watch


async def _over(watching: Storage, topics: tuple[str, ...]) -> None:
    """Wait out the general wake-up 0.25 s after a storage began to listen, which would look like a hint. It has
    happened once it returns a topic that is never published."""
    silent = f"{topics[0].partition(':')[0]}:nobody"
    loop = asyncio.get_running_loop()
    until = loop.time() + BEGUN
    while (remaining := until - loop.time()) > 0 and silent not in await watching.watch([*topics, silent], remaining):
        pass


def only_if(speaks: bool) -> None:
    if not speaks:
        pytest.skip("this storage only sleeps in watch")


async def test_law11_a_watch_ends_at_its_timeout(storage: Storage) -> None:
    """At the latest after `timeout` seconds, without topics."""
    assert await storage.watch(["queue:default", "job:a"], 0.01) == set()
    assert await storage.watch(["queue:default"], 0) == set()


async def test_law11_an_enqueue_wakes_the_watchers_of_its_queue(storage: Storage, speaks: bool) -> None:
    """It wakes watchers of its queue."""
    only_if(speaks)
    spoken = await heard(storage, ("queue:other", "queue:default"), lambda: storage.enqueue(jobs("a")))
    assert spoken == {"queue:default"}


async def test_law11_an_enqueue_wakes_watchers_of_other_connections(
    storage: Storage, connect: Connect, speaks: bool
) -> None:
    """Hints reach other connections of the same process."""
    only_if(speaks)
    other = await connect()
    assert await heard(storage, ("queue:default",), lambda: other.enqueue(jobs("a"))) == {"queue:default"}


async def test_law11_an_unblocked_job_is_published(storage: Storage, speaks: bool) -> None:
    """In its own queue, when its last upstream ends."""
    only_if(speaks)
    await storage.enqueue([job("a"), job("b", after=("a",), queue="next")])
    a = await claim_one(storage)
    assert await heard(storage, ("queue:next",), lambda: storage.settle([done(a)])) == {"queue:next"}


async def test_law11_followup_jobs_are_published(storage: Storage, speaks: bool) -> None:
    """Follow-up jobs of an outcome publish the same topics as enqueued jobs."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    outcome = done(await claim_one(storage), followups=(job("x", queue="next"),))
    assert await heard(storage, ("queue:next",), lambda: storage.settle([outcome])) == {"queue:next"}


async def test_law11_a_freed_slot_is_published(storage: Storage, speaks: bool) -> None:
    """It publishes the queue of the job that is queued again."""
    only_if(speaks)
    await storage.set_limits([Limit("one", slots=1)])
    await storage.enqueue([job("a", limits=(("one", 1),)), job("b", limits=(("one", 1),), queue="next")])
    a, *_ = await claim(storage, 9, "default", "next")
    assert await heard(storage, ("queue:next",), lambda: storage.settle([done(a)])) == {"queue:next"}


async def test_law11_a_released_job_is_published(storage: Storage, speaks: bool) -> None:
    """It wakes an idle worker."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await heard(storage, ("queue:default",), lambda: storage.settle([back(a)])) == {"queue:default"}


async def test_law11_the_end_of_a_pause_is_published(storage: Storage, speaks: bool) -> None:
    """The queue has no new job, but jobs can be claimed again."""
    only_if(speaks)
    await storage.set_limits([Limit("queue:default", slots=0)])
    await storage.enqueue(jobs("a"))
    act = lambda: storage.set_limits([Limit("queue:default")])  # noqa: E731
    assert await heard(storage, ("queue:default",), act) == {"queue:default"}


@pytest.mark.parametrize("ending", [SUCCEEDED, FAILED, CANCELLED])
async def test_law11_an_ending_is_published(storage: Storage, speaks: bool, ending: State) -> None:
    """It wakes the callers that wait for the job's result."""
    only_if(speaks)
    await storage.enqueue(jobs("a b"))
    a = await claim_one(storage)
    assert await heard(storage, ("job:b", "job:a"), lambda: storage.settle([out(a, ending)])) == {"job:a"}


async def test_law11_endings_by_the_storage_are_published(storage: Storage, clock: HandClock, speaks: bool) -> None:
    """Doomed, superseded and expired jobs publish their endings."""
    only_if(speaks)
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c", key="k"), job("d", deadline=5)])
    a = await claim_one(storage)
    assert await heard(storage, ("job:b",), lambda: storage.settle([failed(a)])) == {"job:b"}
    replacing = [job("e", key="k", key_conflict="replace")]
    assert await heard(storage, ("job:c",), lambda: storage.enqueue(replacing)) == {"job:c"}
    clock.advance(5)
    assert await heard(storage, ("job:d",), lambda: advance_due(storage)) == {"job:d"}


async def test_law11_a_result_before_the_ending_is_published(storage: Storage, speaks: bool) -> None:
    """A parent with a result of its own publishes it while its children still run."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    continues = out(a, WAITING, result="1", function_done=True, followups=(job("b"),), after=("b",))
    assert await heard(storage, ("job:a",), lambda: storage.settle([continues])) == {"job:a"}


async def test_law11_a_note_is_published(storage: Storage, speaks: bool) -> None:
    """A progress note wakes watchers of the job."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await heard(storage, ("job:a",), lambda: beat(storage, renewal(a, note="half"))) == {"job:a"}


@shows("a cancellation notifies the worker that runs the job")
async def test_law11_a_cancellation_from_outside_notifies_the_holder(storage: Storage, speaks: bool) -> None:
    """The worker need not wait for its next heartbeat."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    await claim_one(storage, worker="me")
    a = await row(storage, "a")
    assert await heard(storage, ("worker:me", "worker:you"), lambda: storage.settle([cancelled(a)])) == {"worker:me"}


async def test_law11_a_pause_notifies_the_holder(storage: Storage, speaks: bool) -> None:
    """As a cancellation does, although the job stays unfinished."""
    only_if(speaks)
    await storage.enqueue(jobs("a"))
    await claim_one(storage, worker="me")
    pause = back(await row(storage, "a"), delay=60.0, reason=PAUSED)
    assert await heard(storage, ("worker:me", "worker:you"), lambda: storage.settle([pause])) == {"worker:me"}


async def test_law11_a_watch_returns_every_topic_of_a_call(storage: Storage, speaks: bool) -> None:
    """One call may publish several topics. These jobs share a workflow: a sharded storage publishes per shard."""
    only_if(speaks)
    born = (job("b", queue="y", parent="a", root="a"), job("c", queue="z", parent="a", root="a"))
    act = lambda: storage.enqueue([job("a", queue="x"), *born])  # noqa: E731
    assert await heard(storage, ("queue:x", "queue:y", "queue:w"), act) == {"queue:x", "queue:y"}


async def test_law11_every_watcher_of_a_topic_is_woken(storage: Storage, speaks: bool) -> None:
    """The first watcher does not consume a hint, and may watch again."""
    only_if(speaks)
    watches = [asyncio.create_task(storage.watch(["queue:default"], LONG)) for _ in range(5)]
    await asyncio.sleep(0)
    await storage.enqueue(jobs("a"))
    assert await asyncio.gather(*watches) == [{"queue:default"}] * 5
    assert await heard(storage, ("queue:default",), lambda: storage.enqueue(jobs("b"))) == {"queue:default"}


async def test_law11_a_cancelled_watch_hinders_no_call(storage: Storage) -> None:
    """A cancelled watch does not hinder later calls or watches."""
    watch = asyncio.create_task(storage.watch(["queue:default"], LONG))
    await asyncio.sleep(0)
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    await storage.enqueue(jobs("a"))
    assert await storage.watch(["queue:default"], 0) in (set(), {"queue:default"})
    assert await claim_ids(storage) == ["a"]
