"""The objects that the parts of one worker share: its app, its settings, the storage, and the state of its jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct

from treadle.core.events import Emitter
from treadle.core.job import Sender
from treadle.execution import middleware
from treadle.execution.job_run import Site
from treadle.execution.runner import SystemTask
from treadle.metrics import ProcessCounts
from treadle.policy.judge import OnError
from treadle.resources import AppResources, Life
from treadle.storage.contract import Storage
from treadle.tasks.core import TaskCore
from treadle.tasks.modules import TaskModules
from treadle.tasks.options import Sizes
from treadle.tasks.redactor import Redactor
from treadle.tasks.reducers import Reducer
from treadle.worker.capacity import Capacity
from treadle.worker.census import Census
from treadle.worker.config import WorkerConfig
from treadle.worker.executors.batches import Batches
from treadle.worker.job_metrics import JobMetrics
from treadle.worker.log_capture import LogCapture
from treadle.worker.misfit_release import MisfitRelease
from treadle.worker.outage import StorageOutage
from treadle.worker.payloads import LargeTexts
from treadle.worker.run_reports import RunReporter
from treadle.worker.state import WorkerState
from treadle.worker.timeouts import Timeouts

if TYPE_CHECKING:
    from treadle.outbox import Relay


class WorkerHost(Protocol):
    """The part of an `AppCore` that a worker uses."""

    tasks: dict[str, TaskCore]
    system_tasks: dict[str, SystemTask]
    modules: TaskModules
    emitter: Emitter
    layers: list[middleware.Middleware]
    on_error: OnError | None
    sizes: Sizes
    reducers: dict[str, Reducer]
    resources: AppResources
    counts: ProcessCounts | None
    misfit_wait: float
    redactor: Redactor
    census: Census

    @property
    def client(self) -> Sender: ...

    @property
    def relay(self) -> Relay | None: ...

    async def open(self) -> Storage: ...
    async def prepare(self) -> None: ...
    async def prepare_again(self) -> bool: ...
    async def release(self) -> None: ...
    async def results(self, ids: Sequence[str]) -> list[Any]: ...
    def random(self) -> float: ...
    def now(self) -> float: ...


class WorkerApp(Protocol):
    """An `App`, as `Worker` takes it."""

    @property
    def _core(self) -> WorkerHost: ...


class Opened(NamedTuple):
    """The storage and the resources of its app, which a worker opens before it starts."""

    storage: Storage
    life: Life
    census: Census  # the census of its process
    offer: Callable[[Sequence[Suspect]], None] | None = None  # see `Trials`


class Suspect(Struct, frozen=True):
    """A suspect that a worker holds for another process: its id and version are enough to renew and settle it."""

    id: str
    version: int
    task: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerParts:
    """Made once for each start of a worker and passed to every part."""

    app: WorkerHost
    config: WorkerConfig
    storage: Storage
    outage: StorageOutage
    state: WorkerState
    timeouts: Timeouts
    batches: Batches
    site: Site
    misfits: MisfitRelease
    texts: LargeTexts
    capacity: Capacity | None = None  # None: a worker without resources
    metrics: JobMetrics | None = None  # None: not measured
    capture: LogCapture | None = None  # None: log lines are not kept
    run_reports: RunReporter | None = None  # None: no middleware overrides `judged`
