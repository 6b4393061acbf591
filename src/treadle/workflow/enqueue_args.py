"""Converts the arguments of `enqueue` to one list of specs, and applies the options that make all of them wait."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from treadle.core.errors import BadOption
from treadle.core.job import Continuation, JobSpec, Source
from treadle.policy.retry import Policy
from treadle.tasks.options import Options, Seconds, Sizes, columns
from treadle.tasks.when import HasId, When
from treadle.workflow.checks import miscombined, usable
from treadle.workflow.flow import WHERE_TO, Flow, Gather, behind, flow
from treadle.workflow.plan import FLOW

T = TypeVar("T")


def flatten(
    specs: Sequence[Continuation[Any, Any] | Iterable[Continuation[Any, Any]]], source: Source
) -> list[JobSpec[Any, Any]]:
    """Specs and flows, alone or in iterables, as specs. Raises BadOption for anything else, and for another app's
    spec."""
    flat: list[JobSpec[Any, Any]] = []
    for some in specs:
        for item in (some,) if isinstance(some, Continuation) else _many(some):
            spec: object = item.job(source=source) if isinstance(item, Flow) else item
            if isinstance(spec, Gather):
                raise miscombined("gather", WHERE_TO)
            if not isinstance(spec, JobSpec):
                raise miscombined("enqueue", f"expected specs (task.job(...)) or flows, found {item!r}")
            if spec.source is not source and spec.source is not None:
                raise miscombined("enqueue", f"{spec!r} belongs to another app; enqueue it there")
            flat.append(spec)
    return flat


def _many(some: Iterable[T]) -> Iterable[T]:
    """An iterable among the arguments of `enqueue`. Raises BadOption, with advice, for anything else."""
    items: Any = some
    if isinstance(items, Gather):
        raise miscombined("gather", WHERE_TO)
    if callable(getattr(items, "job", None)):
        name = getattr(items, "__name__", "task")
        raise BadOption("enqueue", f"{items!r} is a task: give a job with its arguments, {name}.job(...)")
    if inspect.iscoroutine(items):
        items.close()
        raise BadOption("enqueue", f"{items.__name__}(...) is a coroutine: give a job, {items.__name__}.job(...)")
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise BadOption(
            "enqueue",
            f"expected specs (task.job(...)) or flows, found {items!r}; calling a task runs its function here",
        )
    return some


def specs_of(source: Source, jobs: Iterable[Continuation[Any, Any]], where: str) -> list[JobSpec[Any, Any]]:
    """Jobs that a function waits for, each as one job: a chain is a flow. Raises BadOption and BadArgument."""
    specs = flatten([jobs], source)
    usable(specs, where, source)
    return [flow(spec).job(source=source) if spec.others and spec.new.task != FLOW else spec for spec in specs]


def waiting(
    specs: list[JobSpec[Any, Any]],
    after: HasId | str | Iterable[HasId | str] | None,
    when: When | None,
    wait_timeout: Seconds | None,
    now: float,
    sizes: Sizes,
) -> list[JobSpec[Any, Any]]:
    """The specs, all waiting for these jobs. Raises BadOption."""
    if when is not None and after is None:
        raise BadOption("when", "needs after=, because it says how many of those jobs must have ended")
    options = Options()
    if after is not None:
        options["after"] = after if isinstance(after, str) or not isinstance(after, Iterable) else list(after)
        for spec in specs:
            if spec.new.after and spec.new.task != FLOW:
                raise BadOption("after", f"{spec!r} already has an after=, which this one would replace")
    if when is not None:
        options["when"] = when
    if wait_timeout is not None:
        options["wait_timeout"] = wait_timeout
    fields = columns(options, Policy(), "", now, sizes)
    del fields["retry"]
    return [behind(spec, fields) for spec in specs]
