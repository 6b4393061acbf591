"""`app.schedules`: declares schedules in code, and lists, changes, pauses and deletes them at run time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin import Moved
from treadle.core import defaults
from treadle.core.clock import moment
from treadle.core.errors import BadOption, Stale, UnknownSchedule
from treadle.core.job import Job, JobSpec
from treadle.core.model import ASKED, SUPERSEDED, NewJob, Outcome, Record, State
from treadle.core.query_model import Query
from treadle.core.similar_names import closest
from treadle.execution import SystemTask
from treadle.policy import cron as when
from treadle.policy.cron import Next, Timing
from treadle.scheduling import ticker
from treadle.scheduling.ticker import CatchUp, Declared, Definition, Overlap, ScheduleEntry, Ticker
from treadle.storage import check_stays, pages, patiently
from treadle.storage.contract import Storage
from treadle.tasks.task import AnyTask

TRIES: Final = 10  # times that a change is repeated if the schedule ticks between read and write

Send = Callable[[Sequence[JobSpec[Any]]], Awaitable[list[Job[Any, Any]]]]


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule and its current state."""

    name: str
    timing: str  # its cron line and time zone, its interval, or "a function"
    task: str
    catch_up: CatchUp
    overlap: Overlap
    paused: bool
    next_at: datetime | None  # None: paused, or its function was not called yet or returned None
    last: str | None  # the id of its last job
    error: str | None  # why its last job could not be made
    id: str  # id of its row
    cron: str | None = None  # its cron line, and the zone of that line
    tz: str | None = None
    every: float | None = None  # its interval in seconds
    declared: bool = False  # whether code declares it, so that code makes its jobs
    refused: int = 0  # ticks that were not stored because their queue was full


