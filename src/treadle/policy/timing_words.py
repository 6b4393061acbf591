"""Says in words when a schedule fires, for people. Pure.

Each field of a cron line becomes a phrase. A field of a form without a phrase stays as it is, so nothing is left out.
"""

from __future__ import annotations

import re
from typing import Final

from treadle.policy.cron import Cron, Every, FunctionTiming, Timing, expanded

DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
SHORT_DAYS: Final = {name[:3].upper(): number for number, name in enumerate(DAYS[:7])}
SHORT_MONTHS: Final = {name[:3].upper(): number for number, name in enumerate(MONTHS, 1)}
UNITS: Final = ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"), (1.0, "second"))
ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")
STEP: Final = re.compile(r"\*/(\d+)")
NUMBER: Final = re.compile(r"\d+")
TIMES: Final = 6  # times of day that are listed; more of them are described by their fields


def words(timing: Timing) -> str:
    """When the schedule fires, such as "at 03:00 every day (Europe/Paris)"."""
    if isinstance(timing, FunctionTiming):
        return "when its function says"
    if isinstance(timing, Every):
        return f"every {_interval(timing.seconds)}"
    return _cron(timing)


def _interval(seconds: float) -> str:
    for length, unit in UNITS:
        count = seconds / length
        if count == int(count) and count >= 1:
            return unit if count == 1 else f"{count:,.0f} {unit}s"
    return f"{seconds:g} seconds"


def _cron(cron: Cron) -> str:
    fields = [re.sub(r"\*/1(?!\d)", "*", field) for field in expanded(cron.line).upper().split()]
    second = fields.pop(0) if len(fields) == 6 else "0"
    if len(fields) != 5:  # only a row from elsewhere has such a line
        return f"cron {cron}"
    minute, hour, day, month, weekday = fields
    times, days = _times(second, minute, hour), _days(day, month, weekday)
    if days == "every day" and hour.startswith("*"):
        days = ""
    zone = "" if cron.tz == "UTC" else f" ({cron.tz})"
    return f"{times} {days}".strip() + zone


# --- times of day


def _times(second: str, minute: str, hour: str) -> str:
    hours, minutes, seconds = _numbers(hour), _numbers(minute), _numbers(second)
    if hours and minutes and seconds and len(hours) * len(minutes) * len(seconds) <= TIMES:
        tail = [f":{number:02}" for number in seconds] if second != "0" else [""]
        return "at " + _listed([f"{h:02}:{m:02}{s}" for h in hours for m in minutes for s in tail])
    if second == "0":
        return _minutes(minute, hour)
    return _often(second, "second") + ("" if minute == hour == "*" else f", {_minutes(minute, hour)}")


def _minutes(minute: str, hour: str) -> str:
    """The minutes of these hours."""
    if minute == "0":
        if hour == "*":
            return "every hour"
        if STEP.fullmatch(hour):
            return _often(hour, "hour")
        if span := re.fullmatch(r"(\d+)-(\d+)", hour):
            return f"every hour from {int(span[1]):02}:00 to {int(span[2]):02}:00"
    minutes = _often(minute, "minute")
    if hour == "*":
        return minutes if minutes.startswith("every") else f"{minutes} of every hour"
    if STEP.fullmatch(hour):
        return f"{_often(hour, 'hour')}, {minutes}"
    if minutes.startswith("every") and (span := re.fullmatch(r"(\d+)(?:-(\d+))?", hour)):
        return f"{minutes} from {int(span[1]):02}:00 to {int(span[2] or span[1]):02}:59"
    return f"{minutes} of hour{'' if NUMBER.fullmatch(hour) else 's'} {_range(hour)}"


def _often(field: str, unit: str) -> str:
    """A field of seconds, minutes or hours."""
    if field == "*":
        return f"every {unit}"
    if step := STEP.fullmatch(field):
        whole = 24 if unit == "hour" else 60
        return f"every {step[1]} {unit}s{'' if whole % int(step[1]) == 0 else f', from {unit} 0 on'}"
    return f"at {unit}{'' if NUMBER.fullmatch(field) else 's'} {_range(field)}"


# --- days


def _days(day: str, month: str, weekday: str) -> str:
    in_month = "" if month == "*" else f" in {_months(month)}"
    if day in ("*", "?") and weekday in ("*", "?"):
        return f"every day{in_month}"
    on_day = "" if day in ("*", "?") else _day_of_month(day, bool(in_month))
    on_weekday = "" if weekday in ("*", "?") else _weekday(weekday)
    return f"on {' or on '.join(part for part in (on_day, on_weekday) if part)}{in_month}"


def _months(field: str) -> str:
    if step := STEP.fullmatch(field):
        return f"every {_nth(int(step[1]))} month"
    return _range(field, SHORT_MONTHS, MONTHS, 1)


def _day_of_month(field: str, has_month: bool) -> str:
    of = "" if has_month else " of the month"
    if field == "L":
        return "the last day" if has_month else "the last day of the month"
    if field == "LW":
        return f"the last weekday{of}"
    if step := STEP.fullmatch(field):
        return f"every {_nth(int(step[1]))} day{of}"
    return f"day{'' if NUMBER.fullmatch(field) else 's'} {_range(field)}{of}"


def _weekday(field: str) -> str:
    if named := re.fullmatch(r"(\w+)#([1-5])", field):
        return f"the {ORDINALS[int(named[2]) - 1]} {_range(named[1], SHORT_DAYS, DAYS)} of the month"
    if last := re.fullmatch(r"(\d)L", field):
        return f"the last {DAYS[int(last[1]) % 7]} of the month"
    if step := STEP.fullmatch(field):
        return f"every {_nth(int(step[1]))} day of the week"
    return _range(field, SHORT_DAYS, DAYS)


# --- the parts of a field


def _numbers(field: str) -> list[int]:
    """The values of a field that is a list of numbers; [] for any other form."""
    parts = field.split(",")
    return [int(part) for part in parts] if all(map(NUMBER.fullmatch, parts)) else []


def _range(field: str, short: dict[str, int] | None = None, names: tuple[str, ...] = (), first: int = 0) -> str:
    """A list of values and ranges, with the names of days or months."""
    return _listed([_part(part, short or {}, names, first) for part in field.split(",")])


def _part(part: str, short: dict[str, int], names: tuple[str, ...], first: int) -> str:
    span, slash, step = part.partition("/")
    ends = [_name(end, short, names, first) for end in span.split("-")] if span != "*" else ["any"]
    shown = " to ".join(ends)
    return f"{shown} in steps of {step}" if slash else shown


def _name(text: str, short: dict[str, int], names: tuple[str, ...], first: int) -> str:
    number = short.get(text, int(text) if NUMBER.fullmatch(text) else -1)
    return names[number - first] if names and 0 <= number - first < len(names) else text


def _nth(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
