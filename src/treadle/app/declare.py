"""Declares tasks with `@app.task`, `@app.batch`, `@app.cron` and the like, and keeps the registry of declarations."""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, ParamSpec, Self, TypeVar, Unpack, cast, overload

from treadle.app.core import AppCore
from treadle.app.decorators import AnyDecorator, Decorator, ListDecorator, Scheduled, name_of_function
from treadle.core import defaults
from treadle.core.errors import BadOption, BadTask
from treadle.core.job import Continuation, JobSpec, Value
from treadle.policy import cron as crons
from treadle.policy.retry import seconds
from treadle.resources import Lifespan
from treadle.scheduling import CatchUp, Overlap
from treadle.tasks.batch import BatchDecorator, BatchTask
from treadle.tasks.core import BatchCore, TaskCore
from treadle.tasks.declaration import BatchDeclaration, BatchOptions, Declaration, TaskOptions, names_to_hide
from treadle.tasks.options import Options, Seconds, name_of
from treadle.tasks.stub import Stub
from treadle.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
W = TypeVar("W")
V = TypeVar("V", bound=Value)
S = TypeVar("S")
D = TypeVar("D", bound=Declaration)
Rf = TypeVar("Rf", bound=Callable[[list[Any]], Any])


class Declarations:
    """The declarations of an app in code: tasks, schedules and reducers. Workers store them; declaring does not."""

    _core: AppCore

    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, Continuation[R, W]]], /
    ) -> Task[P, R, Coroutine[Any, Any, Continuation[R, W]], W]: ...
    @overload
    def task(self, function: Callable[P, Continuation[R, W]], /) -> Task[P, R, Continuation[R, W], W]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, V]], /) -> Task[P, V, Coroutine[Any, Any, V]]: ...
    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R | JobSpec[R, R]]], /
    ) -> Task[P, R, Coroutine[Any, Any, R | JobSpec[R, R]]]: ...
    @overload
    def task(self, function: Callable[P, V], /) -> Task[P, V, V]: ...
    @overload
    def task(self, function: Callable[P, R | JobSpec[R, R]], /) -> Task[P, R, R | JobSpec[R, R]]: ...
    @overload
    def task(  # type: ignore[overload-overlap]  # a literal matches one of these, other text the last
        self, *, reduce: Literal["last", "first", "sum"] | None = None, **options: Unpack[TaskOptions]
    ) -> Decorator: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, *, reduce: Literal["list"], **options: Unpack[TaskOptions]
    ) -> ListDecorator: ...
    @overload
    def task(self, *, reduce: str, **options: Unpack[TaskOptions]) -> AnyDecorator: ...
    def task(  # type: ignore[misc]  # mypy does not see that Any accepts the fields of TaskOptions
        self, function: Callable[..., Any] | None = None, /, *, reduce: str | None = None, **options: Any
    ) -> Any:
        """Make a function a task: `@app.task` or `@app.task(queue="mail", retry=Retry(attempts=3))`.

        name      default: module.function (without `__main__`)
        kind      "async" for async functions; "thread" (default) or "process" for plain ones
        options   function of the arguments that returns options of this call; these override those given here
        reduce    how its children's results are combined into the value of its workflow: "last" (default), "first",
                  "list", "sum", or a name registered with `app.reducer`
        requires  labels of the workers that may run it: {"gpu": "a100", "zone": ("eu", "us")}, or ["gpu"] for any value
        uses      resources of its worker that each run uses, such as {"memory_mb": 2048}
        redact    names of arguments and fields whose values people must not see, such as ["iban", "card.number"]
        concurrency  how many of its jobs run at once, on all workers together: the limit "task:<name>"
        version   number of this function among several of one name: new jobs take the highest, and a job with recorded
                  steps keeps to the one that it began with (1)
        The other options are those of `Options`. Raises BadTask for a function that cannot be a task or a name taken
        twice, BadOption for an invalid option.
        """

        def decorate(function: Callable[..., Any]) -> Task[..., Any, Any]:
            task = self._new_task(function, options, reduce)
            self._core.register(task.name, task, options.get("concurrency"))
            return task

        return decorate if function is None else decorate(function)

    def delayed_handler(self, function: Callable[[Any], R], /) -> Task[[Any], Any, R]:
        """Make a function (async or not) the handler that receives the payload of each delayed job when it is due:
        `@app.delayed_handler`. Jobs come from `POST /` of the delayed protocol, or from any program as task
        "delayed.job". Raises BadTask as `task` does."""
        decorate: Any = self.task(name=defaults.DELAYED_TASK, queue=defaults.DELAYED_QUEUE)
        task: Task[[Any], Any, R] = decorate(function)
        return task

    def cron(
        self,
        line: str,
        *,
        tz: str = "UTC",
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        catch_up: CatchUp = "one",
        overlap: Overlap = "allow",
    ) -> Scheduled:
        """Run a task (or a function, which becomes one) by a cron line: `@app.cron("0 3 * * *", tz="Europe/Paris")`.

        line      5 fields, 6 with seconds first, or @daily and the like; names of days and months, L for the last day
        tz        with fixed hours, a time that the clock change skips fires at the end of the gap, and a repeated one
                  fires once; without ("*/15 * * * *"), it fires whenever the local time matches
        name      of the schedule, if a task has several; default: the task's name
        args      arguments of the task, with kwargs
        catch_up  missed ticks: "one" (only the last), "all", or "skip" (none that is more than a minute late)
        overlap   "skip": no tick while the job of the last tick has not ended
        Raises BadOption for a line that is invalid or never fires, BadArgument if the arguments do not fit the task.
        """
        return self._scheduled(crons.cron(line, tz), None, name, args, kwargs, catch_up, overlap)

    def every(
        self,
        interval: Seconds,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        catch_up: CatchUp = "one",
        overlap: Overlap = "allow",
    ) -> Scheduled:
        """Run a task every `interval` seconds (0.1 or more), first one interval after the schedule was stored. See
        `cron`."""
        return self._scheduled(crons.every(interval), None, name, args, kwargs, catch_up, overlap)

    def schedule(
        self,
        ask: crons.Next,
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        catch_up: CatchUp = "one",
        overlap: Overlap = "allow",
    ) -> Scheduled:
        """Run a task at the instants that a function returns: its argument is an aware datetime, its result the next
        one after it, or None for never again. If it raises, the error is reported and the function is called again a
        minute later. See `cron`."""
        function: object = ask
        if not callable(function):
            raise BadOption(
                "schedule", f"expected a function that takes a datetime and returns the next one, found {ask!r}"
            )
        return self._scheduled(crons.FunctionTiming(), ask, name, args, kwargs, catch_up, overlap)

    def _scheduled(self, timing: crons.Timing, ask: crons.Next | None, *rest: Any) -> Scheduled:
        def decorate(target: Any) -> Task[..., Any, Any]:
            is_task = isinstance(target, Task)
            task: Task[..., Any, Any] = target if is_task else self._new_task(target, {})
            self._core.schedules.declare(task, timing, ask, *rest)
            if not is_task:  # a function whose schedule is refused becomes no task
                self._core.register(task.name, task)
            return task

        return cast("Scheduled", decorate)

    def _new_task(
        self, function: Callable[..., Any], options: Mapping[str, Any], reduce: str | None = None
    ) -> Task[..., Any, Any]:
        """A task that is not registered yet. Raises BadTask, BadOption and BadCodec."""
        declared = self._declaration(Declaration, function, options, reduce=reduce)
        return Task(TaskCore(self._core.maker, declared))

    def _declaration(self, kind: type[D], function: Callable[..., Any], options: Mapping[str, Any], **more: Any) -> D:
        """A function with the options of its decorator. Raises BadTask, BadOption and BadCodec."""
        if isinstance(function, staticmethod):
            function = function.__func__
        codec = options.get("codec")
        constants = {name: value for name, value in options.items() if name not in kind.words}
        return kind(
            name=self._free_name(function, options.get("name"), options.get("version", 1)),
            function=function,
            kind=options.get("kind"),
            constants=cast("Options", constants),
            computed=options.get("options"),
            on_error=options.get("on_error"),
            codec=self._core.codec if codec is None else codec,
            redact=names_to_hide(options.get("redact", ())),
            requires=options.get("requires", ()),
            uses=options.get("uses"),
            version=options.get("version", 1),
            **more,
        )

    def _free_name(self, function: Callable[..., Any], name: str | None, version: int) -> str:
        if isinstance(function, Task):
            raise BadTask(f"{function.name} is already a task; put @app.cron, @app.every and the like above @app.task")
        chosen = name or name_of_function(function)
        newest = self._core.tasks.get(chosen)
        old = None if newest is None else newest.versions.get(version)
        if old is not None and not _is_redefined(old.function, function):
            raise BadTask(f"a task named {chosen!r} is already registered; give one of the two name=")
        return chosen

    def batch(
        self,
        *,
        size: int = defaults.BATCH_SIZE,
        max_wait: Seconds = defaults.BATCH_WAIT,
        by: Callable[[Any], Hashable] | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchDecorator:
        """Make a function of many items a task of one item: `@app.batch(size=50)` on `async def embed(texts: list[str])
        -> list[Vector]`; `await embed.enqueue("hi")` is a job for one item. A call gets up to `size` items.

        size      items per call, 1 to 512
        max_wait  s for which the first item of a call waits for others; it takes no slot meanwhile
        by        (item) -> a key; only items with the same key share a call
        The other options are those of `task` and apply to each item, except `uses`: one call uses that. The function
        returns one result per item, in order; an exception in place of a result fails (or defers, or aborts) that item
        alone. Raises BadTask and BadOption.
        """

        def decorate(function: Callable[..., Any]) -> BatchTask[Any, Any]:
            longest = seconds(max_wait, "max_wait")
            declared = self._declaration(BatchDeclaration, function, options, size=size, max_wait=longest, by=by)
            task: BatchTask[Any, Any] = BatchTask(BatchCore(self._core.maker, declared))
            self._core.register(declared.name, task)
            return task

        return BatchDecorator(decorate)

    def lifespan(
        self,
        function: Callable[[], AsyncIterator[S]]
        | Callable[[Self], AsyncIterator[S]]
        | Callable[[], AbstractAsyncContextManager[S]]
        | Callable[[Self], AbstractAsyncContextManager[S]],
        /,
    ) -> Lifespan[S]:
        """Make an async generator function of no argument, or of the app, the lifespan of this app: `@app.lifespan`.

        Every worker process runs it up to its yield before the first claim, and the rest after its last run. The
        yielded value is `current().state`. Workers on one event loop share it. If it raises before its yield, the
        worker ends with LifespanFailed. Raises BadOption for another function, and for a second lifespan.
        """
        return self._core.resources.declare(function, self)

    def stub(self, name: str, **options: Unpack[Options]) -> Stub:
        """A task by name, for processes in which its code is not installed. Arguments are not checked here."""
        return self._core.stub(name, **options)

    @overload
    def reducer(self, function: Rf, /) -> Rf: ...
    @overload
    def reducer(self, name: str, /) -> Callable[[Rf], Rf]: ...
    def reducer(self, function: Any, /) -> Any:
        """Register a function from a list of results to one value as a reducer, under its own name or the one given:
        `@app.reducer` or `@app.reducer("merge")`. Raises BadOption for a name taken twice."""

        def register(reduce: Any) -> Any:
            name: str = function if isinstance(function, str) else reduce.__name__
            old = self._core.reducers.get(name_of(name, "reducer"))
            if old is not None and not _is_redefined(old, reduce):
                raise BadOption("reducer", f"a reducer named {name!r} is already registered; choose another name")
            if not callable(reduce) or inspect.iscoroutinefunction(reduce):
                raise BadOption("reducer", f"expected a plain function of a list, found {reduce!r}")
            self._core.reducers[name] = reduce
            return reduce

        return register if isinstance(function, str) else register(function)

    def autodiscover(self, *names: str, module: str = "tasks") -> None:
        """Import the modules called `tasks` of these packages, and of the packages in them, when a worker starts and
        when the command line uses the app: `app.autodiscover("shop")`.

        names   packages; a name of a plain module means that module
        module  the name of the modules
        Raises BadOption for a name that does not exist; a worker raises it for a package that has no such module.
        """
        if not names:
            raise BadOption("autodiscover", "expected the name of a package, such as 'shop'")
        for name in names:
            self._core.modules.add(name, module)

    def find_task(self, name: str) -> Task[..., Any, Any]:
        """The task of that name. Raises UnknownTask, which suggests a similar name."""
        return self._core.find_task(name)


def _is_redefined(old: Any, function: Callable[..., Any]) -> bool:
    """Whether `function` redefines `old`, a task or a function: a notebook cell that runs again, or `importlib.reload`.
    Functions defined inside functions do not count, because different ones may have the same name; a method of
    another object is another function."""
    name = getattr(function, "__qualname__", "<")
    if not isinstance(getattr(function, "__self__", None), type | types.ModuleType | None):
        return False
    return "<" not in name and (old.__module__, getattr(old, "__qualname__", "")) == (function.__module__, name)
