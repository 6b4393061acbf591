"""Makes a handler a task: it passes the fields that the handler's parameters name, merges the mapping that the handler
returns, and stores the next step together with the ending of this one.

A crash between two steps therefore never loses a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from treadle.contrib.pipeline.jobs import PipelineJobs
from treadle.contrib.pipeline.steps import Step, Travel, child_result, following, priority_of, results_name
from treadle.core.errors import BadOption, BadResult
from treadle.core.injected import call_signature, injected_names, signature_of
from treadle.core.job import JobSpec, has_result
from treadle.core.model import Record
from treadle.execution.context import current
from treadle.policy.retry import Abort
from treadle.serialization import encode_foreign_call
from treadle.serialization.call_codec import CallCodec
from treadle.tasks.when import all_done
from treadle.workflow import Flow, flow, rows_of
from treadle.workflow.plan import EndingPlan, root_of

if TYPE_CHECKING:
    from treadle.app import App

Handler = Callable[..., Any]


def chosen(function: Handler, name: str) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function that picks the handler's arguments from the fields of a run, by parameter name, and converts them to
    the annotated types. It raises BadArgument for one that is missing or does not fit."""
    signature = CallCodec(name, function)
    parameters = call_signature(function).parameters.values()
    every = any(param.kind is param.VAR_KEYWORD for param in parameters)
    names = [param.name for param in parameters if param.kind in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY)]
    if any(param.kind in (param.POSITIONAL_ONLY, param.VAR_POSITIONAL) for param in parameters):
        raise BadOption("handler", f"{name}: expected parameters that can be given by name, found a positional one")

    def pick(fields: Mapping[str, Any]) -> dict[str, Any]:
        arguments = dict(fields) if every else {key: fields[key] for key in names if key in fields}
        args, kwargs = signature.decode_call(encode_foreign_call((), arguments, name))
        return {**dict(zip(names, args, strict=False)), **kwargs}

    return pick


def step_function(pipeline: PipelineJobs, step: Step, function: Handler | None) -> Callable[..., Any]:
    """The function of a step's task. Without a handler, each child gets one job with the whole state."""
    if function is None:
        if not step.children:
            raise BadOption("handler", f"step {step.name!r} needs a handler or children")

        async def fan_out(travel: Travel) -> Any:
            travel = await arrived(pipeline, travel)
            return continuation(pipeline, step, travel, {"children": {child: [{}] for child in step.children}})

        return fan_out
    pick = chosen(function, f"{pipeline.name}.{step.name}")
    if inspect.iscoroutinefunction(function):

        async def run(travel: Travel, **provided: Any) -> Any:
            travel = await arrived(pipeline, travel)
            return continuation(pipeline, step, travel, await function(**pick(travel.fields), **provided))

        return with_dependencies(run, function)

    def run_here(travel: Travel, **provided: Any) -> Any:
        travel = pipeline.app.sync.call(arrived_after(pipeline, travel, current().after))
        return continuation(pipeline, step, travel, function(**pick(travel.fields), **provided))

    return with_dependencies(run_here, function)


