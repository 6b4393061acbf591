"""Middleware: code around every enqueue and every run. The first one added is the outermost."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from treadle.concurrency import forks
from treadle.core import interrupts
from treadle.core.errors import BadTask
from treadle.core.job import Job, JobSpec, Sender
from treadle.core.model import NewJob, Record
from treadle.execution.context import Context
from treadle.execution.run_outcome import RunOutcome

log = logging.getLogger("treadle")

Specs = Sequence[JobSpec[Any]]
Send = Callable[[Specs], Awaitable[Any]]
Run = Callable[[], Awaitable[Any]]


class Middleware:
    """Override one method or several; a method that is not overridden costs nothing.

    An exception raised before `proceed` stops the call, and an exception of `proceed` passes through the middleware.

    An exception raised in `run` is a failed attempt and is retried like one.
    """

    @property
    def enabled(self) -> bool:
        """Whether to use it. False: the middleware is ignored, and costs nothing. Read when a worker starts, after the
        lifespan of the app was entered, and at each call that sends jobs."""
        return True

    def added(self, app: Any) -> None:
        """Called with the App when it is added to one, before it is used. An exception is raised to the caller of
        `app.middleware`, and then it is not added."""

    async def enqueue(self, specs: Specs, proceed: Send) -> Any:
        """Wraps one enqueue call. Pass the specs to `proceed`, unchanged or changed (`spec.with_headers(...)`).

        Jobs that a run returns, and the jobs of a schedule's ticks, pass through it too, in the worker. `proceed` then
        returns their handles, and they are stored with the outcome of the run.
        """
        return await proceed(specs)

    async def run(self, context: Context, proceed: Run) -> Any:
        """Wraps one attempt. The value that it returns is the task's result: usually that of `proceed`."""
        return await proceed()

    def call(self, contexts: Sequence[Context]) -> AbstractContextManager[object] | None:
        """A context manager around the call of the function, entered where the function runs: on the event loop, in
        its thread, or in its process. Usually a generator function with `@contextlib.contextmanager`. None: this call
        needs none.

        A batch function has one call for all its jobs, whose own `run` does not see it. A process enters it only if
        the module of the function declares the task, because it knows the app only then.

        contexts  the job, or the jobs of a batch in the order of its items
        An exception that it raises fails the run. One that it suppresses is raised again: there is no result.
        """
        return None

    def step(self, context: Context, name: str) -> AbstractContextManager[object] | None:
        """A context manager around the function of a durable step, entered before the function is called and left
        before its result is stored. A step whose stored result is returned does not enter it. In a function in a
        thread, `current().sync.step` enters it in that thread; otherwise it is entered on the event loop. None: this
        step needs none.

        name  the name of the step; "name#2" for the second one of that name
        An exception that it raises fails the step. One that it suppresses is raised again.
        """
        return None

    def close_process(self) -> None:
        """Called in a process that ran functions of `kind="process"`, before it ends: flush here what it has buffered.
        Only in processes whose module declares the task, and not in one that is killed. Closing the resources of the
        app, and this, may take 10 seconds in all."""

    def reported(self, record: Record, outcome: RunOutcome, error: str | None) -> None:
        """Called in a server when the storage has applied the outcome of a run that a runner in another language
        reported. It can change nothing: its result is ignored, and what it raises is logged. It must not block.

        record  the row as the runner claimed it
        error   the text of the failure; None: there was none
        """

    def judged(self, context: Context, outcome: RunOutcome, error: BaseException | None) -> None:
        """Called once for each run, when it has ended and Treadle has decided what follows, before that is stored. It
        can change nothing: its result is ignored, and what it raises is logged.

        It is called on the worker's event loop, so it must not block. It sees the context variables that `run` has set
        and not reset. The innermost middleware is called first.

        error  what ended the run: the exception of the function or of a middleware, with its traceback; BadArgument
               for arguments that do not fit, BadResult and TooLarge for results, TimeoutError for a timeout, JobFailed
               and JobExpired if no code raised. Never None for failed, expired, paused and retrying. None for a run
               that succeeded, waits or sleeps, and for one that was released, cancelled or lost.
        """


def check(layer: object) -> Middleware:
    """An instance of `layer`, which is a Middleware class or instance. Raises BadTask."""
    instance = layer() if isinstance(layer, type) and issubclass(layer, Middleware) else layer
    if not isinstance(instance, Middleware):
        raise BadTask(f"expected a treadle.Middleware (a class or an instance), found {layer!r}")
    if inspect.iscoroutinefunction(instance.judged):
        raise BadTask(f"{type(instance).__name__}.judged must be a plain function, found a coroutine function")
    if inspect.isgeneratorfunction(instance.call) or inspect.iscoroutinefunction(instance.call):
        raise BadTask(f"{type(instance).__name__}.call must return a context manager: add @contextlib.contextmanager")
    return instance


