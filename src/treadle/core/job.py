"""A job before it is sent (JobSpec) and after (Job): small handles around an id.

Without it nobody could name a job before sending it, ask for its result, or say that a task goes on as another job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from types import GenericAlias, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Union, get_args, get_origin

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.model import CHILDREN, EXPIRED, NewJob, Record, State
from treadle.core.must_await import Awaited
from treadle.errors import JobCancelled, JobExpired, JobFailed, JobNotDone

if TYPE_CHECKING:
    # The defaults say: without children, the value of the workflow is the job's own result.
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
    """What a task, a spec or a job needs of the app: to send, and to wait for an ending."""

    def send(self, specs: Sequence[JobSpec[Any, Any]], within: Any = None) -> Awaitable[list[Job[Any, Any]]]: ...
    async def mistyped(self, jobs: Sequence[NewJob]) -> Sequence[str]: ...
    async def ended(self, id: str, timeout: float | timedelta | None, own: bool = False) -> Record: ...
    async def failure(self, row: Record) -> JobNotDone: ...
    async def progress(self, id: str) -> Progress: ...
    def decode(self, row: Record, text: str, folded: bool = False) -> Any: ...


class Source(Protocol):
    """The app a spec was made by, and what its task knows of arguments: enough to compose it with others."""

    @property
    def sender(self) -> Sender: ...
    @property
    def reducers(self) -> Mapping[str, Callable[[list[Any]], Any]]: ...
    def fresh_id(self) -> str: ...


class Continuation(Generic[T_co, W_co]):
    """What a task may return instead of a value: a spec, a flow, a chain, or `Conclude`."""

    __slots__ = ()

    if TYPE_CHECKING:
        # What every object has, and this has not: so that checkers tell `int` from `int | JobSpec[int]` (see Value).
        __sizeof__: ClassVar[None]  # type: ignore[assignment]

    def __class_getitem__(cls, types: Any) -> Any:
        return GenericAlias(cls, types if isinstance(types, tuple) else (types,))


class Value(Protocol):
    """For type checkers: a result that is no continuation."""

    def __sizeof__(self) -> int: ...


class JobSpec(Struct, Continuation[T_co, W_co], eq=False):  # a Struct: 0.07 us to make, a class of this width 0.34
    """A job that has its id and everything it was asked with, and has not been sent. Returned by a task, it is what
    that job goes on as."""

    new: NewJob
    decode: Decode | None = None
    inline: bool = False
    source: Source | None = None
    signature: Any = None
    others: tuple[NewJob, ...] = ()  # jobs that are stored with it: what a flow is made of
    lacks: Exception | None = None  # why it cannot be sent as it is: its first argument is to come from the job before
    _first: JobSpec[Any, Any] | None = None  # the one it was changed from; not itself, which were a cycle
    _sent: bool = False

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def sent(self) -> bool:
        """Whether it is stored: this one, or one it was changed to."""
        return self._sent if self._first is None else self._first._sent

    def mark_sent(self) -> bool:
        """It is stored. Whether this was not known before."""
        first = self if self._first is None else self._first
        known, first._sent = first._sent, True
        return not known

    def changed(self, **fields: Any) -> JobSpec[T_co, W_co]:
        """The same spec with other fields of its row. `headers` are those of all its rows: also of the jobs that a flow
        or a chain is made of."""
        first, others = self if self._first is None else self._first, self.others
        if others and "headers" in fields:
            others = tuple([replace(new, headers=fields["headers"]) for new in others])
        return replace(self, new=replace(self.new, **fields), others=others, _first=first, _sent=False)

    def with_headers(self, headers: Mapping[str, str]) -> JobSpec[T_co, W_co]:
        """The same spec with these headers beside its own, also on the jobs that a flow or a chain is made of. A header
        that is there already gets the new value."""

        def merged(new: NewJob) -> NewJob:
            return replace(new, headers=tuple({**dict(new.headers), **headers}.items()))

        first = self if self._first is None else self._first
        others = tuple([merged(new) for new in self.others])
        return replace(self, new=merged(self.new), others=others, _first=first, _sent=False)

    def __repr__(self) -> str:
        return f"<spec {self.new.task} {self.new.id}>"


class Job(Awaited, Generic[T_co, W_co], call="job", more={"result": "app.sync.result(job)"}):
    """A job that was sent: its id, and the way to what becomes of it.

    Two handles are equal when they name the same job.
    """

    __slots__ = ("_decode", "_sender", "created", "id", "task")

    def __init__(self, id: str, task: str, sender: Sender, decode: Decode | None, created: bool = False) -> None:
        """`created`: whether the call that returned this handle stored the job. It is False where a job that was stored
        before has the id or holds the key, and for a handle from `app.jobs`."""
        self.id, self.task, self.created = id, task, created
        self._sender, self._decode = sender, decode

    def __class_getitem__(cls, types: Any) -> Any:
        return GenericAlias(cls, types if isinstance(types, tuple) else (types,))

    async def result(self, timeout: float | timedelta | None = None) -> T_co:
        """What the job returned, as soon as it has succeeded; waits up to `timeout` seconds (None: for ever). Of a job
        that returned `flow(...)` without a value of its own it is the workflow's, when all its children have ended.

        Raises JobFailed (WorkflowFailed because of a child), JobExpired or JobCancelled for the other endings,
        UnknownJob for a job that is not stored (any more), TimeoutError when it has not ended in time; the job itself
        goes on.
        """
        row = await self._sender.ended(self.id, timeout, own=True)
        if has_result(row):
            value: T_co = self._read(row, row.result)
            return value
        raise await self._sender.failure(row)

    async def ended(self, timeout: float | timedelta | None = None) -> Record:
        """The row, once the job has ended, however. Raises UnknownJob, TimeoutError."""
        return await self._sender.ended(self.id, timeout)

    @property
    def workflow(self) -> Workflow[W_co]:
        """The job and all that came of it."""
        return Workflow(self)

    def _read(self, row: Record, text: str | None) -> Any:
        if text is None:
            return None
        return self._sender.decode(row, text) if self._decode is None or row.ran else self._decode(text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<job {self.task} {self.id}>"


class Progress(Struct, frozen=True):
    """How far a workflow is: how many jobs there are so far, how many have ended, and how many are in which state."""

    total: int
    done: int
    states: Mapping[State, int]

    @property
    def fraction(self) -> float:
        """0 to 1. It may fall when a job brings children of its own."""
        return self.done / self.total if self.total else 1.0


class Workflow(Awaited, Generic[V_co], call="job.workflow"):
    """A job and its children, their children, and so on: what became of all of it."""

    __slots__ = ("_job",)

    def __init__(self, job: Job[Any, V_co]) -> None:
        self._job = job

    async def result(self, timeout: float | timedelta | None = None) -> V_co:
        """The value of the whole, when the last job of it has ended: what the children's results are folded to; without
        children the job's own result. Raises WorkflowFailed, which names each job that failed, and otherwise what
        `job.result()` raises."""
        sender = self._job._sender
        row = await sender.ended(self._job.id, timeout)
        if row.state is not State.SUCCEEDED:
            raise await sender.failure(row)
        if row.value is None:
            own: V_co = None if row.ran else self._job._read(row, row.result)  # type: ignore[assignment]
            return own
        value: V_co = sender.decode(row, row.value, folded=True)
        return value

    async def progress(self) -> Progress:
        """Counts of its jobs by state. Raises UnknownJob."""
        return await self._job._sender.progress(self._job.id)


def has_result(row: Record) -> bool:
    """Whether the job's own result stands: it has succeeded, or it ran, gave a value and waits for its children (or
    has failed because of them)."""
    if row.state is State.SUCCEEDED:
        return True
    return row.ran and row.result is not None and (not row.state.final or row.reason == CHILDREN)


def not_done(row: Record, *failures: JobNotDone) -> JobNotDone:
    """The error that says how a job ended, or that it has not."""
    if not row.state.final:
        return JobNotDone(row.job.id, row.job.task, None, f"it has not ended: it is {row.state}")
    if row.state is State.CANCELLED:
        return JobCancelled(row.job.id, row.job.task, row.reason, row.error)
    kind = JobExpired if row.reason == EXPIRED else JobFailed
    return kind(row.job.id, row.job.task, row.reason, row.error)


def returned(hint: Any) -> tuple[Any, Any]:
    """What a return annotation says of the job's own result and of the value of its workflow."""
    origin = get_origin(hint)
    if origin is Union or origin is UnionType:
        both = [returned(part) for part in get_args(hint)]
        both = [pair for pair in both if pair != (Any, Any)] or both  # `int | JobSpec[Any]` comes to an int
        results, values = tuple(own for own, _ in both), tuple(value for _, value in both)
        return Union[results], Union[values]  # noqa: UP007  # made of a tuple
    kind, parts = origin or hint, get_args(hint)
    if not (isinstance(kind, type) and issubclass(kind, Continuation)):
        return hint, hint
    if not parts:
        return Any, Any
    return parts[-1] if issubclass(kind, JobSpec) else parts[0], parts[-1]
