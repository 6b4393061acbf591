"""When a schedule fires, in particular on the two days of the year that have 23 and 25 hours."""

from __future__ import annotations

import sys
import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from treadle.errors import BadOption
from treadle.policy.cron import Every, FunctionTiming, after, cron, due, every, stamp
from treadle_testkit.shows import shows

PARIS = "Europe/Paris"


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def first(line: str, start: str, many: int, tz: str = "UTC") -> list[str]:
    return [datetime.fromtimestamp(each, UTC).isoformat() for each in islice(cron(line, tz).after(at(start)), many)]


def utc(*texts: str) -> list[str]:
    return [datetime.fromisoformat(text).replace(tzinfo=UTC).isoformat() for text in texts]


@shows("a cron line takes five or six fields, names and macros")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("*/20 * * * *", ["2026-03-01T00:20", "2026-03-01T00:40", "2026-03-01T01:00"]),
        ("30 2 * * *", ["2026-03-01T02:30", "2026-03-02T02:30", "2026-03-03T02:30"]),
        ("0 9 * * mon-fri", ["2026-03-02T09:00", "2026-03-03T09:00", "2026-03-04T09:00"]),
        ("0 0 L * *", ["2026-03-31T00:00", "2026-04-30T00:00", "2026-05-31T00:00"]),
        ("0 12 * * FRIL", ["2026-03-27T12:00", "2026-04-24T12:00", "2026-05-29T12:00"]),
        ("0 0 1 JAN *", ["2027-01-01", "2028-01-01", "2029-01-01"]),
        ("0 0 13 * FRI", ["2026-03-06", "2026-03-13", "2026-03-20"]),  # either one matches if both are restricted
        ("0 0 * * 7", ["2026-03-08", "2026-03-15", "2026-03-22"]),
        ("0 0 29 2 *", ["2028-02-29", "2032-02-29", "2036-02-29"]),
        ("*/30 * * * * *", ["2026-03-01T00:00:30", "2026-03-01T00:01", "2026-03-01T00:01:30"]),
        ("15 30 2 * * *", ["2026-03-01T02:30:15", "2026-03-02T02:30:15", "2026-03-03T02:30:15"]),
        ("@daily", ["2026-03-02", "2026-03-03", "2026-03-04"]),
        ("@hourly", ["2026-03-01T01:00", "2026-03-01T02:00", "2026-03-01T03:00"]),
        ("@weekly", ["2026-03-08", "2026-03-15", "2026-03-22"]),
        ("@monthly", ["2026-04-01", "2026-05-01", "2026-06-01"]),
        ("@yearly", ["2027-01-01", "2028-01-01", "2029-01-01"]),
        ("5/15 * * * *", ["2026-03-01T00:05", "2026-03-01T00:20", "2026-03-01T00:35"]),
    ],
)
def test_a_cron_line_takes_fields_names_and_macros(line: str, found: list[str]) -> None:
    assert first(line, "2026-03-01T00:00+00:00", 3) == utc(*found)


