"""The room of schedules: what runs again and again, made, looked at and stopped over HTTP.

Without it only programs in Python could make a job come back every night.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from treadle.scheduling.schedules import Schedule
from treadle.scheduling.ticker import CatchUp, Overlap
from treadle.server.incoming_rows import users_row
from treadle.server.middleware import for_everybody
from treadle.server.operation import Call, Operation
from treadle.server.views import JobAsked, JobView, Name, spec_of, view
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.app import App


class ScheduleAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule to make, or what to change of one.

    job          what each tick sends; needed for a new one. Of one declared in code only the rest can be changed
    cron, every  a cron line in the zone `tz`, or seconds between ticks; one of them, for a new one
    catch_up     after an outage: one tick for all that were missed (one), each of them (all), none (skip)
    overlap      whether a tick comes while the job of the last one is unfinished: allow, skip
    """

    job: JobAsked | None = None
    cron: Name | None = None
    every: Annotated[float, Meta(gt=0, description="Seconds.")] | None = None
    tz: Name = "UTC"
    catch_up: CatchUp | None = None
    overlap: Overlap | None = None


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule as it is now.

    next_at  its next moment; null while it is paused, or where a function is still to be asked
    last     the id of its last job
    error    why its last job could not be made
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
    """The schedules of one app. They are everybody's: no token that is bound to queues has a right to them."""

    def __init__(self, app: App) -> None:
        self._app = app

    def operations(self) -> list[Operation]:
        made, one = Operation, "/v1/schedules/{name}"
        return [
            made(
                method="GET",
                path="/v1/schedules",
                run=self.list,
                tag="schedules",
                scope="read",
                summary="All schedules, by name",
                gives=ScheduleViews,
            ),
            made(
                method="GET",
                path=one,
                run=self.get,
                tag="schedules",
                scope="read",
                summary="Look at a schedule",
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
                summary="Make a schedule, or change it, at once and everywhere",
                gives=ScheduleView,
                others=(409,),
            ),
            made(
                method="DELETE",
                path=one,
                run=self.delete,
                tag="schedules",
                scope="operate",
                summary="Let it go; the jobs it made stay",
                others=(404, 409),
            ),
            made(
                method="POST",
                path=one + "/pause",
                run=self.pause,
                tag="schedules",
                scope="operate",
                summary="No ticks until it is resumed",
                others=(404, 409),
            ),
            made(
                method="POST",
                path=one + "/resume",
                run=self.resume,
                tag="schedules",
                scope="operate",
                summary="Tick again, from now on",
                others=(404, 409),
            ),
            made(
                method="POST",
                path=one + "/trigger",
                run=self.trigger,
                tag="schedules",
                scope="operate",
                summary="One job of it now, beside its ticks",
                gives=JobView,
                status=201,
                others=(404,),
            ),
        ]

    async def list(self, call: Call[None, messages.Nothing]) -> ScheduleViews:
        for_everybody(call.token, "schedules")
        return ScheduleViews([_shown(each) for each in await self._app.schedules.list()])

    async def get(self, call: Call[None, messages.Nothing]) -> ScheduleView:
        return _shown(await self._app.schedules.get(self._name(call)))

    async def put(self, call: Call[ScheduleAsked, messages.Nothing]) -> ScheduleView:
        name, asked = self._name(call), call.body
        spec = None if asked.job is None else spec_of(self._app, asked.job)
        if spec is not None:
            users_row(spec.new)
        return _shown(
            await self._app.schedules.upsert(
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
        await self._app.schedules.delete(self._name(call))
        return messages.Nothing()

    async def pause(self, call: Call[None, messages.Nothing]) -> messages.Nothing:
        await self._app.schedules.pause(self._name(call))
        return messages.Nothing()

    async def resume(self, call: Call[None, messages.Nothing]) -> messages.Nothing:
        await self._app.schedules.resume(self._name(call))
        return messages.Nothing()

    async def trigger(self, call: Call[None, messages.Nothing]) -> JobView:
        job = await self._app.schedules.trigger(self._name(call))
        return view(await self._app.jobs.get(job.id))

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
