"""The next and the last ticks of a schedule, from its timing alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from treadle.core.clock import moment
from treadle.policy.cron import Cron, Every
from treadle.scheduling import Schedule, last_ids, upcoming, upcoming_of, words_of

NOW = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC, a Tuesday


def schedule(next_at: float | None = None, **more: Any) -> Schedule:
    return Schedule(
        name="s",
        timing="",
        task="t",
        catch_up="one",
        overlap="allow",
        paused=next_at is None,
        next_at=None if next_at is None else moment(next_at),
        error=None,
        id="treadle:schedule:1",
        **{"last": None, **more},
    )


def test_the_next_ticks_of_a_cron_line_and_of_an_interval() -> None:
    nightly = schedule(1_700_017_200.0, cron="0 3 * * *", tz="UTC")
    assert upcoming(nightly, 3) == [1_700_017_200.0, 1_700_103_600.0, 1_700_190_000.0]
    assert upcoming(schedule(NOW + 5, every=60.0), 3) == [NOW + 5, NOW + 65, NOW + 125]
    assert upcoming(schedule(every=60.0)) == []
    assert upcoming(schedule(NOW + 5)) == [NOW + 5]  # of a function
    assert upcoming_of(Every(60.0), NOW, 2) == [NOW + 60, NOW + 120]
    assert upcoming_of(Cron("0 3 * * *", "Europe/Paris"), NOW, 1) == [1_700_013_600.0]


def test_the_ids_of_the_last_ticks() -> None:
    hourly = schedule(cron="0 * * * *", tz="UTC", last="by-hand")
    assert last_ids(hourly, NOW, 3) == ["by-hand", "cron:s:20231114T220000Z", "cron:s:20231114T210000Z"]
    assert len(last_ids(hourly, NOW)) == 20
    every = schedule(NOW + 5, every=60.0, last="cron:s:20231114T221225Z")
    assert last_ids(every, NOW, 2) == ["cron:s:20231114T221225Z", "cron:s:20231114T221125Z"]
    assert last_ids(schedule(every=60.0, last="x"), NOW) == ["x"]
    assert last_ids(schedule(NOW, last="x"), NOW) == ["x"]
    assert last_ids(schedule(NOW), NOW) == []


def test_the_search_for_earlier_ticks_is_bounded() -> None:
    """A line that fires every second of one day of the year has 86,400 ticks in it."""
    assert last_ids(schedule(cron="* * * 1 1 *", tz="UTC"), NOW) == []
    yearly = schedule(cron="0 0 1 1 *", tz="UTC")
    assert last_ids(yearly, NOW) == ["cron:s:20230101T000000Z"]
    late = datetime(9990, 6, 1, tzinfo=UTC).timestamp()  # no tick after `now` is computed: the calendar ends at 9999
    assert last_ids(yearly, late) == ["cron:s:99900101T000000Z"]


def test_a_timing_in_words() -> None:
    assert words_of(schedule(cron="0 3 * * *", tz="Europe/Paris")) == "at 03:00 every day (Europe/Paris)"
    assert words_of(schedule(every=60.0)) == "every minute"
    assert words_of(schedule()) == "when its function says"
