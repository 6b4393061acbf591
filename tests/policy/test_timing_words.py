"""The timing of a schedule in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import BadOption
from treadle.policy import cron
from treadle.policy.cron import Cron, Every, FunctionTiming
from treadle.policy.timing_words import words


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0 3 * * *", "at 03:00 every day"),
        ("*/5 * * * *", "every 5 minutes"),
        ("*/7 * * * *", "every 7 minutes, from minute 0 on"),
        ("* * * * *", "every minute"),
        ("0 * * * *", "every hour"),
        ("30 * * * *", "at minute 30 of every hour"),
        ("0 */2 * * *", "every 2 hours"),
        ("0 */5 * * *", "every 5 hours, from hour 0 on"),
        ("15 */2 * * *", "every 2 hours, at minute 15"),
        ("0 9 * * 1-5", "at 09:00 on Monday to Friday"),
        ("0 9,17 * * MON-FRI", "at 09:00 and 17:00 on Monday to Friday"),
        ("30 2 1 * *", "at 02:30 on day 1 of the month"),
        ("0 0 1 1 *", "at 00:00 on day 1 in January"),
        ("@hourly", "every hour"),
        ("@weekly", "at 00:00 on Sunday"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:00 every day"),
        ("*/10 9-17 * * MON", "every 10 minutes from 09:00 to 17:59 on Monday"),
        ("0 0 L * *", "at 00:00 on the last day of the month"),
        ("0 0 * * FRIL", "at 00:00 on the last Friday of the month"),
        ("0 12 * * 1#2", "at 12:00 on the second Monday of the month"),
        ("*/15 * * * * *", "every 15 seconds"),
        ("30 0 3 * * *", "at 03:00:30 every day"),
        ("*/20 30 4 * * *", "every 20 seconds, at minute 30 of hour 4 every day"),
        ("5,35 * * * *", "at minutes 5 and 35 of every hour"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month or on Friday"),
        ("0 3 */2 * *", "at 03:00 on every 2nd day of the month"),
        ("1-10/3 4 * 6,7 *", "at minutes 1 to 10 in steps of 3 of hour 4 every day in June and July"),
        ("0 0 * JAN-MAR SUN", "at 00:00 on Sunday in January to March"),
        ("0 0 LW * *", "at 00:00 on the last weekday of the month"),
        ("0 1,2,3,4,5,6,7,8 * * *", "at minute 0 of hours 1, 2, 3, 4, 5, 6, 7 and 8 every day"),
        ("0 0 * * 7", "at 00:00 on Sunday"),
        ("* 3 * * *", "every minute from 03:00 to 03:59 every day"),
        ("*/1 * * * *", "every minute"),
        ("0 0 */1 * *", "at 00:00 every day"),
        ("0 0 * * */2", "at 00:00 on every 2nd day of the week"),
        ("0 0 1-7 * MON", "at 00:00 on days 1 to 7 of the month or on Monday"),
        ("0 12 * */3 *", "at 12:00 every day in every 3rd month"),
    ],
)
def test_a_cron_line_in_words(line: str, said: str) -> None:
    assert words(cron.cron(line)) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.5, "every 0.5 seconds"),
        (1.0, "every second"),
        (90.0, "every 90 seconds"),
        (120.0, "every 2 minutes"),
        (3_600.0, "every hour"),
        (86_400.0, "every day"),
        (864_000.0, "every 10 days"),
    ],
)
def test_an_interval_in_words(seconds: float, said: str) -> None:
    assert words(Every(seconds)) == said


def test_a_zone_and_a_function_in_words() -> None:
    assert words(Cron("0 3 * * *", "Europe/Paris")) == "at 03:00 every day (Europe/Paris)"
    assert words(FunctionTiming()) == "when its function says"
    assert words(Cron("0 3 *")) == "cron 0 3 *"  # no public call stores it


FIELDS = st.lists(
    st.sampled_from(
        [
            "0",
            "1",
            "5",
            "*",
            "*/2",
            "*/7",
            "1-5",
            "1,3",
            "L",
            "LW",
            "MON",
            "JAN",
            "5#1",
            "5L",
            "FRIL",
            "1-9/2",
            "?",
            "59",
        ]
    ),
    min_size=5,
    max_size=6,
)


@given(FIELDS)
def test_every_valid_line_has_words(fields: list[str]) -> None:
    try:
        timing = cron.cron(" ".join(fields))
    except BadOption:
        return
    said = words(timing)
    assert said.startswith(("at ", "every "))
    assert "  " not in said
