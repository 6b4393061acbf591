"""Short helpers for the laws."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from treadle.core.errors import BadOption
from treadle.core.limit_model import LimitUse
from treadle.core.model import Claim, Claimed, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled, State
from treadle.storage.contract import Storage

READY, WAITING, RUNNING = State.READY, State.WAITING, State.RUNNING
SUCCEEDED, FAILED, CANCELLED = State.SUCCEEDED, State.FAILED, State.CANCELLED

_claim_ids = count(1)


def job(id: str, **options: Any) -> NewJob:
    return NewJob(id=id, **{"task": "t", **options})


def jobs(ids: str, **options: Any) -> list[NewJob]:
    """Several equal jobs: `jobs("a b c", delay=5)`."""
    return [job(id, **options) for id in ids.split()]


def ids(rows: Sequence[Record | None]) -> list[str]:
    return [row.job.id for row in rows if row is not None]


def ask(limit: int = 1, *queues: str, worker: str = "w", **options: Any) -> Claim:
    """A claim of up to `limit` jobs from each queue, under a new claim id."""
    shares = tuple((queue, limit) for queue in queues or ("default",))
    return Claim(**{"worker": f"{worker}#{next(_claim_ids)}", "queues": shares, "limit": limit, **options})


async def claimed(storage: Storage, limit: int = 1, *queues: str, **options: Any) -> Claimed:
    return await storage.claim(ask(limit, *queues, **options))


async def claim(storage: Storage, limit: int = 1, *queues: str, **options: Any) -> list[Record]:
    return list((await claimed(storage, limit, *queues, **options)).records)


async def claim_ids(storage: Storage, limit: int = 1, *queues: str, **options: Any) -> list[str]:
    return ids(await claim(storage, limit, *queues, **options))


async def claim_one(storage: Storage, *queues: str, **options: Any) -> Record:
    """Claim the next queued job, which must exist."""
    [row] = await claim(storage, 1, *queues, **options)
    return row


async def row(storage: Storage, id: str) -> Record:
    [record] = await storage.get([id])
    assert record is not None, f"there is no row {id!r}"
    return record


async def state(storage: Storage, id: str) -> State:
    return (await row(storage, id)).state


async def states(storage: Storage, ids: str) -> list[State | None]:
    return [None if record is None else record.state for record in await storage.get(ids.split())]


def out(of: Record, to: State, **options: Any) -> Outcome:
    return Outcome(id=of.job.id, version=of.version, state=to, **options)


def done(of: Record, **options: Any) -> Outcome:
    return out(of, SUCCEEDED, **options)


def failed(of: Record, **options: Any) -> Outcome:
    return out(of, FAILED, **{"reason": "error", "error": "boom", **options})


def cancelled(of: Record, **options: Any) -> Outcome:
    return out(of, CANCELLED, **{"reason": "asked", **options})


def back(of: Record, delay: float = 0.0, **options: Any) -> Outcome:
    """An outcome that makes the job ready again."""
    return out(of, READY, delay=delay, **options)


async def settle(storage: Storage, *outcomes: Outcome) -> None:
    """Settle; all outcomes must be applied."""
    for outcome, settled in zip(outcomes, await storage.settle(outcomes), strict=True):
        assert settled.status == "applied", f"{outcome.id}: {settled}"


async def said(storage: Storage, *outcomes: Outcome) -> list[str]:
    return [settled.status for settled in await storage.settle(outcomes)]


async def refusal(storage: Storage, outcome: Outcome) -> Settled:
    [settled] = await storage.settle([outcome])
    assert settled.status != "applied"
    return settled


async def run(storage: Storage, *ids: str, to: State = SUCCEEDED, **options: Any) -> None:
    """Claim these jobs from their queues, and end them."""
    queues = {record.job.queue: 0 for record in await storage.get(ids) if record is not None}
    rows = await claim(storage, len(ids), *queues, ids=ids)
    assert sorted(record.job.id for record in rows) == sorted(ids), "not all of them could be claimed"
    reason = {"reason": "error"} if to is FAILED else {"reason": "asked"} if to is CANCELLED else {}
    await settle(storage, *(out(record, to, **{**reason, **options}) for record in rows))


def renewal(of: Record, **options: Any) -> LeaseRenewal:
    return LeaseRenewal(of.job.id, of.version, **options)


async def beat(storage: Storage, *renewals: LeaseRenewal, worker: str = "w", lease: float = 30.0) -> frozenset[str]:
    """Return the lost ids. Repeats the heartbeat until checkpoints and notes are saved."""
    while True:
        held = await storage.heartbeat(Presence(worker=worker), renewals, lease)
        if not held.unsaved:
            return held.lost


async def advance_due(storage: Storage) -> None:
    """Advance due rows, as every claim does, even one of a queue that is always empty."""
    assert await claim_ids(storage, 1, "nobody-sends-here") == []


async def enqueue_system_rows(storage: Storage, *rows: NewJob) -> None:
    """Store rows of Treadle's own tasks, unless this storage is a server, which accepts none from its clients."""
    with suppress(BadOption):
        await storage.enqueue(rows)


def names(start: int, end: int, letter: str = "j") -> str:
    return " ".join(f"{letter}{n:02}" for n in range(start, end))


async def standing(storage: Storage, queue: str = "default") -> tuple[int, int]:
    """How many jobs are queued, and how many are blocked."""
    counts = [count for count in (await storage.stats()).counts if count.queue == queue and count.state is READY]
    return sum(count.queued for count in counts), sum(count.blocked for count in counts)


async def use(storage: Storage, key: str) -> LimitUse | None:
    return {limit_use.key: limit_use for limit_use in (await storage.stats()).limits}.get(key)


async def run_out(storage: Storage, *ids: str) -> None:
    """End these running jobs."""
    await settle(storage, *[done(await row(storage, id)) for id in ids])
