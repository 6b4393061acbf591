"""Workers, which claim jobs, run them and settle their outcomes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.worker.backlog import Backlog
    from treadle.worker.census import Census
    from treadle.worker.config import RECOVERY, WorkerConfig, task_names, worker_name
    from treadle.worker.core import WorkerCore
    from treadle.worker.executors.threads import DaemonThreads, Item, Runs, deliver, outcome
    from treadle.worker.health import WorkerHealth
    from treadle.worker.inline import InlineWorker
    from treadle.worker.job_events import name_of, run_outcome
    from treadle.worker.job_metrics import JobMetrics
    from treadle.worker.jobs_of_others import Death, JobsOfOthers, Lease, Place, named
    from treadle.worker.os_signals import Signals
    from treadle.worker.outage import StorageOutage
    from treadle.worker.redrive import Redrive
    from treadle.worker.trials import Suspect
    from treadle.worker.worker import Worker
else:
    from treadle.core.lazy_names import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        globals(),
        {
            "treadle.worker.census": ("Census",),
            "treadle.worker.config": (
                "RECOVERY",
                "WorkerConfig",
                "task_names",
                "worker_name",
            ),
            "treadle.worker.core": ("WorkerCore",),
            "treadle.worker.executors.threads": (
                "DaemonThreads",
                "Item",
                "Runs",
                "deliver",
                "outcome",
            ),
            "treadle.worker.inline": ("InlineWorker",),
            "treadle.worker.job_events": (
                "name_of",
                "run_outcome",
            ),
            "treadle.worker.job_metrics": ("JobMetrics",),
            "treadle.worker.jobs_of_others": (
                "Death",
                "JobsOfOthers",
                "Lease",
                "Place",
                "named",
            ),
            "treadle.worker.os_signals": ("Signals",),
            "treadle.worker.outage": ("StorageOutage",),
            "treadle.worker.trials": ("Suspect",),
            "treadle.worker.backlog": ("Backlog",),
            "treadle.worker.health": ("WorkerHealth",),
            "treadle.worker.redrive": ("Redrive",),
            "treadle.worker.worker": ("Worker",),
        },
    )

__all__ = [
    "RECOVERY",
    "Backlog",
    "Census",
    "DaemonThreads",
    "Death",
    "InlineWorker",
    "Item",
    "JobMetrics",
    "JobsOfOthers",
    "Lease",
    "Place",
    "Redrive",
    "Runs",
    "Signals",
    "StorageOutage",
    "Suspect",
    "Worker",
    "WorkerConfig",
    "WorkerCore",
    "WorkerHealth",
    "deliver",
    "name_of",
    "named",
    "outcome",
    "run_outcome",
    "task_names",
    "worker_name",
]
