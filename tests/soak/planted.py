"""Faults planted into a storage on purpose: each breaks one promise now and then, and the checker must find it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.core.limit_model import Declare, Limit
from treadle.core.model import (
    APPLIED,
    Claim,
    Claimed,
    HeartbeatResult,
    LeaseRenewal,
    NewJob,
    Outcome,
    Presence,
    Record,
    Settled,
    State,
)
from treadle.core.query_model import Query
from treadle.storage.contract import Storage

OFTEN = 0.1  # share of the calls in which a fault shows


class _Often:
    """Whether the fault shows at this call: at the first one of a process that can show it, then by chance."""

    def __init__(self) -> None:
        self._shown = False

    def __call__(self) -> bool:
        if self._shown and random.random() >= OFTEN:
            return False
        self._shown = True
        return True


def plant(storage: Storage, name: str) -> Storage:
    """Plant that fault, from `FAULTS`, into a storage. Its methods are replaced, so the object stays the same for all
    callers."""
    it: Any = storage
    FAULTS[name](it)
    if hasattr(it, "settle_claim"):

        async def settle_claim(outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
            return await it.settle(outcomes), await it.claim(ask)

        it.settle_claim = settle_claim
    return storage


def _each_outcome(it: Any, change: Callable[[Outcome], Outcome]) -> None:
    settle = it.settle

    async def changed(outcomes: Sequence[Outcome]) -> list[Settled]:
        found: list[Settled] = await settle([change(out) for out in outcomes])
        return found

    it.settle = changed


def _each_job(it: Any, change: Callable[[NewJob], NewJob]) -> None:
    enqueue = it.enqueue

    async def changed(jobs: Sequence[NewJob]) -> list[Record]:
        found: list[Record] = await enqueue([change(job) for job in jobs])
        return found

    it.enqueue = changed


def _each_rule(it: Any, change: Callable[[Limit], Limit]) -> None:
    set_limits = it.set_limits

    async def changed(changes: Sequence[Any]) -> None:
        await set_limits([Declare(change(each.rule)) if isinstance(each, Declare) else each for each in changes])

    it.set_limits = changed


def version_ignored(it: Any) -> None:
    """A worker settles under whatever version the row has. Its leases are short, so that other workers take its
    jobs."""
    settle, claim = it.settle, it.claim

    async def brief(ask: Claim) -> Claimed:
        found: Claimed = await claim(replace(ask, lease=0.05))
        return found

    async def blind(outcomes: Sequence[Outcome]) -> list[Settled]:
        rows = await it.get([out.id for out in outcomes])
        now = [replace(out, version=row.version) if row else out for out, row in zip(outcomes, rows, strict=True)]
        found: list[Settled] = await settle(now)
        return found

    it.settle, it.claim = blind, brief


def slot_ignored(it: Any) -> None:
    """A claim admits one job more than a limit has slots."""
    _each_rule(it, lambda rule: replace(rule, slots=rule.slots + 1) if rule.slots else rule)


def followups_lost(it: Any) -> None:
    """The jobs that a run returned are not stored."""
    often = _Often()

    def change(out: Outcome) -> Outcome:
        lost = out.state is State.WAITING and out.function_done and out.followups and often()
        return replace(out, followups=(), after=()) if lost else out

    _each_outcome(it, change)


def ticked_twice(it: Any) -> None:
    """A schedule stores a second job for each of its times; there are few."""

    def change(out: Outcome) -> Outcome:
        again = [replace(job, id=f"{job.id}:again") for job in out.followups if job.id.startswith("cron:")]
        return replace(out, followups=(*out.followups, *again)) if again else out

    _each_outcome(it, change)


def checkpoints_lost(it: Any) -> None:
    """A step's result is not stored, but the storage confirms it."""
    heartbeat = it.heartbeat

    async def forgetful(worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        found: HeartbeatResult = await heartbeat(
            worker, [replace(renewal, checkpoints=()) for renewal in renewals], lease
        )
        return found

    it.heartbeat = forgetful


def job_lost(it: Any) -> None:
    """An enqueue returns, but has not stored its last job."""
    enqueue, often = it.enqueue, _Often()

    async def careless(jobs: Sequence[NewJob]) -> list[Record]:
        if jobs[-1].task != "work" or jobs[-1].key or not often():
            answers: list[Record] = await enqueue(jobs)
            return answers
        rows: list[Record] = await enqueue(jobs[:-1]) if len(jobs) > 1 else []
        return [*rows, Record(job=jobs[-1], version=0, state=State.READY)]

    it.enqueue = careless


def key_ignored(it: Any) -> None:
    """A held key is ignored."""
    _each_job(it, lambda job: replace(job, key=f"{job.key}:{job.id}") if job.key and job.task == "work" else job)


def join_early(it: Any) -> None:
    """A job that waits for two starts after one."""
    _each_job(it, lambda job: replace(job, required=1) if job.task == "join" else job)


def claimed_again(it: Any) -> None:
    """A claim returns the jobs of the claim before as well."""
    claim, before, often = it.claim, list[Record](), _Often()

    async def generous(ask: Claim) -> Claimed:
        found: Claimed = await claim(ask)
        again = [row for row in before if len(found.records) < 4 and often()]
        before[:] = [row for row in found.records if row.job.task == "work"]
        return replace(found, records=(*found.records, *again))

    it.claim = generous


def ending_lost(it: Any) -> None:
    """A settle returns that it was applied, but was not."""
    settle, often = it.settle, _Often()

    async def lying(outcomes: Sequence[Outcome]) -> list[Settled]:
        told = {out.id for out in outcomes if out.state is State.SUCCEEDED and often()}
        rest = [out for out in outcomes if out.id not in told]
        answers = iter(await settle(rest) if rest else [])
        return [APPLIED if out.id in told else next(answers) for out in outcomes]

    it.settle = lying


def priority_ignored(it: Any) -> None:
    """All jobs have the same priority."""
    _each_job(it, lambda job: replace(job, priority=0) if job.priority else job)


def lane_ignored(it: Any) -> None:
    """No job has a lane."""
    _each_job(it, lambda job: replace(job, lane=None) if job.lane else job)


def order_ignored(it: Any) -> None:
    """A claim takes the job that was queued last."""
    claim, often = it.claim, _Often()

    async def hasty(ask: Claim) -> Claimed:
        if often():
            last = Query(ready="queued", queue=ask.queues[0][0], order="newest", limit=1)
            ask = replace(ask, ids=tuple(row.job.id for row in (await it.find(last)).records))
        found: Claimed = await claim(ask)
        return found

    it.claim = hasty


def lease_short(it: Any) -> None:
    """A lease ends long before its time."""
    claim = it.claim

    async def brief(ask: Claim) -> Claimed:
        found: Claimed = await claim(replace(ask, lease=0.05))
        return found

    it.claim = brief


def rate_ignored(it: Any) -> None:
    """A rate admits four times as many starts."""
    _each_rule(it, lambda rule: replace(rule, rate=4 * rule.rate) if rule.rate else rule)


def bound_ignored(it: Any) -> None:
    """A full queue takes more jobs than it may."""
    _each_rule(it, lambda rule: replace(rule, max_waiting=3 * rule.max_waiting) if rule.max_waiting else rule)


FAULTS: dict[str, Callable[[Any], None]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        version_ignored,
        slot_ignored,
        followups_lost,
        ticked_twice,
        checkpoints_lost,
        job_lost,
        key_ignored,
        join_early,
        claimed_again,
        ending_lost,
        priority_ignored,
        lane_ignored,
        order_ignored,
        lease_short,
        rate_ignored,
        bound_ignored,
    )
}