class Schedules:
    """The schedules of the storage. A worker stores those that its code declares when it starts."""

    def __init__(
        self,
        storage: Callable[[], Awaitable[Storage]],
        send: Send,
        new_id: Callable[[], str],
        handle: Callable[[Record], Job[Any, Any]],
        tell: Callable[[BaseException], None],
        prepare: ticker.Prepare,
        moved: Moved,
    ) -> None:
        self._moved = moved
        self._storage, self._send, self._new_id, self._handle = storage, send, new_id, handle
        self._declared: dict[str, Declared] = {}
        self._ticker = Ticker(storage, self._declared, tell, prepare)
        self.tasks: dict[str, SystemTask] = {ticker.TASK: SystemTask(ticker.TASK, self._ticker.run, by_leader=True)}

    # --- declaring

    def declare(
        self,
        task: AnyTask,
        timing: Timing,
        ask: Next | None,
        name: str | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        catch_up: CatchUp,
        overlap: Overlap,
    ) -> None:
        """Declare a schedule in this process. Raises BadOption, and BadArgument if the arguments do not fit the
        task."""
        schedule_name, named = name or task.name, dict(kwargs or {})
        ticker.check(schedule_name, catch_up, overlap)
        known = self._declared.get(schedule_name)
        if known is not None and (known.task is task or known.task.name != task.name):
            raise BadOption(
                "name", f"a schedule named {schedule_name!r} is already declared; give one of the two name="
            )
        task._core.signature.encode_call(tuple(args), named)
        definition = Definition(schedule_name, timing, task.name, catch_up, overlap)
        self._declared[schedule_name] = Declared(definition, task, tuple(args), named, ask)
        own = ticker.task_name(schedule_name, declared=True)
        self.tasks[own] = SystemTask(own, self._ticker.run, serves=task.name, by_leader=True)

    @property
    def declarations(self) -> Mapping[str, Declared]:
        """The schedules that code declares, by name."""
        return self._declared

    async def store(self) -> None:
        """Store the schedules declared here, and update those whose declaration has changed. Any number of workers may
        do this concurrently: there is one row per name. Raises StorageError."""
        if not self._declared:
            return
        storage, known = await self._storage(), list(self._declared.values())
        new = [self._row(declared.definition, declared=True) for declared in known]
        rows = await patiently(partial(storage.enqueue, new))
        for declared, row in zip(known, rows, strict=True):
            await self._take_over(storage, declared.definition, row)

    def _row(self, definition: Definition, declared: bool) -> NewJob:
        return ticker.new_row(self._new_id(), definition, declared)

    async def _take_over(self, storage: Storage, definition: Definition, row: Record) -> None:
        for _ in range(TRIES):
            entry, text = ScheduleEntry(row), definition.text()
            if row.job.task != ticker.task_name(definition.name, declared=True):  # `upsert` has created it
                out = _replaced(row, self._row(definition, declared=True))
            elif entry.code != text:
                checkpoints = {"definition": text, "code": text}
                same = entry.definition.timing == definition.timing
                later = defaults.MAX_DELAY if entry.rests else 0.0
                out = ticker.changed(row, checkpoints if same else checkpoints | {"cursor": ""}, later)
            else:
                return
            [answer] = await storage.settle([out])
            if answer.status == "applied":
                return
            new = self._row(definition, declared=True)
            [row] = await patiently(partial(storage.enqueue, [new]))  # its current row

    # --- reading

    async def list(self) -> list[Schedule]:
        """All schedules, by name. Rows that cannot be read are left out; `treadle doctor` reports them. Raises
        StorageError."""
        schedules = []
        async for row in self._rows():
            with suppress(*ticker.UNREADABLE):
                schedules.append(_shown(ScheduleEntry(row)))
        await self._moved.looked("app.schedules.list")
        return sorted(schedules, key=lambda schedule: schedule.name)

    async def get(self, name: str) -> Schedule:
        """One schedule. Raises UnknownSchedule."""
        schedule = _shown(await self._entry(name))
        await self._moved.looked("app.schedules.get")
        return schedule

    async def _entry(self, name: str) -> ScheduleEntry:
        row = await self._find(name)
        try:
            return ScheduleEntry(row)
        except ticker.UNREADABLE as error:
            what = f"the row of {name!r} is not a valid schedule ({error}): `treadle doctor --repair` removes it"
            raise BadOption("schedule", what) from error

    async def _rows(self) -> AsyncIterator[Record]:
        query = Query(queue=defaults.SYSTEM_QUEUE, state=ticker.UNFINISHED, order="oldest", limit=500, whole=True)
        async for page in pages(await self._storage(), query):
            for row in page.records:
                if row.job.task.partition(":")[0] == ticker.TASK:
                    yield row

    async def _find(self, name: str) -> Record:
        """Its row. Raises UnknownSchedule, with the most similar stored name."""
        label = ticker.label(name)
        query = Query(queue=defaults.SYSTEM_QUEUE, state=ticker.UNFINISHED, label=label, limit=10, whole=True)
        for row in (await (await self._storage()).find(query)).records:
            if row.job.task.partition(":")[0] == ticker.TASK:
                return row
        await check_stays(await self._storage())
        known = [shown async for row in self._rows() for shown in _names(row)]
        raise UnknownSchedule(name, closest(name, known))

    # --- changing

    async def pause(self, name: str) -> None:
        """Stop its ticks until it is resumed; deploys do not resume it. Raises UnknownSchedule."""
        await self._change(name, lambda entry: ticker.changed(entry.row, {"paused": "1"}, defaults.MAX_DELAY))

    async def resume(self, name: str) -> None:
        """Tick again, from now on; ticks missed during the pause are not made up. Raises UnknownSchedule."""
        await self._change(
            name, lambda entry: ticker.changed(entry.row, {"paused": "", "cursor": ""}) if entry.rests else None
        )

    async def delete(self, name: str) -> None:
        """Delete it; its jobs stay. If code declares it, the next worker with that code that starts stores it again.
        Raises UnknownSchedule."""
        await self._change(name, lambda entry: _gone(entry.row))

    async def trigger(self, name: str) -> Job[Any, Any]:
        """Enqueue one job of it now, in addition to its ticks, even if it is paused. Raises UnknownSchedule, and
        BadOption if only code that is not loaded here can make its jobs."""
        entry = await self._entry(name)
        known, job = self._declared.get(name), entry.definition.job
        if known is not None:
            job = known.job()
        if job is None:
            raise BadOption("schedule", f"code makes the jobs of {name!r}: use the app that declares it (--app)")
        spec: JobSpec[Any] = JobSpec(ticker.a_tick(job, name, self._new_id(), None), lambda text: text)
        [sent] = await self._send([spec])
        [row] = await (await self._storage()).get([sent.id])
        return sent if row is None else self._handle(row)

    async def upsert(
        self,
        name: str,
        spec: JobSpec[Any] | None = None,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        catch_up: CatchUp | None = None,
        overlap: Overlap | None = None,
    ) -> Schedule:
        """Create a schedule, or change the one of that name, for all workers at once.

        spec        the job of each tick: `task.options(...).job(...)`; required for a new schedule. The task's code is
                    needed only where it runs. The spec of a schedule that code declares cannot be changed.
        cron, every exactly one of them for a new schedule; without them the timing stays
        Raises BadOption.
        """
        ticker.check(name, catch_up or "one", overlap or "allow")
        if cron is not None and every is not None:
            raise BadOption("every", "give cron= or every=, not both")
        timing: Timing | None = when.every(every) if every is not None else None
        if cron is not None:
            timing = when.cron(cron, tz)
        for _ in range(TRIES):
            try:
                entry = await self._entry(name)
            except UnknownSchedule as error:
                if spec is None or timing is None:
                    like = "" if error.like is None else f" (did you mean {error.like!r}?)"
                    what = f"{name!r} is not stored{like}; a new one needs the job of each tick, and cron= or every="
                    raise BadOption("upsert", what) from None
                definition = Definition(name, timing, spec.new.task, catch_up or "one", overlap or "allow", spec.new)
                new = self._row(definition, declared=False)
                [row] = await patiently(partial((await self._storage()).enqueue, [new]))
                entry = ScheduleEntry(row)
                if row.job.id == new.id:
                    return _shown(entry)
            if await self._settle(self._edited(entry, spec, timing, catch_up, overlap)):
                return await self.get(name)
        await check_stays(await self._storage())
        raise Stale(name, "other calls keep changing it; repeat the call")

    def _edited(
        self,
        entry: ScheduleEntry,
        spec: JobSpec[Any] | None,
        timing: Timing | None,
        catch_up: CatchUp | None,
        overlap: Overlap | None,
    ) -> Outcome:
        old = entry.definition
        if spec is not None and old.job is None:
            raise BadOption(
                "upsert", f"{old.name!r} is declared in code, which makes its jobs: change its other fields only"
            )
        new = replace(
            old,
            timing=timing or old.timing,
            catch_up=catch_up or old.catch_up,
            overlap=overlap or old.overlap,
            job=old.job if spec is None else spec.new,
            task=old.task if spec is None else spec.new.task,
        )
        checkpoints = {"definition": new.text()} | ({} if new.timing == old.timing else {"cursor": ""})
        return ticker.changed(entry.row, checkpoints, defaults.MAX_DELAY if entry.rests else 0.0)

    async def _change(self, name: str, act: Callable[[ScheduleEntry], Outcome | None]) -> None:
        for _ in range(TRIES):
            out = act(await self._entry(name))
            if out is not None and await self._settle(out):
                return
            await check_stays(await self._storage())
            if out is None:
                return
        raise Stale(name, "other calls keep changing it; repeat the call")

    async def _settle(self, out: Outcome) -> bool:
        [answer] = await (await self._storage()).settle([out])
        return answer.status == "applied"


