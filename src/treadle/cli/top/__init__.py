"""`treadle top`: queues, failures, limits and workers, as a live screen or as plain tables."""

from treadle.cli.top.command import top

__all__ = ["top"]
