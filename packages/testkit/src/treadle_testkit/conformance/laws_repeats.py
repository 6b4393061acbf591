"""Repeated calls change nothing and get the same answer; workers that beat are seen. Law 10."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from treadle.core.model import Presence
from treadle.storage.capabilities import fused
from treadle.storage.contract import Storage
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    CANCELLED,
    FAILED,
    READY,
    RUNNING,
    SUCCEEDED,
    WAITING,
    ask,
    back,
    beat,
    cancelled,
    claim,
    claim_ids,
    claim_one,
    done,
    failed,
    ids,
    job,
    jobs,
    out,
    renewal,
    row,
    run,
    said,
    settle,
    state,
)
from treadle_testkit.shows import shows

# --- repeated calls


@shows("a claim that is repeated under its claim id returns the same jobs")
async def test_law10_a_repeated_claim_id_returns_the_same_jobs(storage: Storage) -> None:
    """A claim whose answer was lost is repeated under its claim id, and returns the same jobs in their current
    state."""
    await storage.enqueue(jobs("a b c"))
    request = ask(2)
    first = await storage.claim(request)
    again = await storage.claim(request)
    assert sorted(ids(again.records)) == sorted(ids(first.records)) == ["a", "b"]
    assert {record.version for record in again.records} == {record.version for record in first.records}
    assert await claim_ids(storage, 9) == ["c"]


async def test_law10_each_of_several_claim_ids_can_be_repeated(storage: Storage) -> None:
    """A worker has several claims in flight, and the answer of each may be lost."""
    await storage.enqueue(jobs("a b c d"))
    one, two = ask(2), ask(2)
    first, second = await storage.claim(one), await storage.claim(two)
    assert ids((await storage.claim(one)).records) == ids(first.records)
    assert ids((await storage.claim(two)).records) == ids(second.records)


async def test_law10_a_repeated_claim_id_returns_no_settled_job(storage: Storage) -> None:
    """A job that has been settled since is not returned again."""
    await storage.enqueue(jobs("a b c"))
    request = ask(2)
    a, _ = (await storage.claim(request)).records
    await settle(storage, done(a))
    assert ids((await storage.claim(request)).records) == ["b"]


async def test_law10_a_claim_id_whose_job_another_worker_claimed_is_a_new_claim(
    storage: Storage, clock: HandClock
) -> None:
    """Another worker claimed the job meanwhile and lost it too: the claim returns its current state."""
    await storage.enqueue([job("a", deadline=1000.0)])
    request = ask(lease=10.0)
    await storage.claim(request)
    clock.advance(20)
    second = await claim_one(storage, worker="other", lease=10.0)
    clock.advance(20)
    [third] = (await storage.claim(request)).records
    assert (second.lost, third.lost) == (1, 2)
    assert third == await row(storage, "a")


async def test_law10_a_new_claim_id_is_a_new_claim(storage: Storage) -> None:
    """A claim with the same worker name and a new claim id is a new claim."""
    await storage.enqueue(jobs("a b"))
    assert await claim_ids(storage, worker="w") == ["a"]
    assert await claim_ids(storage, worker="w") == ["b"]


async def test_law10_a_repeated_claim_loses_nothing(storage: Storage, clock: HandClock) -> None:
    """Three lost answers do not count as lost leases of a job that never ran."""
    await storage.enqueue(jobs("a"))
    request = ask(1, lease=10)
    for _ in range(3):
        [a] = (await storage.claim(request)).records
        clock.advance(1)
    assert (a.lost, a.attempt) == (0, 0)


@pytest.mark.parametrize("to", [SUCCEEDED, FAILED, CANCELLED, READY, WAITING])
@pytest.mark.parametrize("delay", [0.0, 60.0])
async def test_law10_an_outcome_is_applied_once(storage: Storage, to: str, delay: float) -> None:
    """The same outcome again returns "applied" and has no second effect."""
    await storage.enqueue([*jobs("a"), job("p", task="")])
    a = await claim_one(storage)
    outcome = out(
        a,
        type(a.state)(to),
        delay=delay,
        attempt=2,
        result="1",
        value="2",
        error="e",
        reason="asked",
        checkpoints=(("s", "1"),),
        note="n",
        followups=(job("child"),),
        after=("p",) if to == WAITING else (),
    )
    await settle(storage, outcome)
    before = await storage.get(["a", "child", "p"])
    await settle(storage, outcome)
    assert await storage.get(["a", "child", "p"]) == before


async def test_law10_a_repeated_outcome_is_recognised_after_its_wait(storage: Storage) -> None:
    """A repeated outcome that waits is recognised even if its upstream has ended since."""
    await storage.enqueue([*jobs("a"), job("p", task="")])
    a = await claim_one(storage)
    waits = out(a, WAITING, after=("p",), function_done=True)
    await settle(storage, waits)
    await settle(storage, done(await row(storage, "p")))
    assert await state(storage, "a") is READY
    await settle(storage, waits)
    assert await state(storage, "a") is READY


async def test_law10_another_outcome_is_no_repeat(storage: Storage) -> None:
    """Of two different outcomes for one version, only the first is applied."""
    await storage.enqueue(jobs("a b"))
    a, b = await claim(storage, 2)
    await settle(storage, done(a, result="1"), done(b, attempt=1))
    assert await said(storage, done(a, result="2"), done(b, attempt=2)) == ["stale", "stale"]
    assert await said(storage, failed(a, result="1"), cancelled(a, result="1")) == ["stale", "stale"]


async def test_law10_a_repeat_after_the_next_claim_is_stale(storage: Storage) -> None:
    """After any other change of the row, the old outcome is stale."""
    await storage.enqueue(jobs("a"))
    released = back(await claim_one(storage))
    await settle(storage, released)
    await claim_one(storage)
    assert await said(storage, released) == ["stale"]
    assert await state(storage, "a") is RUNNING


async def test_law10_a_repeated_heartbeat_changes_nothing(storage: Storage) -> None:
    """It leaves the row unchanged."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    assert await beat(storage, renewal(a, checkpoints=(("s", "1"),), note="n")) == set()
    before = await row(storage, "a")
    assert await beat(storage, renewal(a, checkpoints=(("s", "1"),), note="n")) == set()
    assert await row(storage, "a") == before


