"""What the parts of one worker share: its app, its settings, the storage, and the state of its jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from treadle.core.events import Emitter
from treadle.core.job import Sender
from treadle.core.model import Record
from treadle.execution import middleware
from treadle.execution.runner import AnyTask, OwnTask
from treadle.policy.judge import OnError
from treadle.policy.retry import Retry
from treadle.storage.contract import Storage
from treadle.tasks.options import Sizes
from treadle.tasks.reducers import Reducer
from treadle.worker.backlog import Backlog
from treadle.worker.executors.batches import Batches
from treadle.worker.leader import Role
from treadle.worker.outage import StorageOutage
from treadle.worker.redrive import Redrive
from treadle.worker.state import Timers, WorkerState


class WorkerHost(Protocol):
    """What a worker needs of its app."""

    tasks: dict[str, AnyTask]
    own: dict[str, OwnTask]
    emitter: Emitter
    layers: list[middleware.Middleware]
    on_error: OnError | None
    sizes: Sizes
    reducers: dict[str, Reducer]

    @property
    def client(self) -> Sender: ...

    async def open(self) -> Storage: ...
    async def prepare(self) -> None: ...
    async def prepare_again(self) -> bool: ...
    async def release(self) -> None: ...
    async def results(self, ids: Sequence[str]) -> list[Any]: ...
    def chance(self) -> float: ...
    def now(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """How a worker was asked to work, in seconds; the words are those of `Worker`."""

    name: str
    concurrency: int
    lease: float
    poll: float
    recovery: Retry
    role: Role | None
    ordered: bool
    accept: Callable[[Record], Any] | None
    throttle: Callable[[], Awaitable[Any]] | None
    on_backlog: Callable[[Backlog], Any] | None
    backlog_after: float
    backlog_every: float | None
    redrive: Redrive | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerParts:
    """Made once for each start of a worker; every loop gets the same one."""

    app: WorkerHost
    config: WorkerConfig
    storage: Storage
    outage: StorageOutage
    state: WorkerState
    timers: Timers
    batches: Batches
