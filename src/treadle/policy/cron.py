"""When a schedule fires: cron lines, intervals and functions, in any time zone.

When clocks change, a schedule with fixed hours fires exactly once: in an hour that is skipped, and in one that repeats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim
from msgspec import Struct

from treadle.core import defaults
from treadle.core.clock import moment
from treadle.core.errors import BadOption
from treadle.policy.retry import seconds

Next = Callable[[datetime], datetime | None]
"""From an aware datetime to the next instant after it; None: never again."""

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS: Final = (  # from the last field to the first: its name, how many values it has, and what contains them
    *(("weekday", 7, "week"), ("month", 12, "year"), ("day", 31, "month")),
    *(("hour", 24, "day"), ("minute", 60, "hour"), ("second", 60, "minute")),
)
DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_LAST = re.compile(rf"\b({'|'.join(DAYS)})L\b", re.IGNORECASE)
LEAST_EVERY: Final = 0.1  # s; each tick is stored as a job
WINDOWS: Final = (60.0, 3600.0, 86_400.0, 40 * 86_400.0, 370 * 86_400.0)  # s to look back for the newest tick
SHIFT: Final = timedelta(hours=26)  # no time zone has ever shifted by more
LATE: Final = 60.0  # s by which a tick may be late and still fires with catch_up="skip"


class Cron(Struct, frozen=True, tag="cron"):
    """A cron line of 5 fields, or of 6 with seconds first, in a time zone."""

    line: str
    tz: str = "UTC"

    def after(self, at: float) -> Iterator[float]:
        """The instants after `at`, in order."""
        zone, line = zone_of(self.tz), expanded(self.line)
        if zone is UTC:
            return (tick.timestamp() for tick in CronSim(line, moment(at)))
        return _by_the_wall(line, zone, at) if _at_fixed_hours(line) else _by_rhythm(line, zone, at)

    def __str__(self) -> str:
        return self.line if self.tz == "UTC" else f"{self.line} ({self.tz})"


class Every(Struct, frozen=True, tag="every"):
    """A fixed interval, counted from the last tick, first from the creation of the schedule."""

    seconds: float

    def after(self, at: float) -> Iterator[float]:
        """The instants after `at`, in order."""
        while True:
            at += self.seconds
            yield at

    def __str__(self) -> str:
        return f"every {self.seconds:g} s"


class FunctionTiming(Struct, frozen=True, tag="function"):
    """A function that returns the next instant. The storage records only that there is a function, not the function
    itself."""

    def __str__(self) -> str:
        return "a function"


Timing = Cron | Every | FunctionTiming


def cron(line: object, tz: object = "UTC") -> Cron:
    """A checked cron line. Raises BadOption for a line that is invalid or never fires, and for an unknown time zone."""
    if not isinstance(line, str):
        raise BadOption("cron", f'expected a line such as "0 3 * * *", found {line!r}')
    name = tz.key if isinstance(tz, ZoneInfo) else tz
    if not isinstance(name, str):
        raise BadOption("tz", f'expected the name of a time zone such as "Europe/Paris", found {tz!r}')
    zone_of(name)
    parsed = Cron(" ".join(line.split()), name)
    _check_steps(expanded(parsed.line).split())
    try:
        first = next(parsed.after(0.0), None)
    except BadOption:
        raise
    except Exception as error:  # the parser may raise anything
        if _no_such_day(parsed):
            raise BadOption("cron", f"{line!r} never fires: none of its months has that day") from None
        fields = '5 fields "minute hour day month weekday", 6 with seconds first'
        problem = f"{line!r} cannot be read ({error}); expected {fields}, or one of {', '.join(MACROS)}"
        raise BadOption("cron", problem) from None
    if first is None:
        raise BadOption("cron", f"{line!r} never fires: that day does not exist")
    return parsed


def _check_steps(fields: list[str]) -> None:
    """Raise BadOption for a step that leaves its field after the first value: `*/90` minutes are an hour."""
    for field, (name, size, above) in zip(reversed(fields), FIELDS, strict=False):
        for part in field.split(","):
            values, _, step = part.partition("/")
            if step.isdecimal() and int(step) > size:
                raise BadOption(
                    "cron",
                    f"{part!r} is more than the {size} values of the field `{name}`: only the first of {values!r} "
                    f"would match, once in each {above}; name the values, or give an interval with `every`",
                )


def _no_such_day(cron: Cron) -> bool:
    """Whether a line is invalid only because no month in it has such a day: "0 0 30 2 *"."""
    fields = expanded(cron.line).split()
    return len(fields) in (5, 6) and all(_fires([*fields[:day], "*", *fields[day:][1:]], cron.tz) for day in (-2, -3))


def _fires(fields: list[str], tz: str) -> bool:
    try:
        return next(Cron(" ".join(fields), tz).after(0.0), None) is not None
    except Exception:  # the parser may raise anything
        return False


def every(interval: object) -> Every:
    """A checked interval. Raises BadOption for less than 0.1 s."""
    length = seconds(interval, "every")
    if length < LEAST_EVERY:
        raise BadOption("every", f"expected at least {LEAST_EVERY:g} s, found {interval!r}")
    return Every(length)


def check(timing: Timing) -> None:
    """Raise BadOption for a stored interval out of range, which no public call stores."""
    if isinstance(timing, Every) and not LEAST_EVERY <= timing.seconds <= defaults.MAX_DELAY:
        raise BadOption("every", f"expected {LEAST_EVERY:g} s to a hundred years, found {timing.seconds!r:.60}")


def zone_of(name: str) -> tzinfo:
    """The time zone of that name. Raises BadOption."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; not a name; a folder of the zone data
        expected = f'expected the name of a time zone such as "Europe/Paris", found {name!r}'
        if not available_timezones():
            expected = f"this system has no time zone database, so {name!r} is unknown: pip install tzdata"
        raise BadOption("tz", expected) from None


