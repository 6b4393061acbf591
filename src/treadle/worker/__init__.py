"""Workers, which claim jobs, run them and settle their outcomes."""

from treadle.worker.backlog import Backlog
from treadle.worker.redrive import Redrive
from treadle.worker.worker import Worker

__all__ = ["Backlog", "Redrive", "Worker"]
