"""Schedules: tasks that run at given times, `app.schedules`."""

from treadle.scheduling.schedules import Schedule as Schedule
from treadle.scheduling.schedules import Schedules as Schedules
from treadle.scheduling.ticker import UNREADABLE as UNREADABLE
from treadle.scheduling.ticker import CatchUp as CatchUp
from treadle.scheduling.ticker import Overlap as Overlap
from treadle.scheduling.times import last_ids as last_ids
from treadle.scheduling.times import upcoming as upcoming
from treadle.scheduling.times import upcoming_of as upcoming_of
from treadle.scheduling.times import words_of as words_of