def expanded(line: str) -> str:
    """The fields of a macro; "FRIL", the last Friday, in the parser's notation. Raises BadOption for an unknown
    macro."""
    if not line.startswith("@"):
        return _LAST.sub(lambda day: f"{DAYS.index(day[1].upper())}L", line)
    fields = MACROS.get(line.lower())
    if fields is None:
        raise BadOption("cron", f"there is no {line!r}; there are {', '.join(MACROS)}")
    return fields


def _at_fixed_hours(line: str) -> bool:
    """Whether a line names hours of the day ("30 2 * * *", "*/20 2 * * *"), instead of a rhythm ("30 * * * *",
    "0 */2 * * *")."""
    fields = line.split()
    return len(fields) not in (5, 6) or not fields[-4].startswith("*")


def _by_the_wall(line: str, zone: tzinfo, at: float) -> Iterator[float]:
    """Local times of day: a time that is skipped fires when the gap ends, a time that repeats fires once."""
    last = at
    for wall in CronSim(line, moment(at).astimezone(zone).replace(tzinfo=None) - SHIFT):
        here = wall.replace(tzinfo=zone, fold=0)
        tick = here.timestamp()
        if datetime.fromtimestamp(tick, zone).replace(tzinfo=None) != wall:
            tick = _first_change(tick - SHIFT.total_seconds(), tick, zone)  # there is only one change, that of this gap
        if tick > last:
            last = tick
            yield tick


def _by_rhythm(line: str, zone: tzinfo, at: float) -> Iterator[float]:
    """Every instant whose local time matches: twice in an hour that the clock repeats, never in an hour that it skips.
    Local times are computed with one offset until it changes."""
    start = moment(at).astimezone(zone).replace(tzinfo=None)
    while True:
        offset = _offset(at, zone)
        for wall in CronSim(line, start):
            tick = (wall - offset).replace(tzinfo=UTC).timestamp()
            if _offset(tick, zone) != offset:
                at = _first_change(at, tick, zone)
                start = moment(at).astimezone(zone).replace(tzinfo=None) - timedelta(seconds=1)  # `at` itself counts
                break
            at = tick
            yield tick
        else:
            return


def _offset(at: float, zone: tzinfo) -> timedelta:
    return moment(at).astimezone(zone).utcoffset() or timedelta()


def _first_change(low: float, high: float, zone: tzinfo) -> float:
    """The first instant at which the offset differs from the offset at `low`; at `high` it differs."""
    before, start, end = _offset(low, zone), int(low), math.ceil(high)
    while end - start > 1:
        middle = (start + end) // 2
        if _offset(middle, zone) == before:
            start = middle
        else:
            end = middle
    return float(end)


def after(timing: Timing, ask: Next | None, at: float) -> Iterator[float]:
    """The instants after `at`. `ask` is the function of a schedule that has one; its errors are raised."""
    return timing.after(at) if not isinstance(timing, FunctionTiming) else _asked(ask, at)


def _asked(ask: Next | None, at: float) -> Iterator[float]:
    while ask is not None:
        tick: object = ask(moment(at))
        if tick is None:
            return
        if not isinstance(tick, datetime) or tick.utcoffset() is None:
            raise BadOption("schedule", f"expected the function to return an aware datetime or None, found {tick!r}")
        if tick.timestamp() <= at:
            raise BadOption("schedule", f"expected a time after {moment(at)}, found {tick}")
        at = tick.timestamp()
        yield at


def due(
    timing: Timing, ask: Next | None, cursor: float, now: float, catch_up: str, most: int = defaults.TICKS_STEP
) -> tuple[list[float], float]:
    """The ticks to store now, and the new cursor: all ticks up to it are handled.

    With "all", at most `most` ticks; a cursor before `now` then means that there may be more.
    """
    if catch_up == "all":
        ticks: list[float] = []
        for tick in after(timing, ask, cursor):
            if tick > now or len(ticks) == most:
                break
            ticks.append(tick)
        return ticks, ticks[-1] if ticks else cursor
    newest = _newest(timing, ask, cursor, now)
    if newest is None:
        return [], cursor
    return [newest] if catch_up == "one" or now - newest <= LATE else [], newest


def _newest(timing: Timing, ask: Next | None, cursor: float, now: float) -> float | None:
    """The last tick between the cursor and `now`. It looks back in growing windows instead of walking through all
    ticks."""
    if isinstance(timing, Every):
        steps = int((now - cursor) // timing.seconds)
        return cursor + steps * timing.seconds if steps > 0 else None
    for window in (*(length for length in WINDOWS if now - length > cursor), now - cursor):
        newest = None
        for tick in after(timing, ask, max(cursor, now - window)):
            if tick > now:
                break
            newest = tick
        if newest is not None:
            return newest
    return None


def stamp(at: float) -> str:
    """An instant as it is written in the id of its tick, to the millisecond."""
    return moment(at).astimezone(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3].removesuffix(".000") + "Z"
