"""The public `Worker`: checks its options, and passes each call to a `WorkerCore`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from treadle.concurrency.spawn import answers_coroutine
from treadle.core import defaults
from treadle.core.awaiting import async_block
from treadle.core.model import Record
from treadle.core.placement import Amounts, Labels, amounts, labels_of
from treadle.policy.retry import DEFAULT, Retry, seconds
from treadle.tasks.task import AnyTask
from treadle.worker.backlog import Backlog
from treadle.worker.claim_builder import weights
from treadle.worker.config import RECOVERY, WorkerConfig, task_names, worker_name
from treadle.worker.core import WorkerCore
from treadle.worker.health import WorkerHealth
from treadle.worker.leader import Role, role_of
from treadle.worker.log_capture import level_of
from treadle.worker.parts import WorkerApp
from treadle.worker.probes import Probes
from treadle.worker.redrive import Redrive


@async_block("write `async with worker:` in a coroutine, or `asyncio.run(worker.run())`")
class Worker:
    """Runs the jobs of an app.

    queues       at most 1,000: a list, or {name: weight} to give each its share of every claim; None: the queues of all
                 its tasks
    concurrency  jobs that run at once, 1 to 10,000
    tasks        only these tasks (or names); None: all tasks of the app
    accept       called with the row after the claim; if it returns false, the job is released (prefer `tasks`)
    throttle     async callable that returns seconds to pause before the next claim; `AIMD()` reacts to failures
    on_backlog   called with a Backlog when the worker has been behind for `backlog_after` s: once per episode, or again
                 every `backlog_every` s
    redrive      Redrive(...): reopen failed jobs while idle
    grace        seconds for running jobs to end when the worker stops
    lease        seconds that a lease lasts without a heartbeat; renewed every third of it
    poll         seconds between claims of an idle worker, in case a hint is lost
    role         "leader", "follower" or "auto": one worker of the fleet prunes, redrives and ticks schedules, see
                 `treadle.worker.leader`; None: this worker always does
    ordered      start jobs strictly in queue order: one claim at a time, not two that overlap
    recovery     delays between retries while the storage is away
    capture_logs a level of `logging`, as a number or a name: keep the log lines of this level that each run emits, for
                 `app.jobs.history`; None: none
    relay        deliver the jobs of the app's outbox, if it has one; False: `treadle storage relay` does
    labels       such as {"gpu": "a100"} or ["ssd"]: it claims only tasks whose `requires` these meet
    resources    such as {"memory_mb": 8192, "gpu": 1}: the `uses` of the jobs that run here never exceed these. A
                 resource that is not named is 0
    metrics      store how many jobs end and how long they take, for `app.metrics`
    """

    def __init__(
        self,
        app: WorkerApp,
        queues: Iterable[str] | Mapping[str, int] | None = None,
        concurrency: int = defaults.CONCURRENCY,
        *,
        tasks: Iterable[str | AnyTask] | None = None,
        accept: Callable[[Record], Any] | None = None,
        throttle: Callable[[], Awaitable[Any]] | None = None,
        on_backlog: Callable[[Backlog], Any] | None = None,
        backlog_after: float | timedelta = defaults.BACKLOG_AFTER,
        backlog_every: float | timedelta | None = None,
        redrive: Redrive | None = None,
        grace: float | timedelta = defaults.GRACE,
        lease: float | timedelta = defaults.LEASE,
        poll: float | timedelta = defaults.POLL,
        recovery: Retry = RECOVERY,
        name: str | None = None,
        role: Role | None = None,
        ordered: bool = False,
        metrics: bool = True,
        relay: bool = True,
        capture_logs: int | str | None = None,
        labels: Labels = (),
        resources: Amounts | None = None,
    ) -> None:
        config = WorkerConfig(
            name=worker_name(name),
            queues=weights(queues),
            tasks=task_names(tasks),
            concurrency=concurrency,
            grace=seconds(grace, "grace"),
            lease=seconds(lease, "lease"),
            poll=seconds(poll, "poll"),
            recovery=recovery.over(DEFAULT),
            role=role_of(role),
            ordered=ordered,
            accept=accept,
            throttle=throttle,
            on_backlog=on_backlog,
            backlog_after=seconds(backlog_after, "backlog_after"),
            backlog_every=None if backlog_every is None else seconds(backlog_every, "backlog_every"),
            redrive=redrive,
            metrics=metrics,
            relay=relay,
            capture_logs=level_of(capture_logs),
            labels=labels_of(labels),
            resources=amounts(resources or {}, "resources"),
        )
        app._core.modules.load()
        self._core = WorkerCore(app._core, config)

    @property
    def name(self) -> str:
        """The name under which it is listed and holds its leases."""
        return self._core.config.name

    @property
    def concurrency(self) -> int:
        """How many jobs run at once."""
        return self._core.config.concurrency

    @property
    def running(self) -> Sequence[Record]:
        """The jobs that run here now."""
        return self._core.running

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the app if it is not open, and begin to claim.

        If the storage cannot be reached or is full, logs that once and retries until it works. Raises UnknownTask,
        LifespanFailed, DependencyFailed, and the errors of opening that waiting cannot fix (BadUrl, SchemaTooNew,
        NotADatabase, StorageDenied).
        """
        await self._core.start()

    def health(self) -> WorkerHealth:
        """Return the stage of this worker, its jobs, and whether its storage answers.

        Reads only the memory of this process. Call it on the event loop of the worker: a loop that is stuck cannot
        answer, which is what a probe must find out.
        """
        return self._core.health()

    @answers_coroutine
    def run(self, probes: Probes | None = None) -> Coroutine[Any, Any, None]:
        """Run until SIGTERM or SIGINT: the first signal stops with `grace`, the second at once.

        probes  where to report the health of this process meanwhile. Raises BadOption if the port is taken

        Takes over the garbage collector of the process. Objects that exist now are exempt (`gc.freeze`), because
        collecting them blocks the event loop for 7-14 ms each time. New objects are collected once every 5,000
        (`gc.set_threshold`), because a job leaves no cycles: this saves 1 us of 6.7 us a job.
        """
        return self._core.run(probes)

    async def stop(self, grace: float | timedelta | None = None) -> None:
        """Claim no more, request the running functions to stop, wait `grace` seconds, then cancel them and release
        their jobs, uncounted. A second call waits for the first.

        If this call is cancelled, for example by a timeout, it cancels the functions at once, and returns when they
        have ended or a few seconds have passed. If a job of this worker calls it, it returns at once, and the worker
        stops when that job has ended. May be called on any event loop.
        """
        await self._core.stop(grace)
