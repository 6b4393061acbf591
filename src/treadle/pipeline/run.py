"""One run of a pipeline: where it is, what it has come to, and how to be rid of it.

Without it whoever started a run would have to follow its jobs by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from treadle.core.job import Job
from treadle.core.model import Record, State
from treadle.pipeline.handlers import travel_of
from treadle.pipeline.steps import URGENT

if TYPE_CHECKING:
    from treadle.app import App


class RunState(Struct, frozen=True, kw_only=True):
    """Where a run is.

    step      the step it is at, or ended in
    state     of the job of that step; of the run, once that has ended
    fields    the shared state as that step got it; when the run has succeeded, as it is in the end
    priority  1 is the most urgent
    error     why it failed
    """

    id: str
    step: str
    state: State
    fields: Mapping[str, Any]
    priority: int = URGENT
    error: str | None = None


Finished = dict[str, Any]  # the shared state of a run that has succeeded


class PipelineRun:
    """A run that was started. Its id is that of the job of its first step."""

    def __init__(
        self, app: App, id: str, step_of: Callable[[str], str | None], job: Job[Any, Any] | None = None
    ) -> None:
        self.id, self._app, self._step_of = id, app, step_of
        self._job = job or Job[Any, Any](id, "", app.client, None)

    async def result(self, timeout: float | timedelta | None = None) -> Finished:
        """The shared state at its end. Raises WorkflowFailed, naming the steps and children that failed, JobCancelled,
        UnknownJob, TimeoutError."""
        found: Finished = await self._job.workflow.result(timeout)
        return found

    async def state(self) -> RunState:
        """Where it is now. Raises UnknownJob."""
        root, row = await self._now()
        travel = travel_of(self._app, row)
        fields, state, error = travel.fields, row.state, row.error
        if root.state.final:
            state, error = root.state, root.error
            if state is State.SUCCEEDED and root.value is not None:
                fields = self._app.client.decode(root, root.value, folded=True)
        step = self._step_of(row.job.task) or row.job.task
        return RunState(id=self.id, step=step, state=state, fields=fields, priority=travel.priority, error=error)

    async def position(self) -> int | None:
        """How many jobs stand before it in the line of the step it is at; None where it is not in line. Raises
        UnknownJob."""
        _, row = await self._now()
        return await self._app.jobs.position(row.job.id) if row.place is not None else None

    async def cancel(self) -> int:
        """Cancel what of it has not ended; answers how many jobs that were. Raises UnknownJob."""
        return await self._app.jobs.cancel(self.id)

    async def delete(self) -> None:
        """Cancel what has not ended, and let all of it go within a minute or so. Raises UnknownJob."""
        await self.cancel()
        await self._app.jobs.delete(workflow=self.id)

    async def _now(self) -> tuple[Record, Record]:
        """Its first job, and that of the step it is at: from each the last of those it went on as."""
        root = row = await self._app.jobs.get(self.id)
        while row.ran and row.after:
            [after] = await self._app.client.get([row.after[-1]])
            if after is None or self._step_of(after.job.task) is None:
                break
            if after.state is State.CANCELLED and row.state is State.FAILED:
                break  # it never began, because of the children of this one
            row = after
        return root, row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PipelineRun) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id}>"