@shows("a time that a clock change skips fires when the gap ends")
@pytest.mark.parametrize("line", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_that_is_skipped_fires_when_the_gap_ends(line: str) -> None:
    # In Paris 02:00 becomes 03:00 on 29 March 2026, at 01:00 UTC.
    assert first(line, "2026-03-28T00:00+00:00", 3, PARIS) == utc(
        "2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"
    )


@shows("a time that a clock change repeats fires once")
@pytest.mark.parametrize("line", ["30 2 * * *", "0 30 2 * * *"])
def test_a_time_that_comes_twice_fires_once(line: str) -> None:
    # In Paris 03:00 becomes 02:00 on 25 October 2026, at 01:00 UTC: 02:30 is at 00:30 and at 01:30.
    assert first(line, "2026-10-24T12:00+00:00", 2, PARIS) == utc("2026-10-25T00:30", "2026-10-26T01:30")
    # Asked in between, the second 02:30 is not a new time.
    assert first(line, "2026-10-25T00:45+00:00", 1, PARIS) == utc("2026-10-26T01:30")
    assert first(line, "2026-10-25T01:10+00:00", 1, PARIS) == utc("2026-10-26T01:30")


def test_two_times_in_the_gap_fire_once() -> None:
    assert first("0,30 2 * * *", "2026-03-28T12:00+00:00", 2, PARIS) == utc("2026-03-29T01:00", "2026-03-30T00:00")


def test_a_half_hourly_line_continues_through_both_clock_changes() -> None:
    assert first("*/30 * * * *", "2026-03-29T00:30+00:00", 3, PARIS) == utc(
        "2026-03-29T01:00", "2026-03-29T01:30", "2026-03-29T02:00"
    )
    assert first("*/30 * * * *", "2026-10-25T00:00+00:00", 4, PARIS) == utc(
        "2026-10-25T00:30", "2026-10-25T01:00", "2026-10-25T01:30", "2026-10-25T02:00"
    )
    assert first("0 * * * *", "2026-10-25T00:00+00:00", 2, PARIS) == utc("2026-10-25T01:00", "2026-10-25T02:00")


def test_an_hourly_line_fires_at_each_local_time() -> None:
    # On Lord Howe 02:00 becomes 02:30 on 4 October 2026, at 15:30 UTC of the day before: 02:30 is shown.
    assert first("30 * * * *", "2026-10-03T14:30+00:00", 3, "Australia/Lord_Howe") == utc(
        "2026-10-03T15:00", "2026-10-03T15:30", "2026-10-03T16:30"
    )
    # And 02:00 becomes 01:30 on 5 April 2026, at 15:00 UTC of the day before: 01:30 is shown twice.
    assert first("30 * * * *", "2026-04-04T13:00+00:00", 4, "Australia/Lord_Howe") == utc(
        "2026-04-04T13:30", "2026-04-04T14:30", "2026-04-04T15:00", "2026-04-04T16:00"
    )
    # In New York 02:00 becomes 03:00 on 8 March 2026, at 07:00 UTC.
    assert first("0 */2 * * *", "2026-03-08T04:30+00:00", 3, "America/New_York") == utc(
        "2026-03-08T05:00", "2026-03-08T08:00", "2026-03-08T10:00"
    )


def test_a_line_whose_hours_are_skipped_fires_when_the_gap_ends() -> None:
    """A daily line fires every day. If its hour is skipped, it fires once, when the gap ends; if the hour comes twice,
    at the first."""
    assert first("*/20 2 * * *", "2026-03-07T07:30+00:00", 5, "America/New_York") == utc(
        "2026-03-07T07:40", "2026-03-08T07:00", "2026-03-09T06:00", "2026-03-09T06:20", "2026-03-09T06:40"
    )
    assert first("*/30 1 * * *", "2026-11-01T05:15+00:00", 3, "America/New_York") == utc(
        "2026-11-01T05:30", "2026-11-02T06:00", "2026-11-02T06:30"
    )


@pytest.mark.parametrize("tz", ["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Gaza"])
def test_a_line_fires_as_the_local_clock_shows_all_year(tz: str) -> None:
    """Compared with every half hour of a year with its clock changes, and with a day that is left out."""
    from zoneinfo import ZoneInfo

    begin, zone = at("2011-01-01T00:00+00:00"), ZoneInfo(tz)
    halves = (begin + 1800.0 * n for n in range(1, 366 * 48))
    shown = [each for each in halves if datetime.fromtimestamp(each, zone).minute == 30]
    found = list(islice(cron("30 * * * *", tz).after(begin), len(shown)))
    assert found == shown


def test_noon_is_noon_on_every_day_of_the_year() -> None:
    for tz in (PARIS, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"):
        found = islice(cron("0 12 * * *", tz).after(at("2026-01-01T00:00+00:00")), 365)
        from zoneinfo import ZoneInfo

        walls = [datetime.fromtimestamp(each, ZoneInfo(tz)) for each in found]
        assert {(wall.hour, wall.minute) for wall in walls} == {(12, 0)}
        assert len({wall.date() for wall in walls}) == 365


def test_the_times_of_every_cron_line_only_rise() -> None:
    for line in ("0,30 1,2,3 * * *", "*/7 1-3 * * *", "*/10 * * * * *", "59 23 L * *"):
        for tz in (PARIS, "Australia/Lord_Howe"):
            for start in ("2026-03-28T20:00+00:00", "2026-10-24T20:00+00:00", "2026-04-04T10:00+00:00"):
                found = list(islice(cron(line, tz).after(at(start)), 60))
                assert found == sorted(set(found)), (line, tz, start)
                for each in found[:20]:  # the next time after each of them is the following one
                    [following] = islice(cron(line, tz).after(each), 1)
                    assert following == found[found.index(each) + 1], (line, tz, start)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 0 30 2 *", "'0 0 30 2 *' never fires"),
        ("0 0 31 4,6 *", "never fires"),
        ("0 0 30 13 *", "cannot be read"),
        ("0 0 31 4,6,9,11 *", "31 4"),
        ("0 0 * * MON#6", "cannot be read"),
        ("* * * *", "cannot be read"),
        ("61 * * * *", "cannot be read"),
        ("*/0 * * * *", "cannot be read"),
        ("", "cannot be read"),
        ("@reboot", "there is no '@reboot'"),
        ("@never", "there is no"),
        (5, "expected a line"),
        (None, "expected a line"),
    ],
)
def test_an_invalid_or_never_firing_line_is_refused(line: object, words: str) -> None:
    with pytest.raises(BadOption) as caught:
        cron(line)
    assert words in str(caught.value)


