"""Defects that reviews once found, put back one at a time: the simulation must find each of them.

The ids are those of docs/internals/defects.md. If the defect was in another storage, its effect is put back in the
memory storage, and the docstring says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any, cast

import pytest
from msgspec.structs import replace

from treadle.admin import job_messages
from treadle.admin.acts import GROUP, Acts, cancelled
from treadle.core.limit_model import LimitFacts
from treadle.core.model import NewJob, Record, Settled, State
from treadle.scheduling import ticker
from treadle.storage import connect, row_rules
from treadle.storage.contract import Storage
from treadle.storage.machine import store
from treadle.worker.capacity import Capacity
from treadle.worker.config import WorkerConfig
from treadle.workflow import signals

Patch = pytest.MonkeyPatch
MEMORY: Any = type(connect("memory://"))
BOOK: Any = type(MEMORY()._tables)


def step_not_stored(patch: Patch) -> None:
    """O-1: a heartbeat did not store a step and did not report it (on PostgreSQL, if the row was locked)."""
    real, number = MEMORY.heartbeat, count(1)

    async def heartbeat(self: Any, worker: Any, renewals: Sequence[Any], lease: float) -> Any:
        if any(hold.checkpoints for hold in renewals) and not next(number) % 5:
            renewals = [replace(hold, checkpoints=()) for hold in renewals]
        return await real(self, worker, renewals, lease)

    patch.setattr(MEMORY, "heartbeat", heartbeat)


def strict_order_lost(patch: Patch) -> None:
    """O-3: a claim read the queue before it had the limit's lock, and skipped its head (on PostgreSQL)."""
    taking: Any = MEMORY._claim.__globals__["ClaimWalk"]
    real, number = taking._wanted, count(1)

    def wanted(self: Any, row: Record) -> bool:
        stale = row.job.limits == (("account:1", 1),) and not next(number) % 5
        return not stale and real(self, row)

    patch.setattr(taking, "_wanted", wanted)


def value_of_nobody(patch: Patch) -> None:
    """C-1: a job that waited for a child, for which another row was returned, kept the id it had asked for, and got
    None."""
    real = BOOK.add

    def add(self: Any, row: Record, key: str | None) -> None:
        real(self, row, key)
        if row.after != row.job.after:
            self.put(replace(row, after=row.job.after))

    patch.setattr(BOOK, "add", add)


def cancel_of_old_rows(patch: Patch) -> None:
    """C-2: a cancel continued from the row that it had read, not from the row at the time of the cancel."""

    async def cancel(self: Any, rows: Sequence[Record], tree: bool) -> int:
        done, queue, seen = 0, list(rows), {row.job.id for row in rows}
        while queue:
            group, queue = queue[:GROUP], queue[GROUP:]
            group += await self._below(group, seen, tree)
            acted = await self.settle(group, cancelled)
            done += sum(1 for row in acted if row.job.task)
            queue = await self._below(group, seen, tree) + queue
        return done

    patch.setattr(Acts, "cancel", cancel)


def held_child_left_out(patch: Patch) -> None:
    """C-7: a returned child was no part of the flow if another job held its key."""

    def awaited(out: Any, answers: dict[str, str], circle: Any) -> tuple[str, ...]:
        return tuple(up for up in dict.fromkeys(out.after) if answers.get(up, up) == up and up not in circle)

    patch.setattr("treadle.storage.machine.settle.awaited", awaited)


def clock_not_taken_back(patch: Patch) -> None:
    """E-A14: times that were written while the clock was ahead stayed in the future."""
    patch.setattr(MEMORY, "_take_back", lambda self, now: None)


def id_of_another_task(patch: Patch) -> None:
    """U-F10: a call with a chosen id that was taken returned the job of another task."""
    patch.setattr("treadle.storage.machine.plan.refuse_taken", lambda jobs, stored: None)


def pause_lost(patch: Patch) -> None:
    """L-1: of two changes of one limit at the same time, the second wrote what it had read before the first."""
    real = MEMORY.set_limits

    async def set_limits(self: Any, changes: Sequence[Any]) -> None:
        before = dict(self._tables.facts)
        await asyncio.sleep(0.05)
        for change in changes:
            name = change.rule.name if hasattr(change, "rule") else change.name
            self._tables.set_facts(before.get(name, LimitFacts(name=name)))
        await real(self, changes)

    patch.setattr(MEMORY, "set_limits", set_limits)


def slots_leak(patch: Patch) -> None:
    """S-5: a half finished call kept the slot of a job (on Redis). Here a lost job keeps it."""
    real = BOOK.used

    def used(self: Any, key: str) -> Any:
        usage = real(self, key)
        usage.used += sum(
            cost for id, cost in self.started[key].items() if self.jobs[id].state is State.READY and self.jobs[id].lost
        )
        return usage

    patch.setattr(BOOK, "used", used)


def acknowledged_and_not_stored(patch: Patch) -> None:
    """S-10: a process acknowledged a job that no other process could read (on ports). Here the row is not stored."""
    real, number = MEMORY.enqueue, count(1)

    async def enqueue(self: Any, jobs: Sequence[NewJob]) -> list[Record]:
        rows: list[Record] = await real(self, jobs)
        if not next(number) % 10 and not any(row.job.key or row.job.after for row in rows):
            for row in rows:
                self._tables.take_out(row)
                del self._jobs[row.job.id]
        return rows

    patch.setattr(MEMORY, "enqueue", enqueue)


