"""JobSpec, a job that is not stored yet, and Job, the handle of a stored one.

A spec has its id before it is sent. So a job can be named before it exists, and a task can return a spec to continue as
that job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from types import GenericAlias, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Union, get_args, get_origin

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.awaiting import refuse_to_block
from treadle.core.errors import JobCancelled, JobExpired, JobFailed, JobNotDone
from treadle.core.model import CHILDREN, EXPIRED, NewJob, Record, State

if TYPE_CHECKING:
    # The default: without children, the value of the workflow is the job's own result.
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True)
    W_co = TypeVar("W_co", covariant=True, default=T_co)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)
    W_co = TypeVar("W_co", covariant=True)

V_co = TypeVar("V_co", covariant=True)
T = TypeVar("T")
W = TypeVar("W")

Decode = Callable[[str], Any]


class Sender(Protocol):
    """The methods of the app that tasks, specs and jobs call: to send jobs, and to wait for their endings."""

    layers: list[Any]  # its middleware

    def send(self, specs: Sequence[JobSpec[Any, Any]], within: Any = None) -> Awaitable[list[Job[Any, Any]]]: ...
    def send_sync(self, specs: Sequence[JobSpec[Any, Any]], within: Any = None) -> list[Job[Any, Any]]: ...
    def wait_sync(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
    async def ended(self, id: str, timeout: float | timedelta | None, own: bool = False) -> Record: ...
    async def failure(self, row: Record) -> JobNotDone: ...
    async def progress(self, id: str) -> Progress: ...
    def decode(self, row: Record, text: str, folded: bool = False) -> Any: ...


class Source(Protocol):
    """The app and the task of a spec, as far as flows and chains need them."""

    @property
    def sender(self) -> Sender: ...
    @property
    def reducers(self) -> Mapping[str, Callable[[list[Any]], Any]]: ...
    def fresh_id(self) -> str: ...


class Continuation(Generic[T_co, W_co]):
    """The base of everything that a task may return instead of a value: a spec, a flow, a chain, or `Conclude`."""

    __slots__ = ()

    if TYPE_CHECKING:
        # Every object has this method. Here it is None, so that type checkers distinguish the types in `int |
        # JobSpec[int]` (see Value).
        __sizeof__: ClassVar[None]  # type: ignore[assignment]

    def __class_getitem__(cls, types: Any) -> Any:
        return GenericAlias(cls, types if isinstance(types, tuple) else (types,))


class Value(Protocol):
    """For type checkers: a result that is not a `Continuation`."""

    def __sizeof__(self) -> int: ...


def inheriting(new: NewJob, headers: Mapping[str, str]) -> NewJob:
    """The job with these headers added. A header that it has already keeps its value."""
    return replace(new, headers=tuple({**headers, **dict(new.headers)}.items()))


class JobSpec(Struct, Continuation[T_co, W_co], eq=False):  # a Struct: 0.07 us to build; a class of this width: 0.34
    """A job with its id and all its options, not sent yet. A task that returns one continues as that job."""

    new: NewJob
    decode: Decode | None = None
    inline: bool = False
    source: Source | None = None
    signature: Any = None
    others: tuple[NewJob, ...] = ()  # jobs that are stored together with it: the parts of a flow
    alone: bool = False  # made with pass_result=False: it takes no result, not even in a chain
    lacks: Exception | None = None  # why it cannot be sent as it is: its first argument comes from the job before
    _first: JobSpec[Any, Any] | None = None  # the spec it was changed from; itself would be a reference cycle
    _sent: bool = False

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def sent(self) -> bool:
        """Whether it is stored, through this spec or one made from it by `changed`."""
        return self._sent if self._first is None else self._first._sent

    def mark_sent(self) -> bool:
        """Record that the spec is stored. Returns False if that was recorded already."""
        first = self if self._first is None else self._first
        known, first._sent = first._sent, True
        return not known

    def changed(self, **fields: Any) -> JobSpec[T_co, W_co]:
        """The same spec with other fields. `headers` replaces those of all its jobs, including the parts of a flow or a
        chain."""
        first, others = self if self._first is None else self._first, self.others
        if others and "headers" in fields:
            others = tuple([replace(new, headers=fields["headers"]) for new in others])
        return replace(self, new=replace(self.new, **fields), others=others, _first=first, _sent=False)

    def with_headers(self, headers: Mapping[str, str]) -> JobSpec[T_co, W_co]:
        """The same spec with these headers added, in a flow or a chain to each part. A header that exists already gets
        the new value."""
        return self._mapped(lambda new: replace(new, headers=tuple({**dict(new.headers), **headers}.items())))

    def inheriting(self, headers: Mapping[str, str]) -> JobSpec[T_co, W_co]:
        """The same spec with these headers added. A header that a job of it has already keeps its value."""
        return self._mapped(lambda new: inheriting(new, headers))

    def _mapped(self, change: Callable[[NewJob], NewJob]) -> JobSpec[T_co, W_co]:
        first, others = self if self._first is None else self._first, tuple([change(new) for new in self.others])
        return replace(self, new=change(self.new), others=others, _first=first, _sent=False)

    def __repr__(self) -> str:
        return f"<spec {self.new.task} {self.new.id}>"


class Job(Generic[T_co, W_co]):
    """The handle of a job that was sent: its id, and methods to wait for its ending.

    Two handles are equal if they have the same id.
    """

    __slots__ = ("_decode", "_sender", "created", "id", "task")

    def __init__(self, id: str, task: str, sender: Sender, decode: Decode | None, created: bool = False) -> None:
        """`created`: whether the call that returned this handle stored the job. It is False if an earlier job has the
        same id or holds the key, and for a handle from `app.jobs`."""
        self.id, self.task, self.created = id, task, created
        self._sender, self._decode = sender, decode

    def __class_getitem__(cls, types: Any) -> Any:
        return GenericAlias(cls, types if isinstance(types, tuple) else (types,))

    async def result(self, timeout: float | timedelta | None = None) -> T_co:
        """The value that the job returned; waits until the job has succeeded, up to `timeout` seconds (None: for ever).
        If the job returned `flow(...)` without a value of its own, this is the value of the workflow, once all its
        children have ended.

        Raises JobFailed (WorkflowFailed because of a child), JobExpired or JobCancelled for the other endings,
        UnknownJob if the job is not stored (any more), and TimeoutError if it has not ended in time; the job itself
        continues.
        """
        row = await self._sender.ended(self.id, timeout, own=True)
        if has_result(row):
            value: T_co = self._read(row, row.result)
            return value
        raise await self._sender.failure(row)

    def result_sync(self, timeout: float | timedelta | None = None) -> T_co:
        """`result` for synchronous code: it blocks this thread. Raises EventLoopError in a thread that runs an event
        loop, and what `result` raises."""
        refuse_to_block("job.result_sync()", "job.result(...)")
        return self._sender.wait_sync(lambda: self.result(timeout))

    async def ended(self, timeout: float | timedelta | None = None) -> Record:
        """The row, once the job has ended in any state. Raises UnknownJob and TimeoutError; `timeout` as in
        `result`."""
        return await self._sender.ended(self.id, timeout)

    def ended_sync(self, timeout: float | timedelta | None = None) -> Record:
        """`ended` for synchronous code, as `result_sync`."""
        refuse_to_block("job.ended_sync()", "job.ended(...)")
        return self._sender.wait_sync(lambda: self._sender.ended(self.id, timeout))

    @property
    def workflow(self) -> Workflow[W_co]:
        """The workflow of this job: the job and all its descendants."""
        return Workflow(self)

    def _read(self, row: Record, text: str | None) -> Any:
        if text is None:
            return None
        return self._sender.decode(row, text) if self._decode is None or row.function_done else self._decode(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<job {self.task} {self.id}>"


class Progress(Struct, frozen=True):
    """The progress of a workflow: how many jobs it has so far, how many of them have ended, and how many are in which
    state."""

    total: int
    done: int
    states: Mapping[State, int]

    @property
    def fraction(self) -> float:
        """0 to 1. It falls when a job adds children."""
        return self.done / self.total if self.total else 1.0


class Workflow(Generic[V_co]):
    """A job, its children, their children, and so on."""

    __slots__ = ("_job",)

    def __init__(self, job: Job[Any, V_co]) -> None:
        self._job = job

    async def result(self, timeout: float | timedelta | None = None) -> V_co:
        """The value of the workflow, once its last job has ended: the results of the children, combined by the reducer,
        or the job's own result if it has no children. Raises WorkflowFailed, which names each failed job, and otherwise
        the errors of `job.result()`."""
        sender = self._job._sender
        row = await sender.ended(self._job.id, timeout)
        if row.state is not State.SUCCEEDED:
            raise await sender.failure(row)
        if row.value is None:
            own: V_co = None if row.function_done else self._job._read(row, row.result)  # type: ignore[assignment]
            return own
        value: V_co = sender.decode(row, row.value, folded=True)
        return value

    def result_sync(self, timeout: float | timedelta | None = None) -> V_co:
        """`result` for synchronous code: it blocks this thread. Raises EventLoopError in a thread that runs an event
        loop, and what `result` raises."""
        refuse_to_block("job.workflow.result_sync()", "job.workflow.result(...)")
        return self._job._sender.wait_sync(lambda: self.result(timeout))

    async def progress(self) -> Progress:
        """The number of its jobs by state. Raises UnknownJob."""
        return await self._job._sender.progress(self._job.id)

    def progress_sync(self) -> Progress:
        """`progress` for synchronous code, as `result_sync`."""
        refuse_to_block("job.workflow.progress_sync()", "job.workflow.progress()")
        return self._job._sender.wait_sync(lambda: self._job._sender.progress(self._job.id))


def has_result(row: Record) -> bool:
    """Whether the job's own result is final: it has succeeded, or its function has returned a value and the job waits
    for its children (or failed because of them)."""
    if row.state is State.SUCCEEDED:
        return True
    return row.function_done and row.result is not None and (not row.state.final or row.reason == CHILDREN)


def not_done(row: Record, *failures: JobNotDone) -> JobNotDone:
    """The error for a job that has ended without success, or has not ended."""
    if not row.state.final:
        return JobNotDone(row.job.id, row.job.task, None, f"it has not ended: it is {row.state}")
    if row.state is State.CANCELLED:
        return JobCancelled(row.job.id, row.job.task, row.reason, row.error)
    kind = JobExpired if row.reason == EXPIRED else JobFailed
    return kind(row.job.id, row.job.task, row.reason, row.error)


def returned(hint: Any) -> tuple[Any, Any]:
    """The types of the job's own result and of its workflow's value, read from a return annotation."""
    origin = get_origin(hint)
    if origin is Union or origin is UnionType:
        if Any in get_args(hint):
            return Any, Any
        both = [returned(part) for part in get_args(hint)]
        both = [pair for pair in both if pair != (Any, Any)] or both  # `int | JobSpec[Any]` becomes int
        results, values = tuple(own for own, _ in both), tuple(value for _, value in both)
        return Union[results], Union[values]  # noqa: UP007  # made of a tuple
    kind, parts = origin or hint, get_args(hint)
    if not (isinstance(kind, type) and issubclass(kind, Continuation)):
        return hint, hint
    if not parts:
        return Any, Any
    return parts[-1] if issubclass(kind, JobSpec) else parts[0], parts[-1]