@pytest.mark.parametrize("tz", ["Europe/Atlantis", "", "..", 3, "/etc/passwd", "Europe"])
def test_an_invalid_time_zone_is_refused(tz: object) -> None:
    with pytest.raises(BadOption, match="tz"):
        cron("@daily", tz)


def test_every_takes_seconds_or_a_timedelta() -> None:
    assert every(timedelta(minutes=1)) == Every(60.0)
    assert list(islice(Every(60.0).after(100.0), 3)) == [160.0, 220.0, 280.0]
    for wrong in (0, 0.01, -5, "1m", True):
        with pytest.raises(BadOption, match="every"):
            every(wrong)


def test_one_is_the_newest_of_those_missed() -> None:
    minutely = cron("* * * * *")
    assert due(minutely, None, 0.0, 59.9, "one") == ([], 0.0)
    assert due(minutely, None, 0.0, 60.0, "one") == ([60.0], 60.0)
    assert due(minutely, None, 0.0, 605.0, "one") == ([600.0], 600.0)
    assert due(Every(7.0), None, 1.0, 100.0, "one") == ([99.0], 99.0)


def test_skip_makes_what_is_on_time_only() -> None:
    hourly = cron("@hourly")
    assert due(hourly, None, 0.0, 3605.0, "skip") == ([3600.0], 3600.0)
    assert due(hourly, None, 0.0, 3700.0, "skip") == ([], 3600.0)


def test_all_is_bounded() -> None:
    secondly = cron("* * * * * *")
    found, cursor = due(secondly, None, 0.0, 7 * 86_400.0, "all", most=100)
    assert (len(found), found[0], cursor) == (100, 1.0, 100.0)
    found, cursor = due(secondly, None, 100.0, 102.5, "all", most=100)
    assert (found, cursor) == ([101.0, 102.0], 102.0)


def test_a_week_of_seconds_is_not_walked_through() -> None:
    asked = []

    def each_second(now: datetime) -> datetime:
        asked.append(now)
        return now + timedelta(seconds=1)

    assert due(FunctionTiming(), each_second, 0.0, 7 * 86_400.0, "one")[1] == 7 * 86_400.0
    assert len(asked) < 100


def test_a_function_computes_the_next_time() -> None:
    assert list(islice(after(FunctionTiming(), lambda now: now + timedelta(hours=1), 0.0), 2)) == [3600.0, 7200.0]
    assert list(after(FunctionTiming(), lambda now: None, 0.0)) == []
    for wrong in (lambda now: now, lambda now: "soon", lambda now: datetime(2030, 1, 1)):  # noqa: DTZ001
        with pytest.raises(BadOption, match="schedule"):
            next(after(FunctionTiming(), wrong, 0.0))  # type: ignore[arg-type]


def test_a_stamp_names_the_utc_time() -> None:
    assert stamp(at("2026-03-29T01:00+00:00")) == "20260329T010000Z"
    assert stamp(0.25) == "19700101T000000.250Z"


@pytest.mark.parametrize(
    ("line", "means"),
    [
        ("*/90 * * * *", "the 60 values of the field `minute`: only the first of '*' would match, once in each hour"),
        ("0 */36 * * *", "the 24 values of the field `hour`: only the first of '*' would match, once in each day"),
        ("0,10-50/61 * * * *", "only the first of '10-50' would match, once in each hour"),
        ("*/90 0 * * * *", "the 60 values of the field `second`"),
        ("0 0 * */13 *", "the 12 values of the field `month`"),
    ],
)
def test_a_step_that_leaves_its_field_is_refused_with_what_it_would_mean(line: str, means: str) -> None:
    with pytest.raises(BadOption) as refused:
        cron(line)
    assert means in str(refused.value)
    assert "give an interval with `every`" in str(refused.value)


@pytest.mark.parametrize("line", ["*/60 * * * *", "0 */24 * * *", "0 0 * * */7", "*/59 * * * *"])
def test_a_step_of_a_whole_field_or_less_is_taken(line: str) -> None:
    assert cron(line).line == line


@shows("without a time zone database the error names the package to install")
def test_without_a_time_zone_database_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(to=())
    try:
        assert cron("0 0 * * *").tz == "UTC"
        with pytest.raises(BadOption, match="no time zone database, so 'Europe/Paris' is unknown: pip install tzdata"):
            cron("0 0 * * *", PARIS)
    finally:
        zoneinfo.reset_tzpath()
    with pytest.raises(BadOption, match="expected the name of a time zone such as"):
        cron("0 0 * * *", "Europe/Pariss")
