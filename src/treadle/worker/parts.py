"""The objects that the parts of one worker share: its app, its settings, the storage, the state of its jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.events import Emitter
from treadle.core.model import Presence
from treadle.execution import RunnerHost, SystemTask, middleware
from treadle.execution.job_run import Site
from treadle.metrics import ProcessCounts
from treadle.policy.claim_plan import Rooms
from treadle.resources import AppResources, Life
from treadle.storage.contract import Storage
from treadle.tasks.core import TaskCore
from treadle.tasks.modules import TaskModules
from treadle.tasks.redactor import Redactor
from treadle.tasks.reducers import Reducer
from treadle.worker.capacity import Capacity
from treadle.worker.census import Census
from treadle.worker.config import WorkerConfig
from treadle.worker.executors.batches import Batches
from treadle.worker.executors.threads import Executors
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.job_metrics import JobMetrics
from treadle.worker.leader import LeaderDuties, LeaderElection
from treadle.worker.log_capture import LogCapture
from treadle.worker.lost_job_reports import LostReporter
from treadle.worker.misfit_release import MisfitRelease
from treadle.worker.outage import StorageOutage
from treadle.worker.resource_use import ResourceUse
from treadle.worker.run_logs import RunLogs
from treadle.worker.run_reports import RunReporter
from treadle.worker.state import WorkerState

if TYPE_CHECKING:
    from treadle.outbox import Relay


class WorkerHost(RunnerHost, Protocol):
    """The part of an `AppCore` that a worker uses."""

    tasks: dict[str, TaskCore]
    system_tasks: dict[str, SystemTask]
    modules: TaskModules
    emitter: Emitter
    reducers: dict[str, Reducer]
    resources: AppResources
    counts: ProcessCounts | None
    misfit_wait: float
    redactor: Redactor
    census: Census
    in_test: bool

    @property
    def relay(self) -> Relay | None: ...

    async def open(self) -> Storage: ...
    async def prepare(self) -> None: ...
    async def prepare_again(self) -> bool: ...
    async def release(self) -> None: ...
    async def results(self, ids: Sequence[str]) -> list[Any]: ...


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
    """A suspect that a worker holds for another process: its id and version are enough to renew and settle it.

    explains  workers whose end it explains
    sent      when its claim was sent, by the clock of this machine
    came      when the answer came
    """

    id: str
    version: int
    task: str
    sent: float
    came: float
    explains: tuple[str, ...] = ()


class WorkerParts:
    """Made once for each start of a worker and passed to every part of it.

    queues        with their weights
    worker_tasks  the tasks that the worker may claim
    patient       False: items of a batch wait only for items that are queued already
    capacity      None: a worker without resources
    metrics       None: not measured
    run_logs      None: log lines are not kept
    run_reports   None: no middleware overrides `judged`, so a run costs nothing more
    maintains     it serves the system queue, and does what the leader of a fleet does
    """

    def __init__(
        self,
        app: WorkerHost,
        config: WorkerConfig,
        queues: dict[str, int],
        worker_tasks: Callable[[], Rooms],
        pools: Executors,
        opened: Opened,
        outage: StorageOutage,
        patient: bool,
    ) -> None:
        self.app, self.config, self.queues, self.pools, self.outage = app, config, queues, pools, outage
        self._worker_tasks = worker_tasks
        self.storage, self.life = opened.storage, opened.life
        self.maintains = not self.storage.capabilities.queues
        use = ResourceUse(config.resources) if config.resources else None
        self.state = state = WorkerState(config.name, config.concurrency, use)
        self.site = Site(self.storage, state.loop, self.life, pools.threads)
        self.batches = Batches(state, pools.threads, middleware.overrides(app.layers, "call"), patient)
        self.capacity = None if use is None else Capacity(use, app.tasks, state, self.batches)
        self.misfits = MisfitRelease(config.name, app.tasks, self.storage, app.misfit_wait)
        self.lost = LostReporter(self.storage, app.emitter, config.name, outage.over.set)
        # Without tasks it ends workflows and runs Treadle's own jobs: no job of a user waits for it.
        shown = () if config.tasks == () else tuple(queues)
        self.heartbeat = Heartbeat(
            state, self.storage, self.lost, shown, config.lease, self.tasks, self.batches.gathering, self._placed
        )
        presence, changed = self.heartbeat.presence, state.demand.notify  # the leader may run other tasks, too
        self.election = LeaderElection(
            config.role, state.claim_id(), self.storage, presence, self._leader_duties, changed
        )
        self.metrics = self._make_metrics()
        self.run_logs = None
        if config.capture_logs is not None:
            self.run_logs = RunLogs(LogCapture(config.capture_logs), state, self.storage, self.heartbeat)
        judging = middleware.overrides(app.layers, "judged")
        self.run_reports = RunReporter(judging, state.troubles, self.lost, app.now) if judging else None

    def _make_metrics(self) -> JobMetrics | None:
        app = self.app
        if app.counts is not None:
            app.counts.expect((task.queue, name) for name, task in app.tasks.items())
        elif not self.config.metrics:
            return None
        return JobMetrics(self.state.claim_id()[-defaults.MAX_NAME :], app.now, app.counts)

    def _placed(self, presence: Presence) -> Presence:
        """The presence with the labels of the worker, its resources and their use, the needs of the tasks of its code,
        and the versions of the claimed ones."""
        config, tasks, capacity = self.config, self.app.tasks, self.capacity
        used = {} if capacity is None else capacity.use.used
        names = tasks if config.tasks is None else config.tasks
        return replace(
            presence,
            labels=tuple((config.labels or {}).items()),
            resources=tuple((name, amount, used.get(name, 0)) for name, amount in (config.resources or {}).items()),
            needs=tuple(task.needs for name in names if (task := tasks.get(name)) and task.needs is not None),
            reserved="" if capacity is None else capacity.reserved,
            versions=self.misfits.versions(presence.tasks),
        )

    # --- tasks, by the duties of the leader

    def tasks(self) -> Rooms:
        """The tasks that this worker claims now; those of the leader only if this worker does its duties."""
        system, election = self.app.system_tasks, self.election
        return {
            name: room
            for name, room in self._worker_tasks().items()
            if name not in system or not system[name].by_leader or election.ticks(name)
        }

    def tasks_to_redrive(self) -> list[str]:
        return self.election.redrives(self._worker_tasks())

    def _leader_duties(self) -> LeaderDuties:
        system, names = self.app.system_tasks, tuple(self._worker_tasks())
        ticks = tuple(name for name in names if name in system and system[name].by_leader)
        return LeaderDuties(ticks, names if self.config.redrive is not None else ())
