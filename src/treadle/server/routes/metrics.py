"""The operations on metrics: series over time, and the tasks that ran or that the server's app has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import Meta, Struct

from treadle.core.payload_redaction import Redaction
from treadle.metrics import Metrics, Totals
from treadle.serialization.call_schema import call_schema
from treadle.server.kept_answer import KeptAnswers
from treadle.server.operation import Call, Operation
from treadle.storage import messages
from treadle.tasks.json_options import Name

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.tasks.task import AnyTask

HOUR: Final = 3_600.0
FRESH: Final = 10.0  # s for which the counts of tasks are kept: workers store theirs every 10 s

Instant = Annotated[float, Meta(ge=0)]


class Range(Struct, frozen=True, kw_only=True, rename={"start": "from", "end": "to"}):
    """The range of a series, and its filters.

    start, end   seconds since 1970; default: the last hour, until now
    step         seconds between two points, 60 at least; default: at most 300 points
    queue, task  only jobs of this queue, of this task
    """

    start: Instant | None = None
    end: Instant | None = None
    step: Annotated[float, Meta(gt=0)] | None = None
    queue: Name | None = None
    task: Name | None = None


class Counts(Struct, frozen=True):
    """Counts of the last hour: jobs that succeeded or failed, and attempts that failed and are tried again."""

    succeeded: int = 0
    failed: int = 0
    retried: int = 0


class TaskView(Struct, frozen=True, kw_only=True):
    """A task that ran in the last hour, or that the app of the server has.

    declared    whether the app of the server has it; null in the fields below if not
    queue       the queue of its jobs
    doc         the first paragraph of its docstring
    parameters  the JSON Schema of its arguments, with `x-positional` and `x-args` for those that have no name; null
                also if the annotations cannot be resolved
    run_p95     seconds that 95 of 100 runs did not exceed in the last hour; null: none was measured
    """

    name: str
    declared: bool
    queue: str | None = None
    doc: str | None = None
    parameters: dict[str, Any] | None = None
    last_hour: Counts = Counts()
    run_p95: float | None = None


class TaskViews(Struct, frozen=True):
    tasks: Sequence[TaskView]


class MetricsRoutes:
    """The operations on what the workers of one storage measured."""

    def __init__(self, core: AppCore) -> None:
        self._core = core
        self._totals = KeptAnswers[dict[str, Totals]](FRESH)

    @Operation("GET /v1/metrics", tag="metrics", scope="read")
    async def metrics(self, call: Call[None, Range]) -> Metrics:
        """Show counts and times of jobs over time, in at most 1,000 points."""
        query, token = call.query, call.token
        if query.queue is not None:
            call.allowed([query.queue])
        reader = self._core.metrics.within(token.queues)
        return await reader.read(
            since=query.start, until=query.end, step=query.step, queue=query.queue, task=query.task
        )

    @Operation("GET /v1/tasks", tag="metrics", scope="read")
    async def tasks(self, call: Call[None, messages.Nothing]) -> TaskViews:
        """List the tasks of the last hour and those of the server's app, with their parameters."""
        token = call.token
        totals = await self._totals.get(token.queues, lambda: self._core.metrics.within(token.queues).totals("task"))
        shown = {name: task for name, task in self._core.declared.items() if token.sees(task.queue) or name in totals}
        names = sorted({*totals, *shown})
        return TaskViews([_view(name, shown.get(name), totals.get(name), call.redaction) for name in names])


def _view(name: str, task: AnyTask | None, totals: Totals | None, redaction: Redaction) -> TaskView:
    counts = Counts() if totals is None else Counts(totals.succeeded, totals.failed, totals.retried)
    run_p95 = None if totals is None else totals.run.p95
    if task is None:
        return TaskView(name=name, declared=False, last_hour=counts, run_p95=run_p95)
    return TaskView(
        name=name,
        declared=True,
        queue=task.queue,
        doc=_doc(task),
        parameters=_parameters(task, redaction),
        last_hour=counts,
        run_p95=run_p95,
    )


def _doc(task: AnyTask) -> str | None:
    text = task.function.__doc__
    return " ".join(text.strip().partition("\n\n")[0].split()) if isinstance(text, str) and text.strip() else None


def _parameters(task: AnyTask, redaction: Redaction) -> dict[str, Any] | None:
    """The schema without the defaults of hidden parameters: a form would send them back as they are shown."""
    schema = call_schema(task._core.signature)
    if schema is None:
        return None
    shown = {
        name: {word: part for word, part in schema.items() if word != "default"} if redaction.hides(name) else schema
        for name, schema in schema["properties"].items()
    }
    return {**schema, "properties": shown}
