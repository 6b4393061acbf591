"""The handle of one run of a pipeline: its state, its result, and how to cancel and delete it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from treadle.contrib.pipeline.handlers import travel_of
from treadle.contrib.pipeline.steps import URGENT
from treadle.core.job import Job
from treadle.core.model import Record, State
from treadle.storage import whole_row

if TYPE_CHECKING:
    from treadle.app import App


class RunState(Struct, frozen=True, kw_only=True):
    """The state of a run.

    step      the step that it has reached, or in which it ended
    state     the state of that step's job; once the run has ended, that of the run
    fields    the shared state when that step began; of a run that has succeeded, the final state
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
    """A run that was started. Its id is the id of its first step's job."""

    def __init__(
        self, app: App, id: str, step_of: Callable[[str], str | None], job: Job[Any, Any] | None = None
    ) -> None:
        self.id, self._app, self._step_of = id, app, step_of
        self._job = job or Job[Any, Any](id, "", app._core.client, None)

    async def result(self, timeout: float | timedelta | None = None) -> Finished:
        """The shared state at its end; `timeout` in seconds. Raises WorkflowFailed, which names the steps and children
        that failed, JobCancelled, UnknownJob and TimeoutError."""
        fields: Finished = await self._job.workflow.result(timeout)
        return fields

    async def state(self) -> RunState:
        """Its current state. Raises UnknownJob."""
        root, row = [await whole_row(self._app.storage, row) for row in await self._now()]
        travel = travel_of(self._app, row)
        fields, state, error = travel.fields, row.state, row.error
        if root.state.final:
            state, error = root.state, root.error
            if state is State.SUCCEEDED and root.value is not None:
                fields = self._app._core.client.decode(root, root.value, folded=True)
        step = self._step_of(row.job.task) or row.job.task
        return RunState(id=self.id, step=step, state=state, fields=fields, priority=travel.priority, error=error)

    async def position(self) -> int | None:
        """How many jobs are queued ahead of the job of its current step; None if that job is not queued. Raises
        UnknownJob."""
        _, row = await self._now()
        return await self._app.jobs.position(row.job.id) if row.queue_position is not None else None

    async def cancel(self) -> int:
        """Cancel its unfinished jobs. Returns their number. Raises UnknownJob."""
        return await self._app.jobs.cancel(self.id)

    async def delete(self) -> None:
        """Cancel its unfinished jobs, and let all its rows be pruned within about a minute. Raises UnknownJob."""
        await self.cancel()
        await self._app.jobs.delete(workflow=self.id)

    async def _now(self) -> tuple[Record, Record]:
        """The jobs of the first step and of the current step. The job of each step waits for the next one, as the last
        job in its `after`."""
        root = row = await self._app.jobs.get(self.id)
        while row.function_done and row.after:
            [after] = await self._app._core.client.get([row.after[-1]])
            if after is None or self._step_of(after.job.task) is None:
                break
            if after.state is State.CANCELLED and row.state is State.FAILED:
                break  # it was cancelled before it began, because a child of this step failed
            row = after
        return root, row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PipelineRun) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id}>"