def with_dependencies(run: Callable[..., Any], function: Handler) -> Callable[..., Any]:
    """`run` with the dependencies of the handler in place of its keyword arguments: the worker provides them."""
    signature, theirs = signature_of(run), signature_of(function).parameters
    own = [param for param in signature.parameters.values() if param.kind is not param.VAR_KEYWORD]
    needs = [theirs[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in injected_names(function)]
    run.__signature__ = signature.replace(parameters=[*own, *needs])  # type: ignore[attr-defined]
    return run


def end_function(pipeline: PipelineJobs) -> Callable[..., Any]:
    """The function of the job after the children of a last step: it returns the state with their results."""

    async def end(travel: Travel) -> Any:
        return (await arrived(pipeline, travel)).fields

    return end


def child_function(pipeline: PipelineJobs, name: str, function: Handler) -> Callable[..., Any]:
    """The function of a child's task; its result is the handler's result."""
    pick = chosen(function, f"{pipeline.name}.{name}")
    if inspect.iscoroutinefunction(function):

        async def run(travel: Travel, **provided: Any) -> Any:
            return await function(**pick(travel.fields | travel.given), **provided)

        return with_dependencies(run, function)

    def run_here(travel: Travel, **provided: Any) -> Any:
        return function(**pick(travel.fields | travel.given), **provided)

    return with_dependencies(run_here, function)


def arrived(pipeline: PipelineJobs, travel: Travel) -> Coroutine[Any, Any, Travel]:
    """The state at the beginning of a step, with the results of the previous step's children merged in."""
    return arrived_after(pipeline, travel, current().after)


async def arrived_after(pipeline: PipelineJobs, travel: Travel, after: Sequence[str]) -> Travel:
    """The same, for a job that waited for the jobs in `after`."""
    if travel.from_step is None:
        return travel
    client, results = pipeline.app._core.client, []
    for row in await rows_of(client.whole, after):
        child = pipeline.child_of(row.job.task)
        if child is not None:  # the guard of the children is not one of them
            result = client.decode(row, row.result) if has_result(row) and row.result is not None else None
            results.append(child_result(row, child, travel_of(pipeline.app, row).given, result))
    return Travel({**travel.fields, results_name(travel.from_step): results}, travel.priority)


def travel_of(app: App, row: Record) -> Travel:
    """The state in the row of a pipeline's job, even if its handler is not installed here."""
    payload = app.jobs.arguments(row)[0][0]
    return payload if isinstance(payload, Travel) else msgspec.convert(payload, Travel)


def continuation(pipeline: PipelineJobs, step: Step, travel: Travel, answer: object) -> Any:
    """The continuation of a run after a handler returned: the final state, or the jobs that follow."""
    fields_given = _mapping(pipeline, step, answer)
    children = fields_given.pop("children", None)
    name = fields_given.pop("next_step") if "next_step" in fields_given else following(pipeline.steps, step.name)
    if name is not None and name not in pipeline.steps:
        raise Abort(
            f"{pipeline.name}.{step.name}: next_step: unknown step {name!r}; expected one of {[*pipeline.steps]}"
        )
    priority = priority_of(fields_given.pop("priority", travel.priority))
    fields = {**travel.fields, **fields_given}
    specs = _children(pipeline, step, Travel(fields, priority), children)
    if not specs:
        if step.children:
            fields[results_name(step.name)] = []
        return fields if name is None else pipeline.enter(name, Travel(fields, priority))
    travel = Travel(fields, priority, from_step=step.name)
    return _behind(step, specs, pipeline.finish(step, travel) if name is None else pipeline.enter(name, travel))


def _behind(step: Step, specs: list[JobSpec[Any, Any]], then: JobSpec[Any, Any]) -> Flow[Any, Any]:
    """The children, and the next step, which waits for them. With on_child_failure="cancel", a guard row cancels the
    children at the first failure."""
    if step.on_child_failure == "continue":
        return flow(specs).then(then, when=all_done())
    if step.on_child_failure == "fail":
        return flow(specs).then(then)
    first = specs[0]
    assert first.source is not None
    ids = [spec.id for spec in specs]
    guard = replace(
        root_of(first.source.fresh_id(), EndingPlan(guard=True), ids, queue=step.queue_name), failures_allowed=0
    )
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
                f"{pipeline.name}.{step.name}",
                f"children: unknown child {name!r}; expected one of {list(step.children)}",
            )
        entries = [many] if isinstance(many, Mapping) else many
        specs += [pipeline.child_job(step, name, Travel(travel.fields, travel.priority, dict(own))) for own in entries]
    return specs


def _mapping(pipeline: PipelineJobs, step: Step, answer: object) -> dict[str, Any]:
    """The mapping that a handler returned; {} for None. Raises BadResult for anything else."""
    if answer is None:
        return {}
    if not isinstance(answer, Mapping) or not all(isinstance(name, str) for name in answer):
        raise BadResult(f"{pipeline.name}.{step.name}", f"must be a mapping of fields or None, found {answer!r}")
    return dict(answer)
