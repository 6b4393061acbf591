"""Tasks: functions with a name and a policy, which can be called directly or enqueued to run on a worker.

Arguments are checked against the function's annotations when a job is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, ParamSpec, TypeVar, Unpack

from msgspec import UnsetType
from msgspec.structs import replace

from treadle.concurrency.spawn import answers_coroutine
from treadle.core import defaults, ids
from treadle.core.job import Job, JobSpec
from treadle.core.model import NewJob
from treadle.core.must_await import check_awaited
from treadle.errors import BadArgument, BadOption, BadTask
from treadle.policy.judge import OnError
from treadle.policy.retry import Policy
from treadle.serialization import call_codec
from treadle.tasks.job_factory import JobFactory, _Template, own_limit
from treadle.tasks.options import (
    Options,
    check_names,
    columns,
    completed,
    flag,
    merge,
    name_of,
    policy_of,
    refuse_within,
    split_within,
)
from treadle.tasks.reducers import folded_type, reducer_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    R = TypeVar("R")
    W = DefaultTypeVar("W", default=R)
else:
    R, W = TypeVar("R"), TypeVar("W")

P = ParamSpec("P")
C = TypeVar("C")

Kind = Literal["async", "thread", "process"]
Computed = Callable[..., Options]


_NO_OPTIONS = Options()
FOREIGN = {"delay": "use .enqueue(...)", "apply_async": "use .options(...).enqueue(...)"}  # names of other libraries
_OF_ONE_JOB = frozenset({"id", "key", "run_at", "deadline", "after", "when", "within"})


class Task(Generic[P, R, C, W]):
    """A function that can be enqueued. Calling the task calls the function, which is all that a unit test needs."""

    # arguments of the decorator that are not options of jobs
    _words: ClassVar[tuple[str, ...]] = ("name", "kind", "on_error", "options", "codec", "reduce", "concurrency")

    def __class_getitem__(cls, types: Any) -> Any:
        return GenericAlias(cls, types)

    def __init__(
        self,
        maker: JobFactory,
        name: str,
        function: Callable[P, C],
        kind: Kind | None,
        constants: Options,
        computed: Computed | None,
        on_error: OnError | None,
        codec_: call_codec.Codec | None,
        reduce: str | None = None,
        *,
        shown: Callable[..., Any] | None = None,
    ) -> None:
        """`shown`: a function whose annotations describe a job's argument and result, if `function`'s own do not."""
        check_names(constants, self._words)
        if " " in name_of(name, "name") or name.startswith("treadle."):
            raise BadTask(f"expected a task name without spaces that does not begin with 'treadle.', found {name!r}")
        for once in ("id", "after", "run_at", "within"):
            if once in constants:
                raise BadOption(once, "belongs to one job, not to a task; give it with .options()")
        self.name, self.function = name, function
        self.kind: Kind | Literal["batch"] = kind or ("async" if _is_async(function) else "thread")
        _check_kind(name, function, self.kind)
        self.reduce = None if reduce is None else reducer_of(maker.reducers, reduce)
        self.signature = call_codec.CallCodec(name, shown or function, codec_, folded_type(maker.reducers, reduce))
        self.on_error = on_error
        self.constants = constants
        policy = policy_of(constants)
        self.timeout = None if isinstance(policy.timeout, UnsetType) else policy.timeout
        self.max_lost = defaults.MAX_LOST if isinstance(policy.max_lost, UnsetType) else policy.max_lost
        self.retry = maker.retry if isinstance(policy.retry, UnsetType) else policy.retry.over(maker.retry)
        self._maker, self._computed = maker, computed
        self._passes, self._inline = bool(policy.pass_result), flag(constants, "inline")
        # Fields that never differ are computed once, so an enqueue without options costs one NewJob.
        fields = columns(constants, Policy(pass_result=self._passes), name, maker.now(), maker.sizes)
        self.lease: float | None = fields.get("lease")
        self.queue: str = fields.get("queue", defaults.QUEUE)
        self._fields = fields if _fixed(constants) else None
        self._blank: _Template | None = None
        if computed is None and _fixed(constants):
            self._blank = _Template(NewJob(id="", task=name, **fields), fields, self._passes, self._inline)
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> C:
        return self.function(*args, **kwargs)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobSpec[R, W]:
        """A job that is not sent yet. Raises BadArgument, which names the wrong parameter. Only the first argument may
        be left out: `chain` passes the result of the job before it."""
        return self._spec_or_late(_NO_OPTIONS, args, kwargs)

    @answers_coroutine
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R, W]]:
        """Store a job that runs this task; the job is durable when this returns. Raises BadArgument, TooLarge and
        StorageError. In synchronous code it raises NotAwaited at once: use `app.sync.enqueue(task.job(...))` there."""
        check_awaited(f"{self.__name__}.enqueue()", f"app.sync.enqueue({self.__name__}.job(...))")
        return self._enqueue(args, kwargs)

    async def _enqueue(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[R, W]:
        [job] = await self._maker.sender.send([self._spec(_NO_OPTIONS, args, kwargs)])
        return job

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            hint = f": {FOREIGN[name]}" if name in FOREIGN else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def options(self, **options: Unpack[Options]) -> Bound[P, R, W]:
        """The task with options for its next jobs: `task.options(delay=30).enqueue(...)`. Raises BadOption."""
        check_names(options)
        if self._maker.given is not None and ("queue" in options or "limits" in options):
            self._maker.given(None, options)
        return Bound(self, options)

    def late(self, /, *args: Any, **kwargs: Any) -> JobSpec[R, W]:
        """A job whose first argument is the result of the job before it, passed when it runs. `gather` and `chain` make
        such jobs. Raises BadArgument."""
        return self._spec(Options(pass_result=True), args, kwargs)

    @property
    def source(self) -> JobFactory:
        """The factory that makes its jobs, shared by all tasks of the app."""
        return self._maker

    def _spec_or_late(self, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[R, W]:
        try:
            return self._spec(options, args, kwargs)
        except BadArgument as error:
            if options.get("pass_result", self._passes):
                raise
            try:
                spec = self._spec(merge(options, {"pass_result": True}), args, kwargs)
            except BadArgument:
                raise error from None
            if args:
                more = f"{error.problem}; in a chain, {self.signature.by_name(len(args))}"
                raise BadArgument(self.name, error.parameter, more) from None
            spec.lacks = error
            return spec

    def _spec(self, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[R, W]:
        signature, decode = self.signature, self.signature.decode_result
        make = self._maker.spec
        if not options and self._blank is not None:
            return self._filled(self._blank, args, kwargs)
        if self._computed is not None:
            options = merge(self._compute(args, kwargs, options), options)
        policy, inline = None, self._inline
        if options:
            policy = policy_of(options)
            inline = flag(options, "inline") if "inline" in options else inline
            if "pass_result" not in options and self._passes:
                policy = replace(policy, pass_result=True)
        later = self._passes if policy is None else bool(policy.pass_result)
        payload = signature.encode_call(args, kwargs, first_later=later)
        policy = policy or Policy(pass_result=later)
        if self._fields is None:
            given = merge(self.constants, options)
            return make(self.name, payload, {}, given, policy, decode, inline, signature)
        options = completed(options, self.constants)
        return make(self.name, payload, self._fields, options, policy, decode, inline, signature)

    def _blank_with(self, options: Options) -> _Template | None:
        """The template for jobs with these options; None if the options differ from job to job. Raises BadOption."""
        if self._blank is None or _OF_ONE_JOB & options.keys():
            return None
        policy = policy_of(options)
        later = flag(options, "pass_result") if "pass_result" in options else self._passes
        policy = replace(policy, pass_result=later)
        more = columns(completed(options, self.constants), policy, self.name, self._maker.now(), self._maker.sizes)
        inline = flag(options, "inline") if "inline" in options else self._inline
        fields = self._blank.fields | more
        return _Template(NewJob(id="", task=self.name, **fields), fields, later, inline)

    def _filled(self, blank: _Template, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[R, W]:
        """A spec from a template: 1.4 us instead of 5.8."""
        signature, maker, here = self.signature, self._maker, ids.running.get(None)
        payload = signature.encode_call(args, kwargs, first_later=blank.later)
        if len(payload) * 4 > maker.sizes.payload:
            maker.check_size(self.name, payload)
        # Copying a row takes 0.1 us; building one from a dict of fields takes 0.3.
        new = replace(blank.row, id=maker.new_id() if here is None else here.new_id(), payload=payload)
        if self.name in maker.limited:
            new = replace(new, limits=(*new.limits, (own_limit(self.name), 1)))
        return JobSpec(new, signature.decode_result, blank.inline, maker, signature)

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Options:
        assert self._computed is not None
        try:
            computed = self._computed(*args, **kwargs)
        except Exception:
            # If an argument is invalid, this raises BadArgument with its name.
            self.signature.encode_call(args, kwargs, first_later=bool(options.get("pass_result", self._passes)))
            raise
        found: object = computed
        if not isinstance(found, Mapping):
            raise BadOption(
                "options", f"{self.name}: expected a function that returns a mapping of options, found {found!r}"
            )
        check_names(computed)
        if "within" in computed:
            raise BadOption("within", f"{self.name}: belongs to one call; give it with .options() or app.enqueue()")
        return computed

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class Bound(Generic[P, R, W]):
    """A task with options for its next jobs. The template for these options is computed once, at the first job."""

    def __init__(self, task: Task[P, R, Any, W], options: Options) -> None:
        self._task, self._options, self._within = task, options, None
        if "within" in options:
            self._options, self._within = split_within(options)
        self._blank: _Template | None = None
        self._asked = False  # whether `_blank` was computed; it may still be None

    def _spec(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[R, W]:
        if self._blank is not None:
            return self._task._filled(self._blank, args, kwargs)
        if not self._asked:
            self._blank, self._asked = self._task._blank_with(self._options), True
            return self._spec(args, kwargs)
        return self._task._spec(self._options, args, kwargs)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> JobSpec[R, W]:
        """A job that is not sent yet. See `Task.job`."""
        if self._within is not None:
            refuse_within(self._within)
        try:
            return self._spec(args, kwargs)
        except BadArgument:
            return self._task._spec_or_late(self._options, args, kwargs)  # its first argument may be passed later

    def late(self, /, *args: Any, **kwargs: Any) -> JobSpec[R, W]:
        """As `task.late`."""
        refuse_within(self._within)
        return self._task._spec(merge(self._options, {"pass_result": True}), args, kwargs)

    @answers_coroutine
    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R, W]]:
        """Store the job; it is durable when this returns, or, with `within=`, when that transaction is committed.
        Raises what `Task.enqueue` raises, KeyHeld, IdTaken, UnknownUpstream, BadSession and Unsupported."""
        name = self._task.__name__
        check_awaited(f"{name}.options(...).enqueue()", f"app.sync.enqueue({name}.options(...).job(...))")
        return self._enqueue(args, kwargs)

    async def _enqueue(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Job[R, W]:
        [job] = await self._task._maker.sender.send([self._spec(args, kwargs)], self._within)
        return job


def _fixed(constants: Options) -> bool:
    """Whether the constants are the same for every job: an instant and a key are not."""
    return not {"deadline", "key"} & set(constants)


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _check_kind(name: str, function: Callable[..., object], kind: str) -> None:
    if not callable(function):
        raise BadTask(f"{name}: expected a function, found {function!r}")
    is_async = _is_async(function)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise BadTask(f"{name}: a generator cannot be a task; return a list, or enqueue a job per item")
    if kind not in ("async", "thread", "process"):
        raise BadTask(f'{name}: kind: expected "async", "thread" or "process", found {kind!r}')
    if is_async != (kind == "async"):
        raise BadTask(f"{name}: {'an async' if is_async else 'a plain'} function cannot run as kind={kind!r}")
    if kind == "process" and "<" in getattr(function, "__qualname__", "<"):
        raise BadTask(f'{name}: kind="process" needs a function at the top level of a module, found {function!r}')
