"""Calls the function of a task with the values of its dependencies, as inside `with` blocks of those that yield.

A value is made when the run reaches the function, inside the middleware and within the timeout of the run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent import futures
from typing import Any, Protocol

from treadle.concurrency import forks
from treadle.concurrency.threads import Threads
from treadle.core import ids
from treadle.core.errors import BadDependency
from treadle.core.injected import injected_names, signature_of
from treadle.resources.generators import begin, begin_here, end, end_here
from treadle.resources.hosted import Hosted, contained, result_of
from treadle.resources.life import Life
from treadle.resources.plan import Overrides, Planner, Provided, in_order
from treadle.resources.threads import in_thread

log = logging.getLogger("treadle")

Close = Callable[[BaseException | None], Any]
Values = dict[Any, Any]


class RunSite(Protocol):
    """Where jobs run."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def life(self) -> Life: ...
    @property
    def threads(self) -> Callable[[], Threads]: ...


class Pending(Protocol):
    """A run in a thread: what it waits for on the event loop, and why it should stop."""

    why: str | None
    waits_for: futures.Future[Any] | None


class Provision:
    """The values of one task, in order: first the values of a run, then those of the process."""

    def __init__(self, needs: Mapping[str, Provided]) -> None:
        self.needs = needs
        every = tuple(in_order(needs))
        self.of_run = tuple(need for need in every if need.scope == "run")
        self.of_process = tuple(need for need in every if need.scope == "process")


