"""Schedules: tasks that run at given times, `app.schedules`."""

from treadle.scheduling.schedules import Schedule, Schedules
from treadle.scheduling.ticker import UNREADABLE, CatchUp, Overlap
from treadle.scheduling.times import last_ids, upcoming, upcoming_of, words_of

__all__ = [
    "UNREADABLE",
    "CatchUp",
    "Overlap",
    "Schedule",
    "Schedules",
    "last_ids",
    "upcoming",
    "upcoming_of",
    "words_of",
]
