"""Workers: claim, run, settle."""

from treadle.worker.backlog import Backlog
from treadle.worker.loop import Worker
from treadle.worker.redrive import Redrive

__all__ = ["Backlog", "Redrive", "Worker"]
