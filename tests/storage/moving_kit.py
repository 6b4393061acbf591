"""Storages to move between, and a population of jobs of every kind."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from tests.servers import postgres, valkey
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.storage import connect
from treadle.storage.contract import Storage

_numbers = itertools.count()
STEP = 500  # jobs that are enqueued, claimed and settled at once


def url_of(kind: str, folder: Path) -> str:
    """The URL of a new, empty storage of that kind."""
    number = next(_numbers)
    if kind == "sqlite":
        return f"sqlite:///{folder}/moving-{number}.db?synchronous=normal"
    if kind == "redis":
        return f"{valkey.url()}?ns=moving-{os.getpid()}-{number}"
    if kind == "shards":
        return f"{valkey.url()}?ns=moving-{os.getpid()}-{number}&shards=3"
    if kind == "postgres":
        return f"{postgres.url()}?schema=moving_{os.getpid()}_{number}"
    return "memory://"


PLACES = ("memory", "sqlite", "redis", "postgres")
OUTSIDE = ("sqlite", "redis", "postgres")  # storages that another process can open


async def made(kind: str, folder: Path) -> Storage:
    storage = connect(url_of(kind, folder))
    await storage.open()
    return storage


def kinds_of_jobs(number: int) -> list[NewJob]:
    """Ten jobs, each of another kind; their tasks decide how they end."""

    def job(kind: str, **options: object) -> NewJob:
        return NewJob(id=f"{kind}-{number:06}", task=kind, payload=f'["{kind}",{number}]', **options)  # type: ignore[arg-type]

    tenant = f"tenant:{number % 7}"
    return [
        job("done", labels=("kept", f"n{number % 5}"), headers=(("trace", str(number)),)),
        job("failed", keep_failed=3600.0),
        job("ready", priority=number % 3, lane=f"lane-{number % 4}"),
        job("later", delay=3600.0 + number),
        job("limited", limits=((tenant, 1), ("paced", 1))),
        job("keyed", key=f"k{number}", key_window=7200.0),
        job("parent"),
        job("runs", queue="slow"),
        job(
            "fan",
            after=(f"done-{number:06}", f"runs-{number:06}", f"later-{number:06}"),
            required=2,
            failures_allowed=1,
        ),
        job("doomed", after=(f"failed-{number:06}",)),
    ]


async def populate(storage: Storage, jobs: int, queue: int | None = 1) -> None:
    """Make about this many jobs through the verbs alone: every state, waits open and counted, keys, slots, windows,
    checkpoints. `queue` gives one of the queues a limit with slots at the end."""
    await storage.set_limits(
        [
            Limit("tenant", slots=1),
            Limit("paced", rate=1_000, per=86_400.0),
            Limit("queue:slow", slots=queue and 10_000),
            Limit("sips", rate=10, per=60.0, how="bucket", burst=5),
        ]
    )
    rows = [job for number in range(jobs // 11) for job in kinds_of_jobs(number)]
    for at in range(0, len(rows), STEP):
        await storage.enqueue(rows[at : at + STEP])
    tasks: dict[str, tuple[int | None, float | None]] = dict.fromkeys(
        ("done", "failed", "parent", "runs", "limited", "keyed"), (None, None)
    )
    ask = itertools.count()
    while True:
        claimed = await storage.claim(
            Claim(
                worker=f"w#{next(ask)}",
                queues=(("default", STEP), ("slow", STEP)),
                tasks=tasks,
                limit=STEP,
                lease=600.0,
            )
        )
        if not claimed.records:
            break
        await storage.settle([out for row in claimed.records if (out := ending(row)) is not None])
        renewals = [
            LeaseRenewal(row.job.id, row.version, (("step", row.job.id),), '{"progress":0.5}')
            for row in claimed.records
            if row.job.task == "runs"
        ]
        if renewals:
            await storage.heartbeat(Presence(worker="w"), renewals, 600.0)
    await storage.set_limits([Limit("queue:slow", slots=queue, hold="ended")])


def ending(row: Record) -> Outcome | None:
    job, common = row.job, {"id": row.job.id, "version": row.version}
    if job.task == "done":
        return Outcome(
            **common, state=State.SUCCEEDED, attempt=1, result=f'"{job.id}"', checkpoints=(("a", "1"), ("b", "2"))
        )
    if job.task == "failed":
        return Outcome(**common, state=State.FAILED, attempt=1, reason="error", error="boom")
    if job.task == "parent":
        child = NewJob(id=f"child-{job.id}", task="child", root=job.id, parent=job.id, delay=3600.0)
        return Outcome(
            **common,
            state=State.WAITING,
            function_done=True,
            attempt=1,
            result="1",
            followups=(child,),
            after=(child.id,),
        )
    if job.task == "limited":
        return Outcome(**common, state=State.READY, delay=900.0, attempt=1, error="again")
    if job.task == "keyed":
        return Outcome(**common, state=State.SUCCEEDED, attempt=1)
    return None
