"""A pipeline: named steps, their handlers, and its runs. It names queues, tasks and labels consistently."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from msgspec.structs import asdict

from treadle.app import App
from treadle.contrib.pipeline.batches import BatchHandler
from treadle.contrib.pipeline.handlers import child_function, end_function, step_function
from treadle.contrib.pipeline.run import PipelineRun
from treadle.contrib.pipeline.steps import (
    URGENT,
    Step,
    StepStats,
    Travel,
    checked,
    label,
    labels_of,
    partition,
    priority_of,
    shifted,
)
from treadle.core import config, defaults
from treadle.core.errors import BadOption
from treadle.core.job import JobSpec
from treadle.core.model import State
from treadle.core.query_model import Query
from treadle.storage import pages
from treadle.tasks.batch import BatchTask
from treadle.tasks.options import Options, name_of
from treadle.tasks.task import Task
from treadle.worker import Worker

H = TypeVar("H", bound=Callable[..., Any])

END = "(end)"  # the job after the children of a last step


class Pipeline:
    """Steps that run in order, each on its own queue, with one state per run to which each step adds fields.

    name    of the pipeline; its tasks are called "name.step" and "name.step:child"
    steps   in order; the queue of a step has its name, that of a child "step:child"
    labels  the fields by which a run can be found: texts, integers, or lists of them, with the values at its start
    app     the app whose storage and workers it uses; None: a new one, as `App()` would create it here
    Raises BadOption for invalid steps.
    """

    def __init__(self, name: str, steps: Iterable[Step], labels: Iterable[str] = (), *, app: App | None = None) -> None:
        self.name = name_of(name, "pipeline")
        self.steps = checked(steps)
        if isinstance(labels, str):
            raise BadOption("labels", f"expected a list of names, found the text {labels!r}")
        self.labels = tuple(labels)
        self.app = app if app is not None else App(config.storage_url(None, config.caller_file()))
        self._children = {
            self.task_of(step.name, child): f"{step.name}:{child}"
            for step in self.steps.values()
            for child in step.children
        }
        self._steps = {self.task_of(step): step for step in self.steps}
        self._handled: set[str] = set()
        self._complete = False

    # --- handlers

    def handler(self, name: str) -> Callable[[H], H]:
        """Register a function as the handler of a step ("access-check") or of one of its children
        ("access-check:discord").

        Its parameters name the fields that it gets; a child also gets its own fields. A step returns a mapping that is
        merged into the state (field by field, the last writer wins), or None. Three fields of the mapping are special:
        `next_step` (a step, or None: the run ends here), `children` ({name: [{field: value}, ...]}: one job each) and
        `priority`. The return value of a child is its result.
        Raises BadOption for an unknown step, for a second handler, and for a task in place of a function.
        """
        step, child = self._free(name)

        def register(function: H) -> H:
            self._check_function(name, function)
            if child:
                task_function = child_function(self, name, function)
            else:
                task_function = step_function(self, step, function)
            self.app.task(name=self.task_of(step.name, child), **step.options(child or None))(task_function)
            self._handled.add(name)
            return function

        return register

    def batch_handler(
        self,
        name: str,
        *,
        size: int = defaults.BATCH_SIZE,
        max_wait: float | timedelta = defaults.BATCH_WAIT,
        by: Callable[[Any], Hashable] | None = None,
    ) -> Callable[[H], H]:
        """Register a function as the handler of a step, or of a child of it, that takes a list with one item per run.

        An item has the fields of its run and of the child, as the element type of the list says: a dict has all of
        them, a TypedDict, a dataclass or a Struct those that it names. The function returns a list with one result per
        item, in order, each as a handler returns it; an exception in place of a result fails that job alone.

        size      items per call at most
        max_wait  s for which the first item of a call waits for others
        by        (item) -> a key; only items with the same key share a call. It does not see results of children.
        Raises BadOption as `handler` does, and for items without fields; BadTask.
        """
        step, child = self._free(name)

        def register(function: H) -> H:
            self._check_function(name, function)
            handler = BatchHandler(self, step, child, function)
            key = None if by is None else lambda travel: by(handler.item(travel))
            self.app.batch(
                name=self.task_of(step.name, child), size=size, max_wait=max_wait, by=key, **step.options(child or None)
            )(handler.function())
            self._handled.add(name)
            return function

        return register

    def _free(self, name: str) -> tuple[Step, str]:
        """The step and the child of this name, if it has no handler yet. Raises BadOption."""
        step, _, child = name.partition(":")
        if step not in self.steps or (child and child not in self.steps[step].children):
            known = [*self.steps, *self._children.values()]
            raise BadOption("handler", f"{self.name} has no step {name!r}; expected one of {', '.join(known)}")
        if name in self._handled:
            raise BadOption("handler", f"{self.name}: {name!r} already has a handler")
        return self.steps[step], child

    def _check_function(self, name: str, function: object) -> None:
        if not isinstance(function, Task):
            return
        advice = "decorate the function itself, of which the pipeline makes a task"
        if isinstance(function, BatchTask):
            advice = f"for many runs in one call, decorate the function with @{self.name}.batch_handler({name!r})"
        raise BadOption(
            "handler", f"{self.name}: expected a function for {name!r}, found the task {function.name!r}; {advice}"
        )

    def worker(self, **settings: Any) -> Worker:
        """A worker for all its steps: `async with access.worker(): ...`. The settings are those of Worker. Raises
        BadOption for a step without a handler."""
        self.complete()
        queues = [step.queue_name for step in self.steps.values()]
        queues += [f"{step.queue_name}:{child}" for step in self.steps.values() for child in step.children]
        tasks = [*self._steps, *self._children, f"{self.name}.{END}"]
        return Worker(self.app, **{"queues": list(dict.fromkeys(queues)), "tasks": tasks, **settings})

    def complete(self) -> None:
        """Check that every step can run, and register the tasks without handlers. Call it before using a Worker that
        `worker()` has not created. Raises BadOption."""
        if self._complete:
            return
        lacking = [name for name in self._children.values() if name not in self._handled]
        lacking += [step.name for step in self.steps.values() if step.name not in self._handled and not step.children]
        if lacking:
            raise BadOption("handler", f"{self.name}: these steps need a handler: {', '.join(lacking)}")
        for step in self.steps.values():
            if step.name not in self._handled:
                self.app.task(name=self.task_of(step.name), **step.options())(step_function(self, step, None))
        self.app.task(name=f"{self.name}.{END}")(end_function(self))
        self._complete = True

    # --- runs

    async def start(self, *, priority: int = URGENT, **fields: Any) -> PipelineRun:
        """Start a run with these fields; it is stored when this returns. priority: 1 is the most urgent. Raises
        BadOption, BadArgument for a field that cannot be stored, and StorageError."""
        first = next(iter(self.steps))
        spec = self.enter(first, Travel(fields, priority_of(priority)))
        job = await self.app.enqueue(spec.changed(labels=labels_of(self.name, self.labels, fields)))
        return PipelineRun(self.app, job.id, self.step_of, job)

    def run(self, id: str) -> PipelineRun:
        """The handle of the run with this id. Reads nothing."""
        return PipelineRun(self.app, id, self.step_of)

    async def find(self, **fields: Any) -> list[PipelineRun]:
        """The runs that were started with all of these values, newest first; for a field with a list, the value must be
        in the list. Raises BadOption for a field that is not among `labels`."""
        wanted = []
        for name, value in fields.items():
            if name not in self.labels:
                raise BadOption(
                    name, f"expected a field among labels= of {self.name}: {', '.join(self.labels) or 'none'}"
                )
            wanted.append(label(self.name, name, value))
        if not wanted:
            raise BadOption("find", "give at least one field")
        every = pages(await self.app._core.opened(), Query(label=wanted[0], limit=500))
        return [
            self.run(row.job.id) async for page in every for row in page.records if set(wanted) <= set(row.job.labels)
        ]

    async def stats(self) -> dict[str, StepStats]:
        """Job counts of each step, and of each child as "step:child"."""
        counted: dict[str, dict[str, int]] = {}
        for count in (await self.app.queues.stats()).counts:
            name = self._steps.get(count.task) or self._children.get(count.task)
            if name is None:
                continue
            into = counted.setdefault(name, {})
            if count.state is State.READY:
                _add(into, "waiting", count.queued + count.blocked)
                _add(into, "delayed", count.jobs - count.queued - count.blocked)
            elif count.state in _SHOWN:
                _add(into, _SHOWN[count.state], count.jobs)
        queues = {name: self.steps[step].queue_name + colon + child for name, step, colon, child in self._named()}
        return {name: StepStats(queue=queue, **counted.get(name, {})) for name, queue in queues.items()}

    def _named(self) -> list[tuple[str, str, str, str]]:
        return [(name, *name.partition(":")) for name in (*self.steps, *self._children.values())]

    # --- for its handlers

    def task_of(self, step: str, child: str = "") -> str:
        """The name of the task of a step, or of a child of it."""
        return f"{self.name}.{step}:{child}" if child else f"{self.name}.{step}"

    def step_of(self, task: str) -> str | None:
        """The step of this task; None for children and for tasks of others."""
        return self._steps.get(task) or (END if task == f"{self.name}.{END}" else None)

    def child_of(self, task: str) -> str | None:
        """The name of the child of this task, without its step; None for other tasks."""
        name = self._children.get(task)
        return None if name is None else name.partition(":")[2]

    def enter(self, name: str, travel: Travel) -> JobSpec[Any, Any]:
        """The job of a following step."""
        step = self.steps[name]
        travel = Travel(travel.fields, shifted(travel.priority, step), travel.given, travel.from_step)
        return self._job(self.task_of(name), step, step.options(), travel, delay=step.delay)

    def child_job(self, step: Step, child: str, travel: Travel) -> JobSpec[Any, Any]:
        return self._job(self.task_of(step.name, child), step, step.options(child), travel)

    def finish(self, step: Step, travel: Travel) -> JobSpec[Any, Any]:
        """The job that collects the results of a last step's children."""
        return self._job(f"{self.name}.{END}", step, step.options(), travel)

    def _job(self, task: str, step: Step, declared: Options, travel: Travel, **more: Any) -> JobSpec[Any, Any]:
        # Retries and timeout are not stored in the row, so a deploy changes them for runs that have begun.
        kept: Any = {name: value for name, value in declared.items() if name in ("queue", "lease")}
        if step.limits:
            kept["limits"] = [partition(limit, travel) for limit in step.limits]
        payload = {name: value for name, value in asdict(travel).items() if value or name == "fields"}
        return self.app.stub(task, **kept, **more, priority=-travel.priority).job(payload)


_SHOWN = {State.RUNNING: "processing", State.WAITING: "blocked", State.FAILED: "failed"}


def _add(into: dict[str, int], name: str, jobs: int) -> None:
    into[name] = into.get(name, 0) + jobs
