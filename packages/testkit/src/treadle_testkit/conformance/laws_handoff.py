"""Direct hand-off by storages with `hand_off`: the enqueue claims the job for a waiting worker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from treadle.core.limit_model import Limit
from treadle.core.model import Claim, Record
from treadle.storage.capabilities import hand_offs
from treadle.storage.contract import Storage
from treadle.storage.optional_parts import Post
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    READY,
    RUNNING,
    ask,
    claim_ids,
    claim_one,
    done,
    ids,
    job,
    jobs,
    row,
    settle,
    state,
)
from treadle_testkit.conformance.run import Connect

LONG = 10.0  # seconds; reached only if a notification is missing
STANDS = 60.0  # seconds for which a request remains


class Mail:
    """A mailbox and the jobs handed off to it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.got: asyncio.Queue[tuple[str, Record]] = asyncio.Queue()
        able = hand_offs(storage)
        address = able.post(self._take) if able is not None else None
        if address is None:
            pytest.skip("this storage has no hand-off")
        self.post: Post = address

    def _take(self, claim_id: str, row: Record) -> None:
        self.got.put_nowait((claim_id, row))

    def ask(self, *queues: str, wait: float = STANDS, **options: Any) -> Claim:
        return ask(1, *queues, hand_off=(self.post.address, wait), **options)

    async def next(self) -> tuple[str, Record]:
        return await asyncio.wait_for(self.got.get(), LONG)

    async def in_vain(self, request: Claim) -> str:
        """Claim without finding a job. Returns the claim id."""
        claimed = await self.storage.claim(request)
        assert claimed.records == ()
        return request.worker

    async def listening(self) -> Mail:
        """Wait until the storage knows of this listener. No law depends on hand-offs before that."""
        async with asyncio.timeout(LONG):
            for n in count():
                await self.in_vain(self.ask("probe", worker="probe"))
                id = f"probe-{re.sub('[^0-9a-z]', '', self.post.address)}-{n}"
                await self.storage.enqueue([job(id, queue="probe")])
                if await state(self.storage, id) is RUNNING:
                    _, probe = await self.next()
                    await settle(self.storage, done(probe))
                    break
                await settle(self.storage, done(await claim_one(self.storage, "probe")))
        return self


async def test_more_a_job_is_handed_off_to_a_waiting_worker(storage: Storage) -> None:
    """The job belongs to the worker as after a claim: under its claim id, not queued any more, with its lease."""
    mail = await Mail(storage).listening()
    claim_id = await mail.in_vain(mail.ask(lease=30))
    await storage.enqueue([job("a")])
    to, record = await mail.next()
    assert (to, record.job.id, record.state, record.worker, record.version) == (claim_id, "a", RUNNING, claim_id, 1)
    assert record == await row(storage, "a")
    assert await claim_ids(storage) == []
    await settle(storage, done(record))


async def test_more_a_handed_off_job_is_returned_to_the_same_claim_id(storage: Storage) -> None:
    """A worker that missed the notification repeats its claim, as after any lost answer."""
    mail = await Mail(storage).listening()
    request = mail.ask()
    await mail.in_vain(request)
    await storage.enqueue([job("a")])
    assert ids((await storage.claim(request)).records) == ["a"]
    assert ids((await storage.claim(request)).records) == ["a"]


async def test_more_a_handed_off_job_without_notification_is_queued_again(storage: Storage, clock: HandClock) -> None:
    """A worker that dies before it receives the job loses a lease, not the job."""
    mail = await Mail(storage).listening()
    await mail.in_vain(mail.ask(lease=30))
    await storage.enqueue([job("a")])
    clock.advance(31)
    record = await claim_one(storage)
    assert (record.job.id, record.lost) == ("a", 1)


async def test_more_an_open_claim_gets_one_job(storage: Storage) -> None:
    mail = await Mail(storage).listening()
    await mail.in_vain(mail.ask())
    for id in "ab":
        await storage.enqueue([job(id)])
    assert [await state(storage, id) for id in "ab"] == [RUNNING, READY]
    assert await claim_ids(storage, 2) == ["b"]


async def test_more_a_repeated_enqueue_hands_nothing_off_twice(storage: Storage) -> None:
    mail = await Mail(storage).listening()
    await mail.in_vain(mail.ask())
    await storage.enqueue([job("a")])
    await mail.in_vain(mail.ask())
    [again] = await storage.enqueue([job("a")])
    assert (again.state, again.version) == (RUNNING, 1)


async def test_more_an_open_claim_ends(storage: Storage, clock: HandClock) -> None:
    """A request ends when its time is over, with the next claim for its mailbox, and with a withdrawal."""
    mail = await Mail(storage).listening()
    await mail.in_vain(mail.ask(wait=5))
    clock.advance(6)
    await storage.enqueue([job("late")])
    assert await claim_ids(storage) == ["late"]

    await mail.in_vain(mail.ask())
    await storage.enqueue(jobs("a b", queue="other"))
    assert ids((await storage.claim(mail.ask("other"))).records) == ["a"]
    await storage.enqueue([job("busy")])
    assert await claim_ids(storage) == ["busy"]

    claim_id = await mail.in_vain(mail.ask())
    withdrawal = Claim(worker=claim_id, queues=(), limit=0, hand_off=(mail.post.address, 0.0))
    assert (await storage.claim(withdrawal)).records == ()
    await storage.enqueue([job("withdrawn")])
    assert await state(storage, "withdrawn") is READY


