"""Tasks: functions with a name and a policy, that can be called here or enqueued to run elsewhere.

Without it there would be nothing to enqueue, and no place where arguments meet their annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Unpack, cast

from treadle import codec, defaults
from treadle.errors import BadOption, BadTask, TooLarge
from treadle.ids import IdFactory
from treadle.job import Job, JobSpec, Sender
from treadle.judge import OnError
from treadle.model import NewJob
from treadle.options import Options, Sizes, check_names, columns, name_of, seconds
from treadle.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

Kind = Literal["async", "thread", "process"]
Computed = Callable[..., Options]


class Maker:
    """What every task of an app shares: where jobs go, where ids come from, what is too large."""

    def __init__(self, sender: Sender, new_id: IdFactory, now: Callable[[], float], retry: Retry, sizes: Sizes) -> None:
        self.sender, self.new_id, self.now, self.retry, self.sizes = sender, new_id, now, retry, sizes

    def spec(self, task: str, payload: str, constants: dict[str, Any], options: Options, decode: Callable[[str], Any]) -> JobSpec[Any]:
        """The spec of one job; `constants` are fields worked out before, `options` what this job adds."""
        if len(payload) * 4 > self.sizes.payload and (size := len(payload.encode())) > self.sizes.payload:
            raise TooLarge(f"the payload of {task}", size, self.sizes.payload)
        if not options:
            return JobSpec(NewJob(id=self.new_id(), task=task, payload=payload, **constants), decode)
        fields = constants | columns(options, options, task, self.now(), self.sizes)
        id = fields.pop("id", None) or self.new_id()
        inline = bool(options.get("inline", False))
        return JobSpec(NewJob(id=id, task=task, payload=payload, **fields), decode, inline)


class Task(Generic[P, R, C]):
    """A function that can be enqueued. Calling it calls the function: a unit test needs nothing else."""

    def __init__(
        self, maker: Maker, name: str, function: Callable[P, C], kind: Kind | None, constants: Options,
        computed: Computed | None, on_error: OnError | None, codec_: codec.Codec | None,
    ) -> None:  # fmt: skip
        check_names(constants)
        if " " in name or name_of(name, "name").startswith("treadle."):
            raise BadTask(f"a task name has no spaces and does not begin with 'treadle.', found {name!r}")
        for once in ("id", "after", "run_at"):
            if once in constants:
                raise BadOption(once, "belongs to one job, not to a task; give it with .options()")
        self.name, self.function = name, function
        self.kind: Kind = kind or ("async" if inspect.iscoroutinefunction(function) else "thread")
        _check_kind(name, function, self.kind)
        self.signature = codec.Signature(name, function, codec_)
        self.on_error = on_error
        self.constants = dict(constants)
        self.timeout = None if constants.get("timeout") is None else seconds(constants["timeout"] or 0, "timeout")
        self.max_lost = constants.get("max_lost", defaults.MAX_LOST)
        self.retry = constants.get("retry", Retry()).over(maker.retry)
        self.lease = None if "lease" not in constants else seconds(constants["lease"], "lease")
        self.queue = constants.get("queue", defaults.QUEUE)
        self._maker, self._computed = maker, computed
        # What never differs is worked out once: an enqueue without options costs one NewJob.
        self._fields = columns(constants, Options(), name, maker.now(), maker.sizes) if _fixed(constants) else None
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        return self.function(*args, **kwargs)

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec[R]:
        """A job that is not sent yet. Raises BadArgument, naming the parameter that does not fit."""
        return self._spec(Options(), args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R, R]:
        """Store a job that will run this task; durable when it returns. Raises BadArgument, TooLarge, StorageError."""
        [job] = await self._maker.sender.send([self._spec(Options(), args, kwargs)])
        return job

    def options(self, **options: Unpack[Options]) -> Bound[P, R]:
        """The same task with options for the next job: `task.options(delay=30).enqueue(...)`."""
        check_names(options)
        return Bound(self, options)

    def _spec(self, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> JobSpec[R]:
        later = options.get("pass_result", False) or self.constants.get("pass_result", False)
        payload = self.signature.encode_call(args, kwargs, first_later=bool(later))
        if self._computed is not None:
            computed = self._computed(*args, **kwargs)
            check_names(computed)
            options = {**computed, **options}
        if self._fields is None:
            options = cast("Options", {**self.constants, **options})
            return self._maker.spec(self.name, payload, {}, options, self.signature.decode_result)
        if "cost" in options and "limits" not in options and "limits" in self.constants:
            options = cast("Options", {**options, "limits": self.constants["limits"]})
        return self._maker.spec(self.name, payload, self._fields, options, self.signature.decode_result)

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class Bound(Generic[P, R]):
    """A task with options for one job."""

    def __init__(self, task: Task[P, R, Any], options: Options) -> None:
        self._task, self._options = task, options

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec[R]:
        """A job that is not sent yet."""
        return self._task._spec(self._options, args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R, R]:
        """Store the job; durable when it returns."""
        [job] = await self._task._maker.sender.send([self.job(*args, **kwargs)])
        return job


class Stub:
    """A task known by name only: its code is not installed here. Arguments cannot be checked before it runs."""

    def __init__(self, maker: Maker, name: str, options: Options | None = None) -> None:
        self.name = name_of(name, "name")
        self._maker, self._options = maker, options or Options()

    def options(self, **options: Unpack[Options]) -> Stub:
        check_names(options)
        return Stub(self._maker, self.name, cast("Options", {**self._options, **options}))

    def job(self, *args: object, **kwargs: object) -> JobSpec[Any]:
        payload = codec.encode_foreign_call(args, kwargs)
        return self._maker.spec(self.name, payload, {}, self._options, codec.decode_any)

    async def enqueue(self, *args: object, **kwargs: object) -> Job[Any, Any]:
        """Store the job; durable when it returns."""
        [job] = await self._maker.sender.send([self.job(*args, **kwargs)])
        return job


def _fixed(constants: Options) -> bool:
    """Whether the constants mean the same for every job: a moment does not."""
    return not {"deadline", "key"} & set(constants)


def _check_kind(name: str, function: Callable[..., object], kind: str) -> None:
    if not callable(function):
        raise BadTask(f"{name}: a task is a function, found {function!r}")
    is_async = inspect.iscoroutinefunction(function)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise BadTask(f"{name}: a generator cannot be a task; return a list, or enqueue a job per item")
    if kind not in ("async", "thread", "process"):
        raise BadTask(f'{name}: kind: expected "async", "thread" or "process", found {kind!r}')
    if is_async != (kind == "async"):
        raise BadTask(f"{name}: {'an async' if is_async else 'a plain'} function cannot run as kind={kind!r}")
    if kind == "process" and "<" in getattr(function, "__qualname__", "<"):
        raise BadTask(f'{name}: kind="process" needs a function at the top of a module, found {function!r}')