def signal_lost(patch: Patch) -> None:
    """Not from a review: the signal is acknowledged, and its row stays open."""
    real, number = MEMORY.settle, count(1)

    async def settle(self: Any, outcomes: Sequence[Any]) -> Any:
        kept = [out for out in outcomes if not (out.id.startswith(signals.SIGNAL) and not next(number) % 2)]
        return await real(self, kept) if len(kept) == len(outcomes) else [Settled("applied")]

    patch.setattr(MEMORY, "settle", settle)


def signal_given_twice(patch: Patch) -> None:
    """Not from a review: a signal that was sent, but whose answer was lost, is sent again."""
    real = job_messages.send

    class Blind:
        """A storage that takes a sent signal for one that is used up."""

        def __init__(self, storage: Any) -> None:
            self.enqueue, self.settle, self._get = storage.enqueue, storage.settle, storage.get

        async def get(self, ids: Sequence[str]) -> Any:
            return [
                replace(row, state=State.CANCELLED) if row and row.state.final else row for row in await self._get(ids)
            ]

    async def send(storage: Any, *rest: Any) -> bool:
        return await real(cast("Storage", Blind(storage)), *rest)

    patch.setattr(job_messages, "send", send)


# --- not from a review: promises whose rules these defects prove


def delay_ignored(patch: Patch) -> None:
    """A delayed job is queued at once."""
    real = store._first_row

    def first_row(inserts: Any, new: NewJob, after: tuple[str, ...], now: float) -> Record:
        return replace(real(inserts, replace(new, delay=0.0), after, now), job=new)

    patch.setattr(store, "_first_row", first_row)


def priorities_reversed(patch: Patch) -> None:
    """The lowest priority comes first."""

    def order(row: Record) -> tuple[float, float, str]:
        first, *rest = row_rules.order(row)
        return (-first, *rest)

    patch.setattr("treadle.storage.memory.tables.order", order)
    patch.setattr("treadle.storage.memory.tables.rank", lambda job: -row_rules.rank(job))


def lanes_ignored(patch: Patch) -> None:
    """A job with a lane is queued behind all others."""
    patch.setattr(store, "position", lambda ends, job, when: row_rules.turn(job, when))


def ticked_twice(patch: Patch) -> None:
    """A schedule stores two jobs for each of its moments."""
    _change_ticks(patch, lambda ticks: (*ticks, *(replace(tick, id=f"{tick.id}:again") for tick in ticks)))


def tick_left_out(patch: Patch) -> None:
    """Now and then a schedule stores no job for a moment."""
    number = count(1)
    _change_ticks(patch, lambda ticks: tuple(tick for tick in ticks if next(number) % 3))


def ticked_early(patch: Patch) -> None:
    """A tick has the id of the next moment, so that it starts before that."""

    def late(tick: NewJob) -> NewJob:
        name, _, word = tick.id.rpartition(":")
        at = datetime.strptime(word.replace("Z", "" if "." in word else ".000"), "%Y%m%dT%H%M%S.%f")  # noqa: DTZ007
        return replace(tick, id=f"{name}:{(at + timedelta(seconds=4)).strftime('%Y%m%dT%H%M%S.%f')[:-3]}Z")

    _change_ticks(patch, lambda ticks: tuple(map(late, ticks)))


def _change_ticks(patch: Patch, change: Callable[[tuple[NewJob, ...]], tuple[NewJob, ...]]) -> None:
    real = ticker.Ticker._ticks

    async def ticks(self: Any, *rest: Any) -> tuple[tuple[NewJob, ...], Exception | None]:
        made, problem = await real(self, *rest)
        return change(made), problem

    patch.setattr(ticker.Ticker, "_ticks", ticks)


def bound_ignored(patch: Patch) -> None:
    """A full queue takes every job."""
    patch.setattr(store, "make_room", lambda rows, found: iter(()))


def count_drifts(patch: Patch) -> None:
    """A change of a row sometimes leaves the count of its former kind as it was."""
    real, number = BOOK._count, count(1)

    def counted(self: Any, row: Record | None, by: int) -> None:
        if by > 0 or next(number) % 50:
            real(self, row, by)

    patch.setattr(BOOK, "_count", counted)


def resources_ignored(patch: Patch) -> None:
    """A worker claims jobs as if nothing ran on it."""
    patch.setattr(Capacity, "_free", lambda self: dict(self.use.has))


def labels_ignored(patch: Patch) -> None:
    """A worker claims jobs whose labels it lacks."""
    patch.setattr(WorkerConfig, "runs", lambda self, needs: True)


MIXED: dict[str, Callable[[Patch], None]] = {
    "O-1": step_not_stored,
    "O-3": strict_order_lost,
    "C-1": value_of_nobody,
    "C-2": cancel_of_old_rows,
    "C-7": held_child_left_out,
    "E-A14": clock_not_taken_back,
    "U-F10": id_of_another_task,
    "L-1": pause_lost,
    "S-5": slots_leak,
    "S-10": acknowledged_and_not_stored,
    "signal lost": signal_lost,
    "signal twice": signal_given_twice,
}
ORDERLY: dict[str, Callable[[Patch], None]] = {
    "delay": delay_ignored,
    "priority": priorities_reversed,
    "lane": lanes_ignored,
    "tick twice": ticked_twice,
    "tick left out": tick_left_out,
    "tick early": ticked_early,
    "bound": bound_ignored,
    "counts": count_drifts,
    "resources": resources_ignored,
    "labels": labels_ignored,
}
"""By the fleet that finds them."""
