"""The parts of an app that take part in the calls of its client. The packages of these parts import the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from treadle.execution import middleware


class Waited(Protocol):
    """Records that a caller waits for a job."""

    listening: bool

    async def waited(self, id: str) -> None: ...


class Moved(Protocol):
    """Warns if the jobs were moved to another storage; see `treadle.admin.moved_looks`."""

    async def check(self) -> None: ...


class InOutbox(Protocol):
    """A job that is in the outbox, or was; see `treadle.outbox`."""

    @property
    def became(self) -> str | None: ...
    @property
    def tries(self) -> int: ...
    @property
    def error(self) -> str | None: ...


class Outboxes(Protocol):
    """Finds jobs that were not delivered to the storage yet."""

    async def find(self, id: str) -> InOutbox | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientParts:
    """The parts of an app that take part in the calls of its client.

    layers   the middleware; the app adds to the list
    run_now  runs inline jobs in this process
    moved    warns, while a caller waits, if the jobs were moved
    orphans  records waits, while a listener for workflows without waiters exists
    outbox   the place of a job that the storage does not have yet
    """

    layers: list[middleware.Middleware] = field(default_factory=list)
    run_now: Callable[[Sequence[str]], Awaitable[None]] | None = None
    moved: Moved | None = None
    orphans: Waited | None = None
    outbox: Outboxes | None = None