async def test_more_a_withdrawal_returns_the_job_that_was_handed_off(storage: Storage) -> None:
    mail = await Mail(storage).listening()
    claim_id = await mail.in_vain(mail.ask())
    await storage.enqueue([job("a")])
    withdrawal = Claim(worker=claim_id, queues=(), limit=0, hand_off=(mail.post.address, 0.0))
    assert ids((await storage.claim(withdrawal)).records) == ["a"]


@pytest.mark.parametrize(
    "asked",
    [
        lambda mail: mail.ask("other"),
        lambda mail: mail.ask(tasks={"another": (None, None)}),
        lambda mail: mail.ask(running=("a",)),
    ],
    ids=["another queue", "another task", "still run"],
)
async def test_more_a_worker_gets_no_job_that_it_does_not_claim(
    storage: Storage, asked: Callable[[Mail], Claim]
) -> None:
    mail = await Mail(storage).listening()
    await mail.in_vain(asked(mail))
    await storage.enqueue([job("a")])
    assert await claim_ids(storage) == ["a"]


async def test_more_a_job_that_one_waiting_worker_cannot_run_is_left_to_others(storage: Storage) -> None:
    """At most one of several waiting workers gets the job. If none does, each of them can claim it."""
    one, other = await Mail(storage).listening(), await Mail(storage).listening()
    request = one.ask()
    await one.in_vain(request)
    await other.in_vain(other.ask(tasks={"another": (None, None)}))
    await storage.enqueue([job("a")])
    assert ids((await storage.claim(request)).records) == ["a"]


@pytest.mark.parametrize(
    "rule", [Limit(name="queue:default", slots=0), Limit(name="l", slots=0), Limit(name="l", rate=0)]
)
async def test_more_a_job_that_a_limit_blocks_is_not_handed_off(storage: Storage, rule: Limit) -> None:
    mail = await Mail(storage).listening()
    await storage.set_limits([rule])
    await mail.in_vain(mail.ask())
    await storage.enqueue([job("a", limits=(("l", 1),))])
    assert (await row(storage, "a")).state is READY
    assert await claim_ids(storage) == []


async def test_more_slots_count_jobs_that_were_handed_off(storage: Storage) -> None:
    """Jobs handed off for a request that is older than the rule count too."""
    mail = await Mail(storage).listening()
    await mail.in_vain(mail.ask())
    await storage.enqueue([job("a", limits=(("l", 1),))])
    await storage.set_limits([Limit(name="l", slots=1)])
    await storage.enqueue([job("b", limits=(("l", 1),))])
    assert await claim_ids(storage) == []
    _, a = await mail.next()
    await settle(storage, done(a))
    assert await claim_ids(storage) == ["b"]


async def test_more_the_first_due_job_is_handed_off_first(storage: Storage, clock: HandClock) -> None:
    """A delayed job that has become due comes before a job that is enqueued later."""
    mail = await Mail(storage).listening()
    request = mail.ask()
    await storage.enqueue([job("first", delay=5)])
    await mail.in_vain(request)
    clock.advance(6)
    await storage.enqueue([job("second")])
    assert ids((await storage.claim(request)).records) == ["first"]
    assert await claim_ids(storage, 2) == ["second"]


async def test_more_jobs_in_lanes_are_handed_off_and_settled(storage: Storage) -> None:
    mail = await Mail(storage).listening()
    for id in "ab":
        await mail.in_vain(mail.ask())
        await storage.enqueue([job(id, lane="x", priority=3)])
        _, record = await mail.next()
        assert (record.job.id, record.queue_position) == (id, None)
        await settle(storage, done(record))
    assert await claim_ids(storage) == []


async def test_more_workers_that_wait_and_claim_get_each_job_once(connect: Connect) -> None:
    """Each job is claimed once, by a hand-off or by a claim."""
    one, two, sender = await connect(), await connect(), await connect()
    mails = [await Mail(storage).listening() for storage in (one, two)]
    taken: list[str] = []

    async def work(mail: Mail) -> None:
        request = mail.ask()
        while len(taken) < 200:
            rows = list((await mail.storage.claim(request)).records)
            if not rows:  # keep the claim id until a job is found
                with suppress(TimeoutError):
                    claim_id, handed = await asyncio.wait_for(mail.got.get(), 0.02)
                    rows = [handed] if claim_id == request.worker else []
            if rows:
                taken.extend(ids(rows))
                await settle(mail.storage, *map(done, rows))
                request = mail.ask()

    async def send(who: int) -> None:
        for n in range(50):
            await sender.enqueue([job(f"{who}-{n}")])
            await asyncio.sleep(0.001 * (n % 3))

    async with asyncio.timeout(60):
        await asyncio.gather(*map(work, mails), *map(send, range(4)))
    assert sorted(taken) == sorted(f"{who}-{n}" for who in range(4) for n in range(50))
