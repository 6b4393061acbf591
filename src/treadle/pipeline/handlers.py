"""A handler as a task: it gets the fields it names, what it returns is merged, and the next step is stored with its
ending.

Without it each handler would have to carry the state on by itself, and a crash between two steps would lose a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from treadle.core.job import JobSpec, has_result
from treadle.core.model import Record
from treadle.errors import BadOption, BadResult
from treadle.execution.context import current
from treadle.pipeline.jobs import PipelineJobs
from treadle.pipeline.steps import Step, Travel, child_result, following, priority_of, results_name
from treadle.policy.retry import Abort
from treadle.serialization.call_codec import CallCodec
from treadle.serialization.call_text import encode_foreign_call
from treadle.tasks.when import all_done
from treadle.workflow.finisher import rows_of
from treadle.workflow.flow import Flow, flow
from treadle.workflow.plan import Plan, root_of

if TYPE_CHECKING:
    from treadle.app import App

Handler = Callable[..., Any]


def chosen(function: Handler, name: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What picks the arguments of this handler from the fields of a run: those its parameters name, as their
    annotations say. Raises BadArgument for one that is missing or does not fit."""
    signature = CallCodec(name, function)
    parameters = inspect.signature(function).parameters.values()
    every = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    if any(each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) for each in parameters):
        raise BadOption("handler", f"{name}: the parameters of a handler are given by name")

    def pick(fields: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(fields) if every else {each: fields[each] for each in names if each in fields}
        args, kwargs = signature.decode_call(encode_foreign_call((), given, name))
        return {**dict(zip(names, args, strict=False)), **kwargs}

    return pick


def step_function(pipeline: PipelineJobs, step: Step, function: Handler | None) -> Callable[..., Any]:
    """The function of a step's task. Without a handler each child gets the whole state, once."""
    if function is None:
        if not step.children:
            raise BadOption("handler", f"step {step.name!r} has neither a handler nor children")

        async def fan_out(travel: Travel) -> Any:
            travel = await arrived(pipeline, travel)
            return goes_on(pipeline, step, travel, {"children": {child: [{}] for child in step.children}})

        return fan_out
    pick = chosen(function, f"{pipeline.name}.{step.name}")
    if inspect.iscoroutinefunction(function):

        async def run(travel: Travel) -> Any:
            travel = await arrived(pipeline, travel)
            return goes_on(pipeline, step, travel, await function(**pick(travel.fields)))

        return run

    def run_here(travel: Travel) -> Any:
        travel = pipeline.app.sync.call(arrived_after(pipeline, travel, current().after))
        return goes_on(pipeline, step, travel, function(**pick(travel.fields)))

    return run_here


def end_function(pipeline: PipelineJobs) -> Callable[..., Any]:
    """The function of what stands behind the children of a last step: the state with what they came to."""

    async def end(travel: Travel) -> Any:
        return (await arrived(pipeline, travel)).fields

    return end


def child_function(pipeline: PipelineJobs, name: str, function: Handler) -> Callable[..., Any]:
    """The function of a child's task: its result is what the handler returns."""
    pick = chosen(function, f"{pipeline.name}.{name}")
    if inspect.iscoroutinefunction(function):

        async def run(travel: Travel) -> Any:
            return await function(**pick(travel.fields | travel.given))

        return run

    def run_here(travel: Travel) -> Any:
        return function(**pick(travel.fields | travel.given))

    return run_here


def arrived(pipeline: PipelineJobs, travel: Travel) -> Coroutine[Any, Any, Travel]:
    """The state a step begins with: what the children of the step before came to is merged in."""
    return arrived_after(pipeline, travel, current().after)


async def arrived_after(pipeline: PipelineJobs, travel: Travel, after: Sequence[str]) -> Travel:
    """The same for a job that waited for `after`."""
    if travel.from_step is None:
        return travel
    client, found = pipeline.app.client, []
    for row in await rows_of(client.get, after):
        child = pipeline.child_of(row.job.task)
        if child is not None:  # who watches over the children is none of them
            result = client.decode(row, row.result) if has_result(row) and row.result is not None else None
            found.append(child_result(row, child, travel_of(pipeline.app, row).given, result))
    return Travel({**travel.fields, results_name(travel.from_step): found}, travel.priority)


def travel_of(app: App, row: Record) -> Travel:
    """What a job of a pipeline carries, read from its row, also where its handler is not installed."""
    payload = app.jobs.arguments(row)[0][0]
    return payload if isinstance(payload, Travel) else msgspec.convert(payload, Travel)


def goes_on(pipeline: PipelineJobs, step: Step, travel: Travel, answer: object) -> Any:
    """What becomes of the run after a handler returned: the state in the end, or the jobs that follow."""
    told = _mapping(pipeline, step, answer)
    children = told.pop("children", None)
    name = told.pop("next_step") if "next_step" in told else following(pipeline.steps, step.name)
    if name is not None and name not in pipeline.steps:
        raise Abort(f"{pipeline.name}.{step.name}: next_step: there is no step {name!r}; there are {[*pipeline.steps]}")
    priority = priority_of(told.pop("priority", travel.priority))
    fields = {**travel.fields, **told}
    specs = _children(pipeline, step, Travel(fields, priority), children)
    if not specs:
        if step.children:
            fields[results_name(step.name)] = []
        return fields if name is None else pipeline.enter(name, Travel(fields, priority))
    travel = Travel(fields, priority, from_step=step.name)
    return _behind(step, specs, pipeline.finish(step, travel) if name is None else pipeline.enter(name, travel))


def _behind(step: Step, specs: list[JobSpec[Any, Any]], then: JobSpec[Any, Any]) -> Flow[Any, Any]:
    """The children, and the next step when they have ended; if they are to be cancelled at the first failure, who does
    so stands beside them."""
    if step.on_child_failure == "continue":
        return flow(specs).then(then, when=all_done())
    if step.on_child_failure == "fail":
        return flow(specs).then(then)
    first = specs[0]
    assert first.source is not None
    ids = [spec.id for spec in specs]
    guard = replace(root_of(first.source.fresh_id(), Plan(guard=True), ids, queue=step.queue_name), slack=0)
    watch: JobSpec[Any, Any] = JobSpec(guard, source=first.source)
    return flow([*specs, watch]).then(then)


def _children(pipeline: PipelineJobs, step: Step, travel: Travel, children: object) -> list[JobSpec[Any, Any]]:
    if children is None:
        return []
    if not isinstance(children, Mapping):
        raise BadResult(
            f"{pipeline.name}.{step.name}", f"children: expected {{name: [fields, ...]}}, found {children!r}"
        )
    specs = []
    for name, many in children.items():
        if name not in step.children:
            raise BadResult(
                f"{pipeline.name}.{step.name}", f"children: there is no child {name!r}; there are {list(step.children)}"
            )
        each = [many] if isinstance(many, Mapping) else many
        specs += [pipeline.child_job(step, name, Travel(travel.fields, travel.priority, dict(own))) for own in each]
    return specs


def _mapping(pipeline: PipelineJobs, step: Step, answer: object) -> dict[str, Any]:
    """What a handler returned; nothing is nothing to merge."""
    if answer is None:
        return {}
    if not isinstance(answer, Mapping) or not all(isinstance(name, str) for name in answer):
        raise BadResult(
            f"{pipeline.name}.{step.name}", f"is not a mapping of fields to be merged, or None: found {answer!r}"
        )
    return dict(answer)
