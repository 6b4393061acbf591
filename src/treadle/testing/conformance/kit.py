"""The few words the laws are written in. Without them each law would be twice as long as what it says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from treadle.core.model import Claim, Claimed, Hold, NewJob, Outcome, Presence, Record, Settled, State
from treadle.storage.contract import Storage

READY, WAITING, RUNNING = State.READY, State.WAITING, State.RUNNING
SUCCEEDED, FAILED, CANCELLED = State.SUCCEEDED, State.FAILED, State.CANCELLED

_tickets = count(1)


def job(id: str, **options: Any) -> NewJob:
    return NewJob(id=id, **{"task": "t", **options})


def jobs(ids: str, **options: Any) -> list[NewJob]:
    """Several alike: `jobs("a b c", delay=5)`."""
    return [job(id, **options) for id in ids.split()]


def ids(rows: Sequence[Record | None]) -> list[str]:
    return [row.job.id for row in rows if row is not None]


def ask(limit: int = 1, *queues: str, worker: str = "w", **options: Any) -> Claim:
    """Of each queue up to `limit`, under a ticket never used before."""
    shares = tuple((queue, limit) for queue in queues or ("default",))
    return Claim(**{"worker": f"{worker}#{next(_tickets)}", "queues": shares, "limit": limit, **options})


async def claimed(storage: Storage, limit: int = 1, *queues: str, **options: Any) -> Claimed:
    return await storage.claim(ask(limit, *queues, **options))


async def claim(storage: Storage, limit: int = 1, *queues: str, **options: Any) -> list[Record]:
    return list((await claimed(storage, limit, *queues, **options)).records)


async def claim_ids(storage: Storage, limit: int = 1, *queues: str, **options: Any) -> list[str]:
    return ids(await claim(storage, limit, *queues, **options))


async def claim_one(storage: Storage, *queues: str, **options: Any) -> Record:
    """The next in line, which must be there."""
    [row] = await claim(storage, 1, *queues, **options)
    return row


async def row(storage: Storage, id: str) -> Record:
    [found] = await storage.get([id])
    assert found is not None, f"there is no row {id!r}"
    return found


async def state(storage: Storage, id: str) -> State:
    return (await row(storage, id)).state


async def states(storage: Storage, ids: str) -> list[State | None]:
    return [None if found is None else found.state for found in await storage.get(ids.split())]


def out(of: Record, to: State, **options: Any) -> Outcome:
    return Outcome(id=of.job.id, version=of.version, state=to, **options)


def done(of: Record, **options: Any) -> Outcome:
    return out(of, SUCCEEDED, **options)


def failed(of: Record, **options: Any) -> Outcome:
    return out(of, FAILED, **{"reason": "error", "error": "boom", **options})


def cancelled(of: Record, **options: Any) -> Outcome:
    return out(of, CANCELLED, **{"reason": "asked", **options})


def back(of: Record, delay: float = 0.0, **options: Any) -> Outcome:
    """Ready again."""
    return out(of, READY, delay=delay, **options)


async def settle(storage: Storage, *outcomes: Outcome) -> None:
    """All of them must be applied."""
    for outcome, settled in zip(outcomes, await storage.settle(outcomes), strict=True):
        assert settled.status == "applied", f"{outcome.id}: {settled}"


async def said(storage: Storage, *outcomes: Outcome) -> list[str]:
    return [settled.status for settled in await storage.settle(outcomes)]


async def refusal(storage: Storage, outcome: Outcome) -> Settled:
    [settled] = await storage.settle([outcome])
    assert settled.status != "applied"
    return settled


async def run(storage: Storage, *ids: str, to: State = SUCCEEDED, **options: Any) -> None:
    """Claim these jobs, wherever they stand, and end them."""
    queues = {found.job.queue: 0 for found in await storage.get(ids) if found is not None}
    rows = await claim(storage, len(ids), *queues, ids=ids)
    assert sorted(found.job.id for found in rows) == sorted(ids), "not all of them could be claimed"
    reason = {"reason": "error"} if to is FAILED else {"reason": "asked"} if to is CANCELLED else {}
    await settle(storage, *(out(found, to, **{**reason, **options}) for found in rows))


def hold(of: Record, **options: Any) -> Hold:
    return Hold(of.job.id, of.version, **options)


async def beat(storage: Storage, *holds: Hold, worker: str = "w", lease: float = 30.0) -> frozenset[str]:
    """The ids lost. Memos and notes are saved: what cannot be now is sent again."""
    while True:
        held = await storage.heartbeat(Presence(worker=worker), holds, lease)
        if not held.unsaved:
            return held.lost


async def tend(storage: Storage) -> None:
    """What any worker does by asking, even one of a queue that is always empty."""
    assert await claim_ids(storage, 1, "nobody-sends-here") == []
