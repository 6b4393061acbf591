"""For the laws of moves: a storage with a job of every kind, and its copy in another storage."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.core.limit_model import Limit
from treadle.storage import capabilities
from treadle.storage.contract import Storage
from treadle.storage.optional_parts import Movable
from treadle.storage.transfer import Carried, MoveState, Role
from treadle.testing.clock import HandClock
from treadle_testkit.conformance.kit import (
    WAITING,
    advance_due,
    back,
    beat,
    cancelled,
    claim,
    done,
    failed,
    job,
    jobs,
    out,
    renewal,
    settle,
)


def movable(storage: Storage) -> Movable:
    if not storage.capabilities.movable:
        pytest.skip("this storage does not support moves")
    return capabilities.movable(storage, "this storage")


def mark(role: Role, **more: Any) -> MoveState:
    return MoveState(role=role, other="sqlite:///elsewhere.db", move="m1", **more)


async def everything(storage: Storage, step: int = 3) -> list[Carried]:
    carried: list[Carried] = []
    cursor: str | None = None
    while True:
        load = await movable(storage).unload(cursor, step)
        carried += load.jobs
        cursor = load.cursor
        if cursor is None:
            return carried


async def carry(source: Storage, target: Storage, step: int = 3) -> None:
    """Copy everything unchanged."""
    cursor: str | None = None
    while True:
        load = await movable(source).unload(cursor, step)
        await movable(target).load(load, mark("filling", cursor=load.cursor))
        cursor = load.cursor
        if cursor is None:
            break
    await movable(target).set_mark(mark("arrived"))


async def zoo(storage: Storage, clock: HandClock) -> None:
    """Store one job of each kind: every state, every way to wait, every held key and slot."""
    await storage.set_limits(
        [
            Limit("one", slots=1),
            Limit("pace", rate=2, per=60),
            Limit("sip", rate=6, per=60, how="bucket", burst=2),
            Limit("queue:shut", slots=0),
            Limit("kept", slots=1, hold="ended"),
        ]
    )
    await storage.enqueue(
        [
            job("up"),
            job("bad"),
            job("parent"),
            job("a-run", limits=(("one", 1),), headers=(("a", "b"),)),
            job("sibling", limits=(("one", 1),)),
            job("kept-1", limits=(("kept", 1),)),
            job("kept-2", limits=(("kept", 1),)),
            *jobs("pace-1 pace-2 pace-3", limits=(("pace", 1),)),
            *jobs("sip-1 sip-2 sip-3", limits=(("sip", 1),)),
            job("once", key="k", labels=("red", "blue")),
            job("window", key="w", key_window=1000),
            job("later", delay=50, priority=7),
            job("old", aging=2, priority=3),
            job("shut", queue="shut"),
            job("lane-1", lane="x"),
            job("lane-2", lane="x"),
            job("lane-3", lane="y"),
            job("dies", deadline=70),
            job("back"),
            job("lost"),
            job("promise", task=""),
            job("cancel"),
            job("instant", after=("kept-1",), delay=1, run_at=clock.moment + 90, deadline=9, deadline_at=2e9),
        ]
    )
    await storage.enqueue(
        [
            job("fan", after=("up", "bad", "a-run"), required=2, failures_allowed=1),
            job("chain", after=("fan",)),
            job("unknown", after=("nobody-yet",), wait_timeout=40),
            job("doomed", after=("bad",)),
        ]
    )
    rows = {record.job.id: record for record in await claim(storage, 99, "default", "shut", lease=40)}
    await settle(
        storage,
        done(rows["up"], result="1", checkpoints=(("s", "t"),)),
        failed(rows["bad"]),
        done(rows["window"]),
        out(
            rows["parent"],
            WAITING,
            function_done=True,
            followups=(job("child", parent="parent", root="parent"),),
            after=("child",),
        ),
        back(rows["back"], attempt=1, error="boom", note="half"),
        back(rows["kept-1"], delay=9),
        cancelled(rows["cancel"]),
        *(done(rows[id]) for id in ("pace-1", "sip-1")),
    )
    await beat(
        storage,
        renewal(rows["a-run"], checkpoints=(("step", "1"), ("two", "2")), note="busy"),
        renewal(rows["once"]),
        lease=50,
    )
    await storage.enqueue([job("behind", key="k", key_conflict="replace"), job("waits", after=("parent", "later"))])
    clock.advance(45)
    await advance_due(storage)
