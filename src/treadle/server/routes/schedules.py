"""The operations on schedules: create, list, change, pause, trigger, delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from treadle.core.model import Record, State
from treadle.core.payload_redaction import Redaction
from treadle.policy import cron as when
from treadle.policy.timing_words import words
from treadle.scheduling import UNREADABLE, CatchUp, Overlap, Schedule, last_ids, upcoming, upcoming_of, words_of
from treadle.server.errors import Refused
from treadle.server.incoming_rows import users_row
from treadle.server.middleware import for_everybody
from treadle.server.operation import Call, Operation
from treadle.server.time_slices import in_turns
from treadle.server.views import JobAsked, JobView, spec_of, view
from treadle.storage import messages
from treadle.tasks.json_options import Name

if TYPE_CHECKING:
    from treadle.app.core import AppCore


IDS: Final = 5_000  # ids of one read


class ScheduleAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new schedule, or changes of one.

    job          the job that each tick enqueues; required for a new schedule, fixed for one that is declared in code
    cron, every  a cron line in the zone `tz`, or seconds between ticks; a new schedule needs one of them
    catch_up     after an outage: one tick for all missed ones (one), each of them (all), or none (skip)
    overlap      while the job of the last tick is unfinished: enqueue the next one (allow), or not (skip)
    """

    job: JobAsked | None = None
    cron: Name | None = None
    every: Annotated[float, Meta(gt=0, description="Seconds.")] | None = None
    tz: Name = "UTC"
    catch_up: CatchUp | None = None
    overlap: Overlap | None = None


class LastJob(Struct, frozen=True):
    """A job of a schedule. at: when it was created."""

    id: str
    state: State
    at: float


class ScheduleView(Struct, frozen=True, kw_only=True):
    """The current state of a schedule.

    timing    its cron line and zone, its interval, or "a function"; `words`: the same in words
    cron, tz  its cron line and the zone of that line; null for another timing
    every     its interval in seconds; null for another timing
    declared  whether code declares it: then its job cannot be changed here
    next_at   its next tick; null while it is paused, or until its timing function has been called
    upcoming  its next five ticks, or as many as are known
    last      the id of its last job
    recent    its last jobs that are still stored, the newest first, 20 at most; without those that `trigger` enqueued
    error     why its last job could not be enqueued
    """

    name: str
    timing: str
    words: str
    cron: str | None
    tz: str | None
    every: float | None
    declared: bool
    upcoming: Sequence[float]
    recent: Sequence[LastJob]
    task: str
    catch_up: CatchUp
    overlap: Overlap
    paused: bool
    next_at: float | None
    last: str | None
    error: str | None


class ScheduleViews(Struct, frozen=True):
    schedules: Sequence[ScheduleView]


class TimingAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """The timing of a schedule: `cron`, a line in the zone `tz`, or `every`, seconds."""

    cron: Name | None = None
    every: Annotated[float, Meta(gt=0, description="Seconds.")] | None = None
    tz: Name = "UTC"


class TimingView(Struct, frozen=True):
    """A timing in words, and its first five ticks if it began now."""

    words: str
    upcoming: Sequence[float]


operate = partial(Operation, tag="schedules", scope="operate", others=(404, 409))


