"""The settings of a worker, checked; `Worker` makes them from the arguments of its caller."""

from __future__ import annotations

import os
import platform
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from treadle.core import defaults
from treadle.core.errors import BadOption
from treadle.core.model import Record
from treadle.core.placement import Needs
from treadle.core.ranges import MOST_CONCURRENCY
from treadle.policy.retry import DEFAULT, Retry
from treadle.tasks.options import name_of
from treadle.tasks.task import AnyTask
from treadle.worker.backlog import Backlog
from treadle.worker.leader import Role
from treadle.worker.redrive import Redrive

RECOVERY = Retry(base=0.1, max=10.0).over(DEFAULT)


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """The options of `Worker`; times in seconds. Raises BadOption.

    queues  with their weights; None: the queues of its tasks
    tasks   by name; None: all tasks of the app
    labels     with their values; None: it meets every requirement
    resources  with their amounts; None: no bound
    """

    name: str
    queues: dict[str, int] | None = None
    tasks: tuple[str, ...] | None = None
    concurrency: int = defaults.CONCURRENCY
    grace: float = defaults.GRACE
    lease: float = defaults.LEASE
    poll: float = defaults.POLL
    recovery: Retry = RECOVERY
    role: Role | None = None
    ordered: bool = False
    accept: Callable[[Record], Any] | None = None
    throttle: Callable[[], Awaitable[Any]] | None = None
    on_backlog: Callable[[Backlog], Any] | None = None
    backlog_after: float = defaults.BACKLOG_AFTER
    backlog_every: float | None = None
    redrive: Redrive | None = None
    metrics: bool = True
    relay: bool = True
    capture_logs: int | None = None  # a level of `logging`
    labels: dict[str, str] | None = field(default_factory=dict)
    resources: dict[str, int] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        most: object = self.concurrency
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST_CONCURRENCY:
            raise BadOption("concurrency", f"expected 1 to {MOST_CONCURRENCY:,}, found {most!r:.60}")
        for option in ("lease", "poll", "backlog_after"):
            if not getattr(self, option):
                raise BadOption(option, "expected more than 0 s")
        rule: object = self.redrive
        if rule is not None and not isinstance(rule, Redrive):
            raise BadOption("redrive", f"expected Redrive(...), found {rule!r}")

    def runs(self, needs: Needs | None) -> bool:
        """Whether this worker can ever run a task with these needs."""
        if needs is None:
            return True
        return (self.labels is None or needs.unmet(self.labels) is None) and (
            self.resources is None or needs.excess(self.resources) is None
        )


def worker_name(name: str | None = None) -> str:
    """The name given, or one that no other worker has. Raises BadOption."""
    return name_of(name, "name") if name else f"{platform.node()}:{os.getpid()}:{os.urandom(3).hex()}"


def task_names(tasks: Iterable[str | AnyTask] | None) -> tuple[str, ...] | None:
    """The names of these tasks. Raises BadOption if it is a single one."""
    if tasks is not None and (isinstance(tasks, str) or not isinstance(tasks, Iterable)):
        raise BadOption("tasks", f"expected a list of tasks or names, found {tasks!r}; write [...] around it")
    return None if tasks is None else tuple(task if isinstance(task, str) else task.name for task in tasks)
