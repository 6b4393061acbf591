"""Tasks: functions with a name and a policy, which can be called directly or enqueued to run on a worker.

Arguments are checked against the function's annotations when a job is made.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Coroutine, Iterable
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, Unpack

from treadle.concurrency.spawn import answers_coroutine
from treadle.core.awaiting import refuse_to_block, report_dropped
from treadle.core.errors import BadArgument, BadTask
from treadle.core.injected import annotations_of
from treadle.core.job import Job, JobSpec
from treadle.tasks.core import NO_OPTIONS, TaskCore
from treadle.tasks.declaration import Kind
from treadle.tasks.job_factory import Template
from treadle.tasks.options import Options, check_names, merge, refuse_within, split_within

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    R = TypeVar("R")
    W = DefaultTypeVar("W", default=R)
else:
    R, W = TypeVar("R"), TypeVar("W")

P = ParamSpec("P")
C = TypeVar("C")

_SEND = "use .enqueue(...), or .enqueue_sync(...) in synchronous code"
_OPTIONS = "use .options(...).enqueue(...), or .options(...).enqueue_sync(...) in synchronous code"
_LIST = "use app.enqueue([task.job(...), ...]), or a task that takes a list"
FOREIGN = {  # names of Celery, Dramatiq and Huey
    "delay": _SEND,
    "send": _SEND,
    "apply_async": _OPTIONS,
    "send_with_options": _OPTIONS,
    "schedule": _OPTIONS,
    "apply": "call the task to run its function here, or use app.testing()",
    "call_local": "call the task to run its function here",
    "s": "use .job(...), and .late(...) for what follows in a chain",
    "si": "use .job(...), and .options(pass_result=False).job(...) for what follows in a chain",
    "signature": "use .job(...)",
    "message": "use .job(...)",
    "chunks": _LIST,
    "map": _LIST,
    "starmap": _LIST,
    "retry": "raise Retry.after(seconds) for a counted retry, or Defer(seconds) to run later uncounted",
    "request": "use current() inside the function",
    "AsyncResult": "use app.jobs.handle(id)",
}
# Up to Python 3.13, reading `Task.__annotations__` leaves an empty dict in the class, which its objects then show.
_CLASSES_KEEP_ANNOTATIONS = sys.version_info < (3, 14)
_OF_THE_FUNCTION = ("__module__", "__name__", "__qualname__", "__doc__")


class Task(Generic[P, R, C, W]):
    """A function that can be enqueued. Calling the task calls the function, which is all that a unit test needs."""

    def __class_getitem__(cls, types: Any) -> Any:
        return GenericAlias(cls, types)

    def __init__(self, core: TaskCore) -> None:
        self._core = core
        self.__name__ = self.__qualname__ = core.name  # for a callable object without a name of its own
        functools.update_wrapper(self, core.function, _OF_THE_FUNCTION, ())
        if _CLASSES_KEEP_ANNOTATIONS:
            self.__annotations__ = _annotations_of(core.function)

    @property
    def name(self) -> str:
        """The name under which its jobs are stored."""
        return self._core.name

    @property
    def function(self) -> Callable[P, C]:
        """The function that was declared."""
        function: Callable[P, C] = self._core.function
        return function

    @property
    def kind(self) -> Kind | Literal["batch"]:
        """How its function runs: "async", "thread", "process" or "batch"."""
        return self._core.kind

    @property
    def queue(self) -> str:
        """The queue of its jobs, unless their options name another."""
        return self._core.queue

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> C:
        if self._core.injector is not None:
            self._core.injector.check_direct_call(args, kwargs)
        value: C = self._core.function(*args, **kwargs)
        return value

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobSpec[R, W]:
        """A job that is not sent yet. Raises BadArgument, which names the wrong parameter. Only the first argument may
        be left out: `chain` passes the result of the job before it."""
        return self._core.spec_or_late(NO_OPTIONS, args, kwargs)

    @answers_coroutine
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R, W]]:
        """Store a job that runs this task; the job is durable when this returns. Raises BadArgument, TooLarge and
        StorageError. Synchronous code uses `enqueue_sync`."""
        unbegun: list[Any] = []
        return report_dropped(self._core.name, self._enqueue(args, kwargs, unbegun), unbegun)

    async def _enqueue(self, args: tuple[Any, ...], kwargs: dict[str, Any], unbegun: list[Any]) -> Job[R, W]:
        unbegun.clear()
        [job] = await self._core.factory.sender.send([self._core.spec(NO_OPTIONS, args, kwargs)])
        return job

    def enqueue_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R, W]:
        """`enqueue` for synchronous code: it blocks this thread until the job is stored. Raises EventLoopError in a
        thread that runs an event loop, and what `enqueue` raises."""
        refuse_to_block(f"{self.__name__}.enqueue_sync()", f"{self.__name__}.enqueue(...)")
        [job] = self._core.factory.sender.send_sync([self._core.spec(NO_OPTIONS, args, kwargs)])
        return job

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            if name == "__annotations__":  # read late, because they may name what is defined below the task
                return _annotations_of(self._core.function)
            hint = f": {FOREIGN[name]}" if name in FOREIGN else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def options(self, **options: Unpack[Options]) -> Bound[P, R, W]:
        """The task with options for its next jobs: `task.options(delay=30).enqueue(...)`. Raises BadOption."""
        check_names(options)
        return Bound(self._core, self.__name__, options)

    def late(self, /, *args: Any, **kwargs: Any) -> JobSpec[R, W]:
        """A job whose first argument is the result of the job before it, passed when it runs. `gather` and `chain` make
        such jobs. Raises BadArgument."""
        return self._core.spec(Options(pass_result=True), args, kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"


AnyTask = Task[..., Any, Any]


def _annotations_of(function: Callable[..., Any]) -> Any:
    """The annotations of a call. A callable object has the annotations of its `__call__`; those of its class describe
    attributes."""
    own = inspect.isroutine(function) or getattr(function, "__dict__", {}).keys() & {"__annotations__", "__annotate__"}
    return annotations_of(function if own else type(function).__call__)


class Bound(Generic[P, R, W]):
    """A task with options for its next jobs. The template for these options is computed once, at the first job."""

    def __init__(self, core: TaskCore, name: str, options: Options) -> None:
        """`name`: of the function, for errors."""
        self._core, self._name, self._options, self._within = core, name, options, None
        if "within" in options:
            self._options, self._within = split_within(options)
        self._template: Template | None = None
        self._asked = False  # whether `_template` was computed; it may still be None

    def _spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[R, W]:
        if self._template is not None:
            return self._core.from_template(self._template, args, kwargs)
        if not self._asked:
            self._template, self._asked = self._core.template_for(self._options), True
            return self._spec(args, kwargs)
        return self._core.spec(self._options, args, kwargs)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobSpec[R, W]:
        """A job that is not sent yet. See `Task.job`."""
        if self._within is not None:
            refuse_within(self._within)
        try:
            return self._spec(args, kwargs)
        except BadArgument:
            return self._core.spec_or_late(self._options, args, kwargs)  # its first argument may be passed later

    def late(self, /, *args: Any, **kwargs: Any) -> JobSpec[R, W]:
        """As `task.late`."""
        refuse_within(self._within)
        return self._core.spec(merge(self._options, {"pass_result": True}), args, kwargs)

    @answers_coroutine
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R, W]]:
        """Store the job; it is durable when this returns, or, with `within=`, when that transaction is committed.
        Raises what `Task.enqueue` raises, KeyHeld, IdTaken, QueueFull, UnknownUpstream, BadSession and Unsupported."""
        unbegun: list[Any] = []
        return report_dropped(self._core.name, self._enqueue(args, kwargs, unbegun), unbegun)

    async def _enqueue(self, args: tuple[Any, ...], kwargs: dict[str, Any], unbegun: list[Any]) -> Job[R, W]:
        unbegun.clear()
        [job] = await self._core.factory.sender.send([self._spec(args, kwargs)], self._within)
        return job

    def enqueue_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R, W]:
        """`enqueue` for synchronous code, as `Task.enqueue_sync`. With `within=` the job is stored on the given
        connection, in this thread; BadSession if that is an asyncio one."""
        name = f"{self._name}.options(...)"
        refuse_to_block(f"{name}.enqueue_sync()", f"{name}.enqueue(...)")
        [job] = self._core.factory.sender.send_sync([self._spec(args, kwargs)], self._within)
        return job


def refuse_covered(tasks: Iterable[AnyTask]) -> None:
    """Raise BadTask if a decorator above `@app.task` has replaced the task in its module by a function that calls it:
    workers run the function without that decorator."""
    for task in tasks:
        member: Any = sys.modules.get(task.__module__)
        for name in task.__qualname__.split("."):
            member = getattr(member, name, None)
        same = functools.partial(operator.is_, task)
        if callable(member) and not same(member) and same(inspect.unwrap(member, stop=same)):
            raise BadTask(f"{task.name}: a decorator above @app.task hides the task; put @app.task above all others")
