"""Schedules: tasks that run at given times, `app.schedules`."""

from treadle.scheduling.schedules import Schedule, Schedules
from treadle.scheduling.ticker import CatchUp, Overlap

__all__ = ["CatchUp", "Overlap", "Schedule", "Schedules"]
