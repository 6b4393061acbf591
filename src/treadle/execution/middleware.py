"""Code around every enqueue and every run, in the order it was added: the first is the outermost.

Without it tracing, tenancy and the like would have to be written into every task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from treadle.core.job import Job, JobSpec, Sender
from treadle.core.model import NewJob
from treadle.errors import BadTask
from treadle.execution.context import Context

Specs = Sequence[JobSpec[Any]]
Send = Callable[[Specs], Awaitable[Any]]
Run = Callable[[], Awaitable[Any]]


class Middleware:
    """Override one or both. What you raise before calling `proceed` stops the call; what it raises you see.

    Raising inside `run` is a failed attempt like any other, so it backs off and is counted.
    """

    async def enqueue(self, specs: Specs, proceed: Send) -> Any:
        """Around one call of enqueue; pass on the same specs or changed ones (`spec.with_headers(...)`).

        Jobs that a run returns, and the jobs of a schedule's ticks, pass here too, in the worker. `proceed` then
        returns their handles, and they are stored with the outcome of the run.
        """
        return await proceed(specs)

    async def run(self, context: Context, proceed: Run) -> Any:
        """Around one attempt; answer what `proceed` answers, or something else as the task's result."""
        return await proceed()


def check(found: object) -> Middleware:
    """An instance, or a class to make one of."""
    instance = found() if isinstance(found, type) and issubclass(found, Middleware) else found
    if not isinstance(instance, Middleware):
        raise BadTask(f"expected a treadle.Middleware (a class or an instance), found {found!r}")
    return instance


def overrides(layers: Sequence[Middleware], method: str) -> list[Middleware]:
    """Those that have something to say, so that the others cost nothing."""
    own = getattr(Middleware, method)
    return [layer for layer in layers if getattr(type(layer), method) is not own]


def around_enqueue(layers: Sequence[Middleware], send: Send) -> Send:
    """One `send` that passes through all layers."""
    for layer in reversed(overrides(layers, "enqueue")):
        send = _bind_send(layer, send)
    return send


async def prepared(layers: Sequence[Middleware], jobs: Sequence[NewJob], sender: Sender) -> tuple[NewJob, ...]:
    """These jobs as all layers let them through, for a caller that stores them itself. Raises what a layer raises."""
    passed: list[NewJob] = []

    async def collect(specs: Specs) -> list[Job[Any, Any]]:
        passed.extend(new for spec in specs for new in (*spec.others, spec.new))
        return [Job(spec.id, spec.new.task, sender, spec.decode) for spec in specs]

    await around_enqueue(layers, collect)([JobSpec(new) for new in jobs])
    return tuple(passed)


def _bind_send(layer: Middleware, inner: Send) -> Send:
    return lambda specs: layer.enqueue(specs, inner)


async def around_run(layers: Sequence[Middleware], context: Context, run: Run) -> Any:
    """Run one attempt through all layers; `layers` are those that override `run`."""
    for layer in reversed(layers):
        run = _bind_run(layer, context, run)
    return await run()


def _bind_run(layer: Middleware, context: Context, inner: Run) -> Run:
    return lambda: layer.run(context, inner)
