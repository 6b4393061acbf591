"""The operations of operators on one job: pause and resume it, run it again from one of its steps, and fork it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.admin import typed_call
from treadle.server.auth import rights
from treadle.server.operation import Call, Operation
from treadle.server.routes.job_messages import Acted, Fork, Rerun
from treadle.server.views import JobView, view_of_one
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.admin import Jobs
    from treadle.app.core import AppCore


class JobOperatorRoutes:
    """These operations on the jobs of one app."""

    def __init__(self, core: AppCore) -> None:
        self._core = core

    @Operation("POST /v1/jobs/{id}/pause", tag="jobs", scope="operate", others=(404, 409), audit="job.pause")
    async def pause(self, call: Call[None, messages.Nothing]) -> Acted:
        """Pause an unfinished job until it is resumed. A running one is stopped."""
        return Acted(await self._jobs(call).recorded(call.receipt).pause(call.part("id")))

    @Operation("POST /v1/jobs/{id}/resume", tag="jobs", scope="operate", others=(404, 409), audit="job.resume")
    async def resume(self, call: Call[None, messages.Nothing]) -> Acted:
        """Resume a paused job."""
        return Acted(await self._jobs(call).recorded(call.receipt).resume(call.part("id")))

    @Operation(
        "POST /v1/jobs/{id}/rerun",
        tag="jobs",
        scope="operate",
        empty=b"{}",
        others=(404, 409),
        audit="job.rerun",
        details=("from_step",),
    )
    async def rerun(self, call: Call[Rerun, messages.Nothing]) -> Acted:
        """Run a job again from one of its stored steps. Later steps are deleted."""
        await self._jobs(call).recorded(call.receipt).rerun(call.part("id"), from_step=call.body.from_step)
        return Acted(1)

    @Operation(
        "POST /v1/jobs/{id}/fork",
        tag="jobs",
        scope="operate",
        most=None,
        empty=b"{}",
        status=201,
        others=(404, 409),
        audit="job.fork",
        details=("from_step",),
    )
    async def fork(self, call: Call[Fork, messages.Nothing]) -> JobView:
        """Enqueue a new job that continues from a stored step of this one.

        The token also needs the scope `enqueue`. Without a right to read jobs, the answer has no arguments.
        """
        rights.need(call.token, "enqueue")
        row, body = await self._jobs(call).get(call.part("id")), call.body
        positional, named = body.args, body.kwargs
        if positional is not None or named is not None:
            typed = typed_call(self._core.tasks, row.job.task, positional or [], named or {})
            positional, named = list(typed[0]), dict(typed[1])
        job = await self._jobs(call).fork(row.id, from_step=body.from_step, args=positional, kwargs=named)
        new = rights.shown(call.token, await self._jobs(call).whole(job), None)
        return view_of_one(new, call.redaction)

    def _jobs(self, call: Call[Any, Any]) -> Jobs:
        """A view of `app.jobs` with the queues of the caller's token."""
        return self._core.jobs.within(call.token.queues)
