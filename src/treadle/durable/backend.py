"""The services of a worker that durable code uses, and the exceptions that end a run which sleeps or stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from treadle.core.job import JobSpec
from treadle.core.model import NewJob, Outcome, Record, Settled
from treadle.serialization.call_codec import Codec
from treadle.tasks.options import Sizes

IN_BATCH = object()  # the place of a batch item, whose function also runs for other items

EARLY = 0.001  # s; a sleep that has less than this left is over


class DurableRun(Protocol):
    """The attributes of a run's context that durable code uses."""

    record: Record
    suspended_as: Outcome | None
    came: float
    sent: float
    place: object
    subject: Record | None


class DurableBackend(Protocol):
    """The services of the worker that durable code uses. Each call is repeated until the storage answers."""

    loop: asyncio.AbstractEventLoop
    sizes: Sizes
    offload: int  # bytes above which a text goes to the blob store; 0: there is none

    def now(self) -> float: ...
    def random(self) -> float: ...
    def codec(self, task: str) -> Codec | None: ...
    def arguments(self, record: Record, args: Any, kwargs: Any) -> str: ...
    def is_cancelled(self, run: DurableRun) -> bool: ...
    def keeps(self, run: DurableRun) -> bool: ...
    def check(self, run: DurableRun) -> object: ...
    async def save(self, run: DurableRun) -> None: ...
    async def get(self, ids: Sequence[str]) -> Sequence[Record | None]: ...
    async def store(self, job: NewJob) -> Record: ...
    async def store_all(self, jobs: Sequence[NewJob]) -> Sequence[Record]: ...
    def specs(self, record: Record, jobs: Iterable[Any], where: str) -> list[JobSpec[Any, Any]]: ...
    async def adopted(self, run: DurableRun, jobs: Sequence[NewJob], time_left: float | None) -> tuple[NewJob, ...]: ...
    def decoded(self, of: Any, text: str) -> Any: ...
    async def cancel(self, record: Record, ids: Sequence[str]) -> None: ...
    async def kept_limits(self, job: NewJob, around: Iterable[str]) -> frozenset[str]: ...
    async def settle(self, outcomes: Sequence[Outcome]) -> Sequence[Settled]: ...
    def joining(self, name: str) -> AbstractAsyncContextManager[object]: ...
    async def call(self, run: DurableRun, function: Callable[[], Any]) -> Any: ...
    def around_step(self, run: DurableRun, name: str) -> AbstractContextManager[object]: ...


class Leaving(BaseException):
    """Leaves a function, or a block of it. Not an Exception, so `except Exception` does not catch it."""


class Suspend(Leaving):
    """Ends the function of a job that sleeps or waits."""


class Stopped(Leaving):
    """Ends a function in a thread that waits for the storage when its run is cancelled."""


SWALLOWED = (
    "the function continued after sleep() or wait_for(), which suspend it by an exception: an `except BaseException`, "
    "a bare `except` or a `return` in a `finally` caught that; catch Exception instead, or raise it again"
)

REPLACED = (
    "It was raised while sleep() or wait_for() suspended the function, for example by a `finally` or an `async with`. "
    "The next attempt sleeps or waits on."
)


def is_suspension(error: BaseException | None) -> bool:
    """Whether this is a Suspend, or an exception group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_suspension(part) for part in error.exceptions)
    return isinstance(error, Suspend)
