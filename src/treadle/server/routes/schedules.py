"""The operations on schedules: create, list, change, pause, trigger, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from treadle.scheduling import CatchUp, Overlap, Schedule
from treadle.server.incoming_rows import users_row
from treadle.server.middleware import for_everybody
from treadle.server.operation import Call, Operation
from treadle.server.views import JobAsked, JobView, spec_of, view
from treadle.storage import messages
from treadle.tasks.json_options import Name

if TYPE_CHECKING:
    from treadle.app_core import AppCore


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


class ScheduleView(Struct, frozen=True, kw_only=True):
    """The current state of a schedule.

    next_at  its next tick; null while it is paused, or until its timing function has been called
    last     the id of its last job
    error    why its last job could not be enqueued
    """

    name: str
    timing: str
    task: str
    catch_up: CatchUp
    overlap: Overlap
    paused: bool
    next_at: float | None
    last: str | None
    error: str | None


class ScheduleViews(Struct, frozen=True):
    schedules: Sequence[ScheduleView]


class ScheduleRoutes:
    """The operations on the schedules of one app. Tokens that are bound to queues have no right to them."""

    def __init__(self, core: AppCore) -> None:
        self._core = core

    def operations(self) -> list[Operation]:
        made, one = Operation, "/v1/schedules/{name}"
        return [
            made(
                method="GET",
                path="/v1/schedules",
                run=self.list,
                tag="schedules",
                scope="read",
                summary="List all schedules, by name",
                gives=ScheduleViews,
            ),
            made(
                method="GET",
                path=one,
                run=self.get,
                tag="schedules",
                scope="read",
                summary="Show a schedule",
                gives=ScheduleView,
                others=(404,),
            ),
            made(
                method="PUT",
                path=one,
                run=self.put,
                tag="schedules",
                scope="operate",
                takes=ScheduleAsked,
                summary="Create or change a schedule, with immediate effect on all workers",
                gives=ScheduleView,
                others=(409,),
            ),
            made(
                method="DELETE",
                path=one,
                run=self.delete,
                tag="schedules",
                scope="operate",
                summary="Delete a schedule; its jobs stay",
                others=(404, 409),
            ),
            made(
                method="POST",
                path=one + "/pause",
                run=self.pause,
                tag="schedules",
                scope="operate",
                summary="Pause a schedule",
                others=(404, 409),
            ),
            made(
                method="POST",
                path=one + "/resume",
                run=self.resume,
                tag="schedules",
                scope="operate",
                summary="Resume a schedule from now on",
                others=(404, 409),
            ),
            made(
                method="POST",
                path=one + "/trigger",
                run=self.trigger,
                tag="schedules",
                scope="operate",
                summary="Enqueue one job of a schedule now, in addition to its ticks",
                gives=JobView,
                status=201,
                others=(404,),
            ),
        ]

    async def list(self, call: Call[None, messages.Nothing]) -> ScheduleViews:
        for_everybody(call.token, "schedules")
        return ScheduleViews([_shown(each) for each in await self._core.schedules.list()])

    async def get(self, call: Call[None, messages.Nothing]) -> ScheduleView:
        return _shown(await self._core.schedules.get(self._name(call)))

    async def put(self, call: Call[ScheduleAsked, messages.Nothing]) -> ScheduleView:
        name, asked = self._name(call), call.body
        spec = None if asked.job is None else spec_of(self._core, asked.job)
        if spec is not None:
            users_row(spec.new)
        return _shown(
            await self._core.schedules.upsert(
                name,
                spec,
                cron=asked.cron,
                every=asked.every,
                tz=asked.tz,
                catch_up=asked.catch_up,
                overlap=asked.overlap,
            )
        )

    async def delete(self, call: Call[None, messages.Nothing]) -> messages.Nothing:
        await self._core.schedules.delete(self._name(call))
        return messages.Nothing()

    async def pause(self, call: Call[None, messages.Nothing]) -> messages.Nothing:
        await self._core.schedules.pause(self._name(call))
        return messages.Nothing()

    async def resume(self, call: Call[None, messages.Nothing]) -> messages.Nothing:
        await self._core.schedules.resume(self._name(call))
        return messages.Nothing()

    async def trigger(self, call: Call[None, messages.Nothing]) -> JobView:
        job = await self._core.schedules.trigger(self._name(call))
        return view(await self._core.jobs.get(job.id), call.redaction)

    @staticmethod
    def _name(call: Call[Any, Any]) -> str:
        for_everybody(call.token, "schedules")
        return call.part("name")


def _shown(found: Schedule) -> ScheduleView:
    return ScheduleView(
        name=found.name,
        timing=found.timing,
        task=found.task,
        catch_up=found.catch_up,
        overlap=found.overlap,
        paused=found.paused,
        next_at=None if found.next_at is None else found.next_at.timestamp(),
        last=found.last,
        error=found.error,
    )
