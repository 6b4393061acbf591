"""Delays, and how retry policies are combined."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from treadle import Abort, BadOption, Defer, RemoteFailure, Retry
from treadle.policy.retry import DEFAULT, Policy, RetryNow, read_policy, seconds, until
from treadle_testkit.shows import shows


def full(**fields: Any) -> Retry:
    return Retry(**fields).over(DEFAULT)


@shows("the delays of retries grow by the factor up to the maximum")
def test_waits_grow_by_the_factor_up_to_the_longest() -> None:
    retry = full(base=10, factor=2, max=100)
    assert [retry.delay(n, 0.0) for n in range(1, 7)] == [10, 20, 40, 80, 100, 100]


@shows("jitter shortens a delay and never lengthens it")
@pytest.mark.parametrize(("fraction", "wait"), [(0.0, 8.0), (0.5, 6.0), (1.0, 4.0)])
def test_jitter_only_shortens(fraction: float, wait: float) -> None:
    assert full(base=2, factor=2, max=100, jitter=0.5).delay(3, fraction) == wait


def test_no_number_of_tries_overflows() -> None:
    assert full(factor=10.0, max=300).delay(100_000, 0.0) == 300


def test_a_policy_is_laid_over_another_field_by_field() -> None:
    mine, below = Retry(attempts=None, jitter=0), Retry(attempts=3, base=7)
    assert mine.over(below) == Retry(attempts=None, base=7.0, jitter=0)
    assert mine.over(below).over(DEFAULT) == Retry(
        attempts=None, base=7.0, factor=2.0, max=300.0, jitter=0, then="fail"
    )


def test_timedelta_is_as_good_as_seconds() -> None:
    assert Retry(base=timedelta(minutes=1)) == Retry(base=60.0)
    assert seconds(timedelta(milliseconds=1500), "x") == 1.5


@pytest.mark.parametrize(
    "fields",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"attempts": 2.5},
        {"attempts": True},
        {"attempts": "3"},
        {"base": -1},
        {"base": "1"},
        {"max": float("nan")},
        {"max": float("inf")},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"factor": "2"},
        {"jitter": 1.5},
        {"jitter": -0.1},
        {"jitter": None},
    ],
)
def test_a_policy_out_of_range_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="retry"):
        Retry(**fields)


@shows("a `run_at` in the past means now, and one without a time zone is refused", area="Enqueuing jobs")
def test_a_time_in_the_past_is_now_and_a_naive_one_is_refused() -> None:
    assert until(datetime(2020, 1, 1, tzinfo=UTC), "run_at", 2e9) == 0
    assert until(datetime.fromtimestamp(100, UTC), "run_at", 40.0) == 60
    with pytest.raises(BadOption, match="zone"):
        until(datetime(2030, 1, 1), "run_at", 0)  # noqa: DTZ001
    with pytest.raises(BadOption, match="expected a datetime"):
        until(5, "run_at", 0)


def test_defer_takes_seconds_or_a_time() -> None:
    assert Defer(5).delay(100.0) == 5
    assert Defer(until=datetime.fromtimestamp(160, UTC)).delay(100.0) == 60
    assert Defer(until=datetime.fromtimestamp(50, UTC)).delay(100.0) == 0
    assert Defer(until=datetime.max.replace(tzinfo=UTC)).delay(0) == 100 * 365 * 86_400
    for wrong in (lambda: Defer(-1), lambda: Defer(until=datetime(2030, 1, 1)), lambda: Defer("soon")):  # type: ignore[arg-type]  # noqa: DTZ001
        with pytest.raises(BadOption):
            wrong()


def test_the_constructors_make_their_outcomes() -> None:
    assert Retry.now() == RetryNow()


@pytest.mark.parametrize("wait", [-1, "5", float("nan"), 1e12])
def test_a_chosen_wait_is_checked(wait: Any) -> None:
    with pytest.raises(BadOption, match=r"Retry\.after"):
        Retry.after(wait)


def test_retries_for_some_exceptions_only() -> None:
    only = Retry.only(ConnectionError, KeyError)
    assert only(ConnectionResetError(), None) is None
    assert only(KeyError(), None) is None
    assert isinstance(only(OSError(), None), Abort)
    assert isinstance(Retry.only()(KeyError(), None), Abort)
    assert only(RemoteFailure("KeyError", "builtins", "x", "x"), None) is None
    assert isinstance(only(RemoteFailure("ValueError", "builtins", "x", "x"), None), Abort)
    with pytest.raises(BadOption, match="expected classes of exceptions, found 'KeyError'"):
        Retry.only("KeyError")  # type: ignore[arg-type]
    assert str(Abort("no such customer")) == "no such customer"


@pytest.mark.parametrize(
    "policy",
    [
        Policy(retry=Retry(attempts=None)),
        Policy(timeout=None),
        Policy(timeout=1.5, max_lost=0),
        Policy(retry=Retry(attempts=2, base=0.5, factor=3.0, max=7.0, jitter=0.25), pass_result=True),
    ],
)
def test_a_policy_in_a_row_is_read_back(policy: Policy) -> None:
    text = policy.text()
    assert text is not None
    assert read_policy(text) == policy


def test_an_empty_policy_stores_nothing_and_an_invalid_text_counts_as_empty() -> None:
    assert Policy().text() is None
    for text in (None, "", "{", "[]", '{"timeout": "soon"}', '{"retry": {"attempts": -4}}'):
        assert read_policy(text) == Policy()
    assert read_policy('{"of a newer version": 1, "max_lost": 2}') == Policy(max_lost=2)
