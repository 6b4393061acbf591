"""The next and the last ticks of a schedule, computed from its timing. Pure; reads no row."""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from treadle.policy import cron as when
from treadle.policy.cron import WINDOWS, Cron, Every, stamp
from treadle.policy.timing_words import words

if TYPE_CHECKING:
    from treadle.scheduling.schedules import Schedule

NEXT: Final = 5
LAST: Final = 20
STEPS: Final = 2_000  # ticks that are computed to find the last ones: 50 ms


def timing_of(schedule: Schedule) -> Cron | Every | None:
    """Its cron line or interval; None: a function returns its ticks."""
    if schedule.every is not None:
        return Every(schedule.every)
    return None if schedule.cron is None else Cron(schedule.cron, schedule.tz or "UTC")


def words_of(schedule: Schedule) -> str:
    """Its timing in words."""
    return words(timing_of(schedule) or when.FunctionTiming())


def upcoming(schedule: Schedule, most: int = NEXT) -> list[float]:
    """Its next ticks, the first at `next_at`; none while it is paused. If a function computes them, only the next one
    is known."""
    if schedule.next_at is None:
        return []
    first, timing = schedule.next_at.timestamp(), timing_of(schedule)
    return [first] if timing is None else [first, *islice(timing.after(first), most - 1)]


def upcoming_of(timing: Cron | Every, now: float, most: int = NEXT) -> list[float]:
    """The first ticks of a schedule that would be created now."""
    return list(islice(timing.after(now), most))


def last_ids(schedule: Schedule, now: float, most: int = LAST) -> list[str]:
    """The ids of its last ticks, the newest first: that of its last job, and the ids of earlier ticks computed from its
    timing. Not all of them were stored, for example while no worker ran."""
    last = [] if schedule.last is None else [schedule.last]
    ids = (f"cron:{schedule.name}:{stamp(instant)}" for instant in _past(schedule, now, most))
    return list(dict.fromkeys([*last, *ids]))[:most]


def _past(schedule: Schedule, now: float, most: int) -> list[float]:
    timing = timing_of(schedule)
    if timing is None:
        return []
    if isinstance(timing, Every):
        if schedule.next_at is None:  # while it is paused, nothing says where its intervals began
            return []
        first = schedule.next_at.timestamp() - timing.seconds
        return [first - timing.seconds * number for number in range(most)]
    past: list[float] = []
    for window in WINDOWS:
        ticks = list(islice(takewhile(now.__ge__, timing.after(now - window)), STEPS))
        if len(ticks) == STEPS:  # a rhythm within a day of the year, say
            break
        past = ticks
        if len(past) >= most:
            break
    return past[::-1][:most]