@shows("a repeated prune counts no row twice", area="Retention")
async def test_law10_a_repeated_prune_counts_no_row_twice(storage: Storage, clock: HandClock) -> None:
    """Rows deleted by the first call are not counted again."""
    await storage.enqueue(jobs("a b", keep=100))
    await run(storage, "a", "b")
    clock.advance(101)
    assert [await storage.prune(10), await storage.prune(10)] == [2, 0]


async def test_law10_settle_and_claim_in_one_trip(storage: Storage) -> None:
    """If the storage has `settle_claim`, it returns what settle and then claim return."""
    both = fused(storage)
    if both is None:
        pytest.skip("this storage has no settle_claim")
    await storage.enqueue([job("a"), job("b", after=("a",)), job("c")])
    a = await claim_one(storage)
    request = ask(9)
    settled, claimed = await both.settle_claim([done(a), failed(a)], request)
    assert [answer.status for answer in settled] == ["applied", "stale"]
    assert ids(claimed.records) == ["b", "c"]
    again, same = await both.settle_claim([done(a)], request)
    assert [answer.status for answer in again] == ["applied"]
    assert ids(same.records) == ["b", "c"]


# --- workers


async def test_more_workers_are_listed_while_they_send_heartbeats(storage: Storage, clock: HandClock) -> None:
    """A worker shows as in its last heartbeat, for `ttl` seconds; one that leaves is removed at once."""
    one = Presence(worker="one", host="h", pid=7, queues=("a", "b"), slots=20, running=3, uptime=12.5, ttl=90)
    await storage.heartbeat(one, [], 30)
    two = Presence(worker="two", ttl=30)
    await storage.heartbeat(two, [], 30)
    assert {worker.worker: worker for worker in (await storage.stats()).workers} == {"one": one, "two": two}
    clock.advance(31)
    assert (await storage.stats()).workers == (replace(one, age=31),)
    await storage.heartbeat(Presence(worker="one", running=9), [], 30)
    assert [worker.running for worker in (await storage.stats()).workers] == [9]
    await storage.heartbeat(Presence(worker="one", gone=True), [], 30)
    assert (await storage.stats()).workers == ()


async def test_more_the_end_of_a_presence_changes_no_job(storage: Storage) -> None:
    """Leaving ends only the presence; a worker hands jobs back by settling them."""
    await storage.enqueue(jobs("a"))
    a = await claim_one(storage)
    await storage.heartbeat(Presence(worker="w", gone=True), [], 30)
    assert await state(storage, "a") is RUNNING
    await settle(storage, done(a))