def _replaced(row: Record, new: NewJob) -> Outcome:
    return Outcome(
        id=row.job.id, version=row.version, state=State.CANCELLED, reason=SUPERSEDED, followups=(new,), keep=0.0
    )


def _gone(row: Record) -> Outcome:
    return Outcome(id=row.job.id, version=row.version, state=State.CANCELLED, reason=ASKED, keep=0.0)


def _names(row: Record) -> list[str]:
    """The name of a schedule's row, as a list; empty if the row cannot be read."""
    try:
        return [ScheduleEntry(row).definition.name]
    except ticker.UNREADABLE:
        return []


def _shown(entry: ScheduleEntry) -> Schedule:
    row, definition = entry.row, entry.definition
    timing = definition.timing
    return Schedule(
        name=definition.name,
        timing=str(timing),
        cron=timing.line if isinstance(timing, when.Cron) else None,
        tz=timing.tz if isinstance(timing, when.Cron) else None,
        every=timing.seconds if isinstance(timing, when.Every) else None,
        declared=definition.job is None,
        task=definition.task,
        catch_up=definition.catch_up,
        overlap=definition.overlap,
        paused=entry.rests == "1",
        next_at=_next_at(entry),
        last=entry.last,
        error=row.error,
        id=row.job.id,
        refused=entry.refused,
    )


def _next_at(entry: ScheduleEntry) -> datetime | None:
    """The next instant of its cron line or interval; for a function, the one that it returned last."""
    if entry.rests:
        return None
    if isinstance(entry.definition.timing, when.FunctionTiming):
        due = entry.row.due_at if entry.row.state is State.READY else None
        return None if due is None else moment(due)
    return moment(next(when.after(entry.definition.timing, None, entry.cursor)))
