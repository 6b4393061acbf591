"""Workers, which claim jobs, run them and settle their outcomes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.worker.backlog import Backlog
    from treadle.worker.health import WorkerHealth
    from treadle.worker.redrive import Redrive
    from treadle.worker.worker import Worker
else:
    from treadle.core.lazy_names import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        globals(),
        {
            "treadle.worker.backlog": ("Backlog",),
            "treadle.worker.health": ("WorkerHealth",),
            "treadle.worker.redrive": ("Redrive",),
            "treadle.worker.worker": ("Worker",),
        },
    )

__all__ = ["Backlog", "Redrive", "Worker", "WorkerHealth"]