class Injector:
    """The dependencies of one task. Raises BadDependency when a task is declared with providers that cannot work."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self._function = name, function
        self._plan = self.plan({})

    def plan(self, overrides: Overrides) -> Provision:
        """How the values are made with these overrides."""
        return Provision(Planner(overrides).of(self._function))

    @property
    def providers(self) -> set[Callable[..., Any]]:
        """All providers that the task needs, as they were declared."""
        return {need.provider for need in in_order(self._plan.needs)}

    def plan_in(self, life: Life) -> Provision:
        """The plan of a life, with its overrides."""
        if not life.overrides:
            return self._plan
        plan: Provision | None = life.plans.get(self)
        if plan is None:
            plan = life.plans[self] = self.plan(life.overrides)
        return plan

    def check_direct_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise BadDependency unless a call of the function itself gives a value for each dependency."""
        arguments = signature_of(self._function).bind_partial(*args, **kwargs).arguments
        lacks = [name for name in self._plan.needs if name not in arguments]
        if lacks:
            raise BadDependency(
                self.name,
                f"a direct call needs {', '.join(f'{name}=...' for name in lacks)}: only a worker provides them",
            )

    # --- async functions

    async def call(
        self, site: RunSite, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """The result of an async function. Its exception is raised in the generators too; it stays the error of the
        run. If the function returned, the first error of a generator is the error of the run."""
        life = site.life
        plan = self.plan_in(life)
        if not plan.of_run:
            return await function(*args, **kwargs, **(life.by_task.get(self) or await self._of_process(plan, life)))
        run, process = _Run(self.name, site), forks.tag
        try:
            provided = await run.make(plan)
            value = await function(*args, **kwargs, **provided)
        except BaseException as error:
            if forks.tag is not process:
                forks.end(error)
            await run.close(error)
            raise
        if forks.tag is not process:
            forks.end()
        await run.close(None)
        return value

    async def _of_process(self, plan: Provision, life: Life) -> dict[str, Any]:
        values = life.by_task[self] = {name: await life.value(need) for name, need in plan.needs.items()}
        return values

    def bound_to(
        self, site: RunSite, function: Callable[..., Any], is_async: bool, pending: Pending
    ) -> Callable[..., Any]:
        """The function of a batch with its values. Each call makes the values of scope "run" again."""

        async def call(*args: Any) -> Any:
            return await self.call(site, function, args, {})

        return call if is_async else lambda *args: self.call_here(site, pending, function, args, {})

    # --- plain functions, in their thread

    def call_here(
        self, site: RunSite, pending: Pending | None, function: Callable[..., Any], args: Sequence[Any], kwargs: Any
    ) -> Any:
        """The result of a plain function in this thread, which also runs the plain providers. See `call`."""
        life = site.life
        plan = self.plan_in(life)
        run = _RunHere(self.name, site, pending)
        try:
            provided = (life.by_task.get(self) if not plan.of_run else None) or run.make(plan)
            value = forks.contained(functools.partial(function, *args, **kwargs, **provided))
        except BaseException as error:
            run.close(error)
            raise
        run.close(None)
        return value


class _Closing:
    """The error with which the generators of one run are closed."""

    def __init__(self, task: str, error: BaseException | None) -> None:
        self._task, self.error, self._returned = task, error, error is None
        self.first: BaseException | None = None  # of a generator that did not end after the function returned

    def failed(self, provider: str, error: BaseException) -> None:
        if self._returned and self.first is None:
            self.first = self.error = error
            return
        log.error("%s: closing %s failed, after another error", self._task, provider, exc_info=error)


class _Run:
    """The values of one run of an async function."""

    def __init__(self, task: str, site: RunSite) -> None:
        self._task, self._site, self._threads = task, site, site.threads
        self._open: list[tuple[str, Callable[[BaseException | None], Coroutine[Any, Any, None]]]] = []

    async def make(self, plan: Provision) -> dict[str, Any]:
        """The values by parameter. Raises what a provider raises."""
        values: Values = {}
        for provided in plan.of_process:
            values[provided.key] = await self._site.life.value(provided)
        for provided in plan.of_run:
            arguments = {name: values[need.key] for name, need in provided.needs.items()}
            values[provided.key] = await self._one(provided, arguments)
        return {name: values[need.key] for name, need in plan.needs.items()}

    async def _one(self, provided: Provided, arguments: dict[str, Any]) -> Any:
        call, problem = provided.call, provided.problem
        if provided.kind == "async":
            return await call(**arguments)
        if provided.kind == "async generator":
            generator: AsyncGenerator[Any, None] = call(**arguments)
            value = await begin(generator, problem)  # if this raises, the generator has ended
            self._open.append((provided.name, lambda error: end(generator, error, problem)))
            return value
        if provided.kind == "class":
            return call(**arguments)
        threads = self._threads()
        if provided.kind == "generator":
            plain: Generator[Any, None, Any] = call(**arguments)
            self._open.append((provided.name, lambda error: in_thread(threads, end_here, plain, error, problem)))
            return await in_thread(threads, begin_here, plain, problem)
        return provided.checked(await in_thread(threads, call, **arguments))

    async def close(self, error: BaseException | None) -> None:
        """Close the generators in reverse order. Raises the first error if there was none before."""
        closing = _Closing(self._task, error)
        for name, close in reversed(self._open):
            try:
                await close(closing.error)
            except BaseException as raised:
                closing.failed(name, raised)
        if closing.first is not None:
            raise closing.first


class _RunHere:
    """The values of one run of a plain function, made in its thread; async providers run on the event loop."""

    def __init__(self, task: str, site: RunSite, pending: Pending | None) -> None:
        self._task, self._site, self._pending = task, site, pending
        self._open: list[tuple[str, Close]] = []

    def make(self, plan: Provision) -> dict[str, Any]:
        """As `_Run.make`."""
        values: Values = {}
        life = self._site.life
        for provided in plan.of_process:
            known = life.known(provided)
            values[provided.key] = known[0] if known is not None else self._wait(life.value(provided))
        for provided in plan.of_run:
            arguments = {name: values[need.key] for name, need in provided.needs.items()}
            values[provided.key] = self._one(provided, arguments)
        return {name: values[need.key] for name, need in plan.needs.items()}

    def _one(self, provided: Provided, arguments: dict[str, Any]) -> Any:
        call, problem = provided.call, provided.problem
        if provided.kind == "generator":
            plain: Generator[Any, None, Any] = call(**arguments)
            self._open.append((provided.name, lambda error: end_here(plain, error, problem)))
            return begin_here(plain, problem)
        if provided.kind == "async":
            return self._wait(call(**arguments))
        if provided.kind == "async generator":
            hosted = Hosted(provided.name, call(**arguments), problem, None)
            self._open.append((provided.name, lambda error: self._wait(hosted.leave(error), closes=True)))
            return self._wait(hosted.enter())
        return provided.checked(call(**arguments))

    def _wait(self, work: Coroutine[Any, Any, Any], closes: bool = False) -> Any:
        """The result of the coroutine, which is cancelled when the run should stop. `closes`: wait even if the run
        should stop already, because open values must be closed."""
        future, pending = asyncio.run_coroutine_threadsafe(contained(work), self._site.loop), self._pending
        if pending is not None:
            pending.waits_for = future
            if pending.why is not None and not closes:
                future.cancel()
        try:
            return result_of(future)
        except futures.CancelledError:
            raise asyncio.CancelledError from None
        finally:
            if pending is not None:
                pending.waits_for = None

    def close(self, error: BaseException | None) -> None:
        """As `_Run.close`."""
        closing = _Closing(self._task, error)
        for name, close in reversed(self._open):
            try:
                close(closing.error)
            except BaseException as raised:
                closing.failed(name, raised)
        if closing.first is not None:
            raise closing.first


def injector_of(name: str, function: Callable[..., Any]) -> Injector | None:
    """The dependencies of a task; None if it has none, so that its calls cost nothing more. Raises BadDependency."""
    names = injected_names(function)
    if not names:
        return None
    _check_places(name, function, names)
    return Injector(name, function)


def _check_places(name: str, function: Callable[..., Any], dependencies: Sequence[str]) -> None:
    kinds = inspect.Parameter
    behind = ""
    for parameter in signature_of(function).parameters.values():
        if parameter.name in dependencies:
            if parameter.kind is kinds.POSITIONAL_ONLY:
                raise BadDependency(
                    name, f"the parameter {parameter.name!r} cannot be given by name: move it behind `/`"
                )
            behind = behind or parameter.name
        elif behind and parameter.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.VAR_POSITIONAL):
            raise BadDependency(
                name,
                f"the parameter {parameter.name!r} stands behind the dependency {behind!r}: move it in front of that, "
                "or put both behind `*`",
            )


def bound(function: Callable[..., Any], injector: Injector, is_async: bool) -> Callable[..., Any]:
    """The function with the values of its dependencies, for a run of a job."""
    if is_async:

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await injector.call(ids.running.get().site, function, args, kwargs)

        return call

    def call_here(*args: Any, **kwargs: Any) -> Any:
        run = ids.running.get()
        return injector.call_here(run.site, run, function, args, kwargs)

    return call_here
