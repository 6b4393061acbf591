"""Workers: claim, run, settle."""

from treadle.worker.loop import Worker

__all__ = ["Worker"]
