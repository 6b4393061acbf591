"""Stores a schedule as a row, and runs it: one settle stores the jobs of the ticks that are due, and the new cursor.

There is no scheduler process. A schedule is a job that runs again at its next instant, on any worker.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from cronsim import CronSimError
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import defaults, errors
from treadle.core.clock import moment as aware
from treadle.core.errors import BadOption, ForeignRow, QueueFull
from treadle.core.limit_model import LimitUse
from treadle.core.model import NewJob, Outcome, Record, State
from treadle.policy.cron import Next, Timing, after, due, stamp
from treadle.policy.cron import check as check_timing
from treadle.policy.error_text import text_of
from treadle.storage import Bounds, bound_of, bounds_in
from treadle.storage.contract import Storage
from treadle.tasks.task import AnyTask

log = logging.getLogger("treadle")

TASK: Final = "treadle.schedule"
UNFINISHED: Final = (State.WAITING, State.READY, State.RUNNING)
ASK_AGAIN: Final = 60.0  # s until a function that raised is called again
_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,200}")  # it is part of the ids of its ticks

CatchUp = Literal["one", "all", "skip"]
Overlap = Literal["allow", "skip"]


class Definition(Struct, frozen=True, omit_defaults=True):
    """A schedule's definition as it is stored. Without a `job`, only the code that declares it can make its ticks."""

    name: str
    timing: Timing
    task: str
    catch_up: CatchUp = "one"
    overlap: Overlap = "allow"
    job: NewJob | None = None

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


read = msgspec.json.Decoder(Definition).decode
# Errors of a row that claims to be a schedule and cannot be read as one.
UNREADABLE: Final = (*errors.UNREADABLE, CronSimError, BadOption, OverflowError, StopIteration)


class Declared(Struct, frozen=True):
    """A schedule declared in code: its definition, and the task call that makes its ticks."""

    definition: Definition
    task: AnyTask
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    ask: Next | None = None

    def job(self) -> NewJob:
        """The job of a tick. Raises what computing its options raises."""
        return self.task.job(*self.args, **self.kwargs).new


class ScheduleEntry:
    """The decoded row of a schedule: its definition, its cursor, and whether it is paused."""

    def __init__(self, row: Record) -> None:
        checkpoints = dict(row.checkpoints)
        self.row = row
        self.definition = read(checkpoints.get("definition") or row.job.payload)
        self.code = checkpoints.get("code", row.job.payload)  # the last definition from code; `upsert` leaves it
        cursor = checkpoints.get("cursor")
        # "": the time of the current run. A changed schedule does not make up ticks from before the change.
        self.cursor = row.created_at if cursor is None else float(cursor or row.started_at or row.created_at)
        self.last = checkpoints.get("last") or None
        self.refused = int(checkpoints.get("refused") or 0)  # ticks for which a bounded queue had no room
        self.rests = (
            checkpoints.get("paused") or None
        )  # "1": paused by an operator; "ended": its function returned None


def new_row(id: str, definition: Definition, declared: bool) -> NewJob:
    """A schedule as a job. If code declares it, only workers with that code run it, because their claims name its
    task."""
    name = definition.name
    return NewJob(
        id=f"treadle:schedule:{id}",
        task=task_name(name, declared),
        payload=definition.text(),
        queue=defaults.SYSTEM_QUEUE,
        lease=defaults.OWN_LEASE,
        key=f"{TASK} {name}",
        labels=(label(name),),
        keep=0.0,
        keep_failed=0.0,
    )


def task_name(name: str, declared: bool) -> str:
    return f"{TASK}:{name}" if declared else TASK


def label(name: str) -> str:
    return f"schedule={name}"


def changed(row: Record, checkpoints: Mapping[str, str], delay: float = 0.0) -> Outcome:
    """A change from outside: the schedule runs at once, with its new state, or after `delay` s."""
    return Outcome(
        id=row.job.id, version=row.version, state=State.READY, delay=delay, checkpoints=tuple(checkpoints.items())
    )


def a_tick(job: NewJob, name: str, id: str, instant: float | None) -> NewJob:
    """One job of a schedule. No caller could handle KeyHeld, so for a held key the holder is returned."""
    moment = () if instant is None else (("treadle-moment", aware(instant).isoformat()),)
    return replace(
        job,
        id=id,
        labels=(*job.labels, label(name)),
        headers=(*job.headers, ("treadle-schedule", name), *moment),
        key_conflict="keep" if job.key_conflict == "raise" else job.key_conflict,
    )


Prepare = Callable[[Sequence[NewJob]], Awaitable[tuple[NewJob, ...]]]
"""Returns the jobs as the app's middleware has changed them."""


