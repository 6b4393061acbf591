"""A job before it is sent (JobSpec) and after (Job): small handles around an id.

Without it nobody could name a job before sending it, or ask for its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from msgspec.structs import replace

from treadle.errors import JobCancelled, JobExpired, JobFailed
from treadle.model import EXPIRED, NewJob, Record, State

T_co = TypeVar("T_co", covariant=True)
W_co = TypeVar("W_co", covariant=True)

Decode = Callable[[str], Any]


class Sender(Protocol):
    """What a task, a spec or a job needs of the app: to send, and to wait for an ending."""

    async def send(self, specs: Sequence[JobSpec[Any]], within: Any = None) -> list[Job[Any, Any]]: ...
    async def ended(self, id: str, timeout: float | timedelta | None) -> Record: ...


class JobSpec(Generic[T_co]):
    """A job that has its id and everything it was asked with, and has not been sent."""

    __slots__ = ("decode", "inline", "new")

    def __init__(self, new: NewJob, decode: Decode, inline: bool = False) -> None:
        self.new, self.decode, self.inline = new, decode, inline

    @property
    def id(self) -> str:
        return self.new.id

    def changed(self, **fields: Any) -> JobSpec[T_co]:
        """The same spec with other fields of its row."""
        return JobSpec(replace(self.new, **fields), self.decode, self.inline)

    def __repr__(self) -> str:
        return f"<spec {self.new.task} {self.new.id}>"


class Job(Generic[T_co, W_co]):
    """A job that was sent: its id, and the way to what becomes of it.

    Two handles are equal when they name the same job.
    """

    __slots__ = ("_decode", "_sender", "id", "task")

    def __init__(self, id: str, task: str, sender: Sender, decode: Decode) -> None:
        self.id, self.task = id, task
        self._sender, self._decode = sender, decode

    async def result(self, timeout: float | timedelta | None = None) -> T_co:
        """What the job returned, as soon as it has succeeded; waits up to `timeout` seconds (None: for ever).

        Raises JobFailed, JobExpired or JobCancelled for the other endings, JobUnknown for a job that is not stored
        (any more), TimeoutError when it has not ended in time; the job itself goes on.
        """
        value: T_co = value_of(await self._sender.ended(self.id, timeout), self._decode)
        return value

    async def ended(self, timeout: float | timedelta | None = None) -> Record:
        """The row, once the job has ended, however. Raises JobUnknown, TimeoutError."""
        return await self._sender.ended(self.id, timeout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<job {self.task} {self.id}>"


def value_of(row: Record, decode: Decode) -> Any:
    """The result of an ended job, or the error that says how else it ended."""
    if row.state is State.SUCCEEDED:
        return None if row.result is None else decode(row.result)
    if row.state is State.CANCELLED:
        raise JobCancelled(row.job.id, row.job.task, row.reason, row.error)
    kind = JobExpired if row.reason == EXPIRED else JobFailed
    raise kind(row.job.id, row.job.task, row.reason, row.error)