class ScheduleRoutes:
    """The operations on the schedules of one app. Tokens that are bound to queues have no right to them."""

    def __init__(self, core: AppCore) -> None:
        self._core = core

    @Operation("GET /v1/schedules", tag="schedules", scope="read")
    async def list(self, call: Call[None, messages.Nothing]) -> ScheduleViews:
        """List all schedules, by name."""
        for_everybody(call.token, "schedules")
        return ScheduleViews(await self._shown(await self._core.schedules.list(), call.redaction))

    @Operation("GET /v1/schedules/{name}", tag="schedules", scope="read", others=(404,))
    async def get(self, call: Call[None, messages.Nothing]) -> ScheduleView:
        """Show a schedule."""
        [shown] = await self._shown([await self._core.schedules.get(self._name(call))], call.redaction)
        return shown

    @Operation("POST /v1/schedules/preview", tag="schedules", scope="read")
    async def preview(self, call: Call[TimingAsked, messages.Nothing]) -> TimingView:
        """Show a timing in words, and when it would fire."""
        body = call.body
        if (body.cron is None) is (body.every is None):
            raise Refused(422, "wrong_shape", "expected cron or every, and not both")
        timing = when.every(body.every) if body.cron is None else when.cron(body.cron, body.tz)
        return TimingView(words(timing), upcoming_of(timing, self._core.now()))

    async def _shown(self, schedules: Sequence[Schedule], redaction: Redaction) -> Sequence[ScheduleView]:
        """The schedules with their last jobs, which one read finds by the ids of their ticks."""
        now = self._core.now()
        about = await in_turns(lambda schedule: _About(schedule, now), schedules)
        ids = [id for entry in about for id in entry.ids]
        rows: dict[str, Record] = {}
        for start in range(0, len(ids), IDS):
            page = await self._core.storage.get(ids[start : start + IDS])
            rows |= {row.job.id: row for row in page if row is not None}
        return [entry.view(rows, redaction) for entry in about]

    @operate(
        "PUT /v1/schedules/{name}",
        others=(409,),
        audit="schedule.set",
        details=("cron", "every", "tz", "catch_up", "overlap"),
    )
    async def put(self, call: Call[ScheduleAsked, messages.Nothing]) -> ScheduleView:
        """Create or change a schedule, with immediate effect on all workers."""
        name, body = self._name(call), call.body
        spec = None if body.job is None else spec_of(self._core, body.job)
        if spec is not None:
            users_row(spec.new)
        schedule = await self._core.schedules.upsert(
            name,
            spec,
            cron=body.cron,
            every=body.every,
            tz=body.tz,
            catch_up=body.catch_up,
            overlap=body.overlap,
        )
        [shown] = await self._shown([schedule], call.redaction)
        return shown

    @operate("DELETE /v1/schedules/{name}", audit="schedule.delete")
    async def delete(self, call: Call[None, messages.Nothing]) -> messages.Nothing:
        """Delete a schedule; its jobs stay."""
        await self._core.schedules.delete(self._name(call))
        return messages.Nothing()

    @operate("POST /v1/schedules/{name}/pause", audit="schedule.pause")
    async def pause(self, call: Call[None, messages.Nothing]) -> messages.Nothing:
        """Pause a schedule."""
        await self._core.schedules.pause(self._name(call))
        return messages.Nothing()

    @operate("POST /v1/schedules/{name}/resume", audit="schedule.resume")
    async def resume(self, call: Call[None, messages.Nothing]) -> messages.Nothing:
        """Resume a schedule from now on."""
        await self._core.schedules.resume(self._name(call))
        return messages.Nothing()

    @operate("POST /v1/schedules/{name}/trigger", status=201, others=(404,), audit="schedule.trigger")
    async def trigger(self, call: Call[None, messages.Nothing]) -> JobView:
        """Enqueue one job of a schedule now, in addition to its ticks."""
        job = await self._core.schedules.trigger(self._name(call))
        return view(await self._core.jobs.get(job.id), call.redaction)

    @staticmethod
    def _name(call: Call[Any, Any]) -> str:
        for_everybody(call.token, "schedules")
        return call.part("name")


class _About:
    """Words, next ticks and ids of the last ticks, from the timing of a schedule.

    A timing in a row that another program has stored may be invalid.
    """

    def __init__(self, schedule: Schedule, now: float) -> None:
        self.schedule = schedule
        self.words, self.upcoming, self.ids = schedule.timing, list[float](), list[str]()
        with suppress(*UNREADABLE, ArithmeticError):
            self.words = words_of(schedule)
            self.upcoming = upcoming(schedule)
            self.ids = last_ids(schedule, now)

    def view(self, rows: Mapping[str, Record], redaction: Redaction) -> ScheduleView:
        schedule = self.schedule
        jobs = [rows[id] for id in self.ids if id in rows]
        return ScheduleView(
            name=schedule.name,
            timing=schedule.timing,
            words=self.words,
            cron=schedule.cron,
            tz=schedule.tz,
            every=schedule.every,
            declared=schedule.declared,
            upcoming=self.upcoming,
            recent=[LastJob(row.job.id, row.state, row.created_at) for row in jobs],
            task=schedule.task,
            catch_up=schedule.catch_up,
            overlap=schedule.overlap,
            paused=schedule.paused,
            next_at=None if schedule.next_at is None else schedule.next_at.timestamp(),
            last=schedule.last,
            error=redaction.error(schedule.error),
        )