class Ticker:
    """Runs the schedules of an app. The state of each schedule is in its row."""

    def __init__(
        self,
        storage: Callable[[], Awaitable[Storage]],
        declared: Mapping[str, Declared],
        tell: Callable[[BaseException], None],
        prepare: Prepare,
    ) -> None:
        self._storage, self._declared, self._tell, self._prepare = storage, declared, tell, prepare

    async def run(self, record: Record, now: float) -> Outcome:
        """One run, at the storage's time `now`. Raises StorageError. An error of user code is stored in the row and
        reported, and the schedule continues."""
        entry = ScheduleEntry(record)
        if entry.rests:
            return changed(record, {}, defaults.MAX_DELAY)
        definition, known = entry.definition, self._declared.get(entry.definition.name)
        ask = None if known is None else known.ask
        try:
            check_timing(definition.timing)
            # Ticks up to a future cursor, written while a clock was ahead, count as made now.
            moments, cursor = due(definition.timing, ask, min(entry.cursor, now), now, definition.catch_up)
            following = next(after(definition.timing, ask, cursor), None)
        except Exception as error:
            return self._failed(record, error, {"cursor": repr(entry.cursor)}, ASK_AGAIN)
        checkpoints = {"cursor": repr(cursor)}
        if moments and definition.overlap == "skip":
            moments = [] if await self._unfinished(entry.last) else moments[-1:]
        followups, problem = await self._ticks(definition, known, moments)
        followups, problem = await self._not_taken(followups, problem)
        uses = await (await self._storage()).limits(use=False) if followups else ()
        if definition.catch_up != "all" and _are_stopped(followups, uses):
            keeps = definition.catch_up == "one" and not await self._unfinished(entry.last)
            followups = followups[-1:] if keeps else ()
        ticks = len(followups)
        stored, followups, refused = await self._into_bounded(followups, bounds_in(uses))
        missing = ticks - len(stored) - len(followups)
        if stored or followups:
            checkpoints["last"] = (followups or stored)[-1].id
        if refused is not None:
            checkpoints["refused"] = str(entry.refused + missing)
        if following is None:
            checkpoints["paused"] = "ended"
        delay = defaults.MAX_DELAY if following is None else min(max(0.0, following - now), defaults.MAX_DELAY)
        if problem is not None:
            out = self._failed(record, problem, checkpoints, delay)
        elif refused is not None:
            log.warning("schedule %s: a tick was refused: %s", definition.name, refused)
            out = replace(changed(record, checkpoints, delay), error=text_of(refused))
        else:
            out = changed(record, checkpoints, delay)
        return replace(out, followups=followups)

    async def _into_bounded(
        self, ticks: tuple[NewJob, ...], bounds: Bounds
    ) -> tuple[tuple[NewJob, ...], tuple[NewJob, ...], QueueFull | None]:
        """Enqueue the ticks of bounded queues now, because a bound does not apply to follow-up jobs. Returns these
        ticks, the others, which are stored with the outcome, and the last refusal. If the run is repeated, it stores no
        tick twice: the instant of a tick is part of its id."""
        storage = await self._storage()
        bounded = [job for job in ticks if bound_of(bounds, job.queue) is not None]
        stored, refused = [], None
        for job in bounded:
            try:
                await storage.enqueue([job])
            except QueueFull as error:
                refused = error
            else:
                stored.append(job)
        return tuple(stored), tuple(job for job in ticks if job not in bounded) if bounded else ticks, refused

    async def _ticks(
        self, definition: Definition, known: Declared | None, moments: Sequence[float]
    ) -> tuple[tuple[NewJob, ...], Exception | None]:
        """The jobs of these instants, and the error of those that could not be made."""
        followups, problem = [], None
        for instant in moments:
            try:
                job = definition.job if known is None else known.job()
                assert job is not None
            except Exception as error:
                problem = error
            else:
                followups.append(a_tick(job, definition.name, f"cron:{definition.name}:{stamp(instant)}", instant))
        try:
            return await self._prepare(followups), problem
        except Exception as error:  # raised by a middleware
            return (), error

    async def _not_taken(
        self, followups: tuple[NewJob, ...], problem: Exception | None
    ) -> tuple[tuple[NewJob, ...], Exception | None]:
        """The jobs whose ids no other caller has stored: the storage would return such a row in place of the tick,
        unnoticed."""
        rows = await (await self._storage()).get([job.id for job in followups]) if followups else ()
        foreign = {row.job.id: row for row in rows if row is not None}
        for job in followups:
            row = foreign.get(job.id)
            if row is None or (row.job.queue, row.job.task) == (job.queue, job.task):
                foreign.pop(job.id, None)
            else:
                problem = ForeignRow(job.id, row.job.queue, job.queue)
        return (tuple(job for job in followups if job.id not in foreign) if foreign else followups), problem

    def _failed(self, record: Record, error: Exception, checkpoints: Mapping[str, str], delay: float) -> Outcome:
        log.error(
            "schedule %s: could not make the job of this tick", ScheduleEntry(record).definition.name, exc_info=error
        )
        self._tell(error)
        return replace(changed(record, checkpoints, delay), error=text_of(error))

    async def _unfinished(self, last: str | None) -> bool:
        """Whether the job of the last tick is unfinished. If a key's holder was returned for it, it does not count."""
        if last is None:
            return False
        [row] = await (await self._storage()).get([last])
        return row is not None and not row.state.final


def _are_stopped(ticks: Sequence[NewJob], uses: Sequence[LimitUse]) -> bool:
    """Whether these jobs cannot start because their queue, or a limit that they name, is paused."""
    paused = {use.key for use in uses if use.rule.slots == 0}
    queues, limits = {f"queue:{job.queue}" for job in ticks}, {name for job in ticks for name, _ in job.limits}
    return not paused.isdisjoint(queues | limits | {name.partition(":")[0] for name in limits})


def check(name: object, catch_up: object, overlap: object) -> None:
    """Raise BadOption for an invalid name, catch_up or overlap."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadOption("name", f"expected 1-200 characters A-Z a-z 0-9 . _ : @ -, found {name!r}; give name=")
    if catch_up not in ("one", "all", "skip"):
        raise BadOption("catch_up", f"expected 'one', 'all' or 'skip', found {catch_up!r}")
    if overlap not in ("allow", "skip"):
        raise BadOption("overlap", f"expected 'allow' or 'skip', found {overlap!r}")