def overrides(layers: Sequence[Middleware], method: str) -> list[Middleware]:
    """The enabled layers that override the method, so the others cost nothing."""
    own = getattr(Middleware, method)
    return [layer for layer in layers if getattr(type(layer), method) is not own and layer.enabled]


def around_enqueue(layers: Sequence[Middleware], send: Send) -> Send:
    """A `send` that passes through all layers."""
    own = Middleware.enqueue
    for layer in reversed(layers):
        if type(layer).enqueue is not own and layer.enabled:
            send = _bind_send(layer, send)
    return send


async def prepared(layers: Sequence[Middleware], jobs: Sequence[NewJob], sender: Sender) -> tuple[NewJob, ...]:
    """The jobs after all layers, for a caller that stores them itself. Raises what a layer raises."""
    passed: list[NewJob] = []

    async def collect(specs: Specs) -> list[Job[Any, Any]]:
        passed.extend(new for spec in specs for new in (*spec.others, spec.new))
        return [Job(spec.id, spec.new.task, sender, spec.decode) for spec in specs]

    await around_enqueue(layers, collect)([JobSpec(new) for new in jobs])
    return tuple(passed)


def _bind_send(layer: Middleware, inner: Send) -> Send:
    return lambda specs: layer.enqueue(specs, inner)


async def around_run(layers: Sequence[Middleware], context: Context, run: Run) -> Any:
    """Run one attempt through all layers, each of which overrides `run`."""
    for layer in reversed(layers):
        run = _bind_run(layer, context, run)
    return await run()


def _bind_run(layer: Middleware, context: Context, inner: Run) -> Run:
    return lambda: layer.run(context, inner)


def inside_calls(
    layers: Sequence[Middleware], contexts: Sequence[Context], function: Callable[..., Any], is_async: bool
) -> Callable[..., Any]:
    """The function inside the context managers of all layers, each of which overrides `call`."""

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        managers = [manager for layer in layers if (manager := layer.call(contexts)) is not None]
        if not managers:
            return await function(*args, **kwargs)
        with _entered(managers):
            return await function(*args, **kwargs)

    def called(*args: Any, **kwargs: Any) -> Any:
        managers = [manager for layer in layers if (manager := layer.call(contexts)) is not None]
        if not managers:
            return function(*args, **kwargs)
        with _entered(managers):
            # A process that the function forks ends before it could leave the context managers a second time.
            return forks.contained(function, *args, **kwargs)

    return awaited if is_async else called


def around_step(layers: Sequence[Middleware], context: Context, name: str) -> AbstractContextManager[object]:
    """The context managers of all layers, each of which overrides `step`."""
    return _entered([manager for layer in layers if (manager := layer.step(context, name)) is not None])


@contextmanager
def _entered(managers: Sequence[AbstractContextManager[object]]) -> Iterator[None]:
    """Enter context managers, the first one outermost. An exception of the block that one suppresses is raised."""
    raised: BaseException | None = None
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        try:
            yield
        except BaseException as error:
            raised = error
            raise
    if raised is not None:
        raise raised


def report(layers: Sequence[Middleware], context: Context, outcome: RunOutcome, error: BaseException | None) -> None:
    """Call `judged` of all layers, each of which overrides it. Raises nothing."""
    for layer in reversed(layers):
        try:
            layer.judged(context, outcome, error)
        except BaseException as broken:  # also SystemExit and CancelledError, which would end the run
            _failed(layer, "judged", context.task, context.id, broken)


def report_remote(layers: Sequence[Middleware], record: Record, outcome: RunOutcome, error: str | None) -> None:
    """Call `reported` of all layers, each of which overrides it. Raises nothing."""
    for layer in reversed(layers):
        try:
            layer.reported(record, outcome, error)
        except BaseException as broken:
            _failed(layer, "reported", record.job.task, record.job.id, broken)


def close_process(layers: Sequence[Middleware]) -> None:
    """Call `close_process` of all layers. Raises nothing."""
    for layer in reversed(layers):
        try:
            layer.close_process()
        except Exception:
            log.exception("%s.close_process failed", type(layer).__name__)


def _failed(layer: Middleware, method: str, task: str, id: str, broken: BaseException) -> None:
    log.error(
        "%s.%s failed for %s %s; the job is not affected", type(layer).__name__, method, task, id, exc_info=broken
    )
    interrupts.pass_on(broken)
