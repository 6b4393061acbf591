"""What a schedule is as a row, and what one run of it does: the ticks that are due and its new cursor, in one settle.

Without it somebody would have to watch the clock, and would die between deciding on a tick and sending it. There is no
such process: a schedule is a job that comes back at its next moment, in any worker.
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

from treadle.core import defaults
from treadle.core.clock import moment as aware
from treadle.core.model import NewJob, Outcome, Record, State
from treadle.errors import BadOption, ForeignRow
from treadle.policy import judge
from treadle.policy.cron import Next, Timing, after, due, stamp
from treadle.policy.cron import check as check_timing
from treadle.storage.contract import Storage
from treadle.tasks.task import Task

log = logging.getLogger("treadle")

TASK: Final = "treadle.schedule"
UNFINISHED: Final = (State.WAITING, State.READY, State.RUNNING)
ASK_AGAIN: Final = 60.0  # s until a function that raised, and so has no next moment, is asked again
_NAME = re.compile(r"[A-Za-z0-9._:@-]{1,200}")  # it stands in the ids of its ticks

CatchUp = Literal["one", "all", "skip"]
Overlap = Literal["allow", "skip"]


class Definition(Struct, frozen=True, omit_defaults=True):
    """What a schedule does, as it is stored. Without a `job` only the code that declared it can make its ticks."""

    name: str
    timing: Timing
    task: str
    catch_up: CatchUp = "one"
    overlap: Overlap = "allow"
    job: NewJob | None = None

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


read = msgspec.json.Decoder(Definition).decode
# What a row raises that says it is a schedule and is none.
UNREADABLE: Final = (
    msgspec.MsgspecError,
    CronSimError,
    BadOption,
    ValueError,
    OverflowError,
    StopIteration,
    RecursionError,
)


class Declared(Struct, frozen=True):
    """A schedule written in code: its definition, and how its ticks are made."""

    definition: Definition
    task: Task[..., Any, Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    ask: Next | None = None

    def job(self) -> NewJob:
        """A tick. Raises whatever computing its options raises."""
        return self.task.job(*self.args, **self.kwargs).new


class Entry:
    """The row of a schedule, read: what it does now, how far it is, whether it is paused."""

    def __init__(self, row: Record) -> None:
        memo = dict(row.memo)
        self.row = row
        self.definition = read(memo.get("definition") or row.job.payload)
        self.code = memo.get("code", row.job.payload)  # what code said last; an edit by hand leaves it as it is
        cursor = memo.get("cursor")
        # "": from the moment at which this is read; an edited schedule does not make up for what it never was.
        self.cursor = row.created_at if cursor is None else float(cursor or row.started_at or row.created_at)
        self.last = memo.get("last") or None
        self.rests = memo.get("paused") or None  # "1": paused by somebody; "ended": its function said never again


def new_row(id: str, definition: Definition, declared: bool) -> NewJob:
    """A schedule as a job. One that code declared is run only by workers that have the code: their claims name it."""
    name = definition.name
    return NewJob(
        id=f"treadle:schedule:{id}",
        task=task_name(name, declared),
        payload=definition.text(),
        queue=defaults.OWN_QUEUE,
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


def changed(row: Record, memo: Mapping[str, str], delay: float = 0.0) -> Outcome:
    """An edit from outside: it is run at once, under what it is now, or after `delay`."""
    return Outcome(id=row.job.id, version=row.version, state=State.READY, delay=delay, memo=tuple(memo.items()))


def a_tick(job: NewJob, name: str, id: str, at: float | None) -> NewJob:
    """One job of a schedule. Nobody is there to be told that its key is held, so it is then answered by the holder."""
    moment = () if at is None else (("treadle-moment", aware(at).isoformat()),)
    return replace(
        job,
        id=id,
        labels=(*job.labels, label(name)),
        headers=(*job.headers, ("treadle-schedule", name), *moment),
        key_conflict="keep" if job.key_conflict == "raise" else job.key_conflict,
    )


Prepare = Callable[[Sequence[NewJob]], Awaitable[tuple[NewJob, ...]]]
"""Jobs as the middleware of the app lets them through."""


class Ticker:
    """Runs schedules. One for all of an app; what belongs to one schedule is in its row."""

    def __init__(
        self,
        storage: Callable[[], Awaitable[Storage]],
        declared: Mapping[str, Declared],
        tell: Callable[[BaseException], None],
        prepare: Prepare,
    ) -> None:
        self._storage, self._declared, self._tell, self._prepare = storage, declared, tell, prepare

    async def run(self, record: Record, now: float) -> Outcome:
        """One run, at the storage's moment `now`. Raises StorageError; whatever the user's code raises is noted in
        the row and told, and the schedule goes on."""
        entry = Entry(record)
        if entry.rests:
            return changed(record, {}, defaults.MAX_DELAY)
        definition, known = entry.definition, self._declared.get(entry.definition.name)
        ask = None if known is None else known.ask
        try:
            check_timing(definition.timing)
            # Ticks that a clock made while it was ahead count as made now.
            moments, cursor = due(definition.timing, ask, min(entry.cursor, now), now, definition.catch_up)
            following = next(after(definition.timing, ask, cursor), None)
        except Exception as error:
            return self._failed(record, error, {"cursor": repr(entry.cursor)}, ASK_AGAIN)
        memo = {"cursor": repr(cursor)}
        if moments and definition.overlap == "skip":
            moments = [] if await self._unfinished(entry.last) else moments[-1:]
        then, problem = await self._ticks(definition, known, moments)
        then, problem = await self._not_taken(then, problem)
        if then:
            memo["last"] = then[-1].id
        if following is None:
            memo["paused"] = "ended"
        delay = defaults.MAX_DELAY if following is None else min(max(0.0, following - now), defaults.MAX_DELAY)
        out = changed(record, memo, delay) if problem is None else self._failed(record, problem, memo, delay)
        return replace(out, then=then)

    async def _ticks(
        self, definition: Definition, known: Declared | None, moments: Sequence[float]
    ) -> tuple[tuple[NewJob, ...], Exception | None]:
        """The jobs of these moments, and what went wrong with those there are none of."""
        then, problem = [], None
        for at in moments:
            try:
                job = definition.job if known is None else known.job()
                assert job is not None
            except Exception as error:
                problem = error
            else:
                then.append(a_tick(job, definition.name, f"cron:{definition.name}:{stamp(at)}", at))
        try:
            return await self._prepare(then), problem
        except Exception as error:  # a middleware's
            return (), error

    async def _not_taken(
        self, then: tuple[NewJob, ...], problem: Exception | None
    ) -> tuple[tuple[NewJob, ...], Exception | None]:
        """Those whose ids no other caller has stored: such a row would swallow the tick without a word."""
        rows = await (await self._storage()).get([job.id for job in then]) if then else ()
        foreign = {row.job.id: row for row in rows if row is not None}
        for job in then:
            row = foreign.get(job.id)
            if row is None or (row.job.queue, row.job.task) == (job.queue, job.task):
                foreign.pop(job.id, None)
            else:
                problem = ForeignRow(job.id, row.job.queue, job.queue)
        return (tuple(job for job in then if job.id not in foreign) if foreign else then), problem

    def _failed(self, record: Record, error: Exception, memo: Mapping[str, str], delay: float) -> Outcome:
        log.error("schedule %s: no job was made", Entry(record).definition.name, exc_info=error)
        self._tell(error)
        return replace(changed(record, memo, delay), error=judge.text_of(error))

    async def _unfinished(self, last: str | None) -> bool:
        """Whether the job of the last tick is still to end; one answered by the holder of a key is that holder's."""
        if last is None:
            return False
        [row] = await (await self._storage()).get([last])
        return row is not None and not row.state.final


def check(name: object, catch_up: object, overlap: object) -> None:
    """Raise BadOption for what cannot be a schedule."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadOption("name", f"a schedule's name has 1-200 of A-Z a-z 0-9 . _ : @ -, found {name!r}; give name=")
    if catch_up not in ("one", "all", "skip"):
        raise BadOption("catch_up", f"expected 'one', 'all' or 'skip', found {catch_up!r}")
    if overlap not in ("allow", "skip"):
        raise BadOption("overlap", f"expected 'allow' or 'skip', found {overlap!r}")
