"""The outcome of a run by its result or error: pure functions, from a row to an outcome."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import treadle
from treadle import Abort, Defer, Record, Retry, State
from treadle.core.model import NewJob, Outcome
from treadle.errors import users_part
from treadle.policy.error_text import text_of
from treadle.policy.guilt import NOTE
from treadle.policy.judge import Rules, failed, lost_too_often, released, rules_for, succeeded
from treadle.policy.retry import DEFAULT, RetryNow
from treadle_testkit.shows import shows

RULES = Rules(Retry(attempts=3, base=10.0, factor=2.0, max=100.0, jitter=0.5).over(DEFAULT), None, 3)


def row(**fields: Any) -> Record:
    return Record(**{"job": NewJob(id="j", task="t"), "version": 7, "state": State.RUNNING, **fields})


def said(error: BaseException, verdict: Any = None, record: Record | None = None, now: float = 1000.0) -> Outcome:
    return failed(record or row(), RULES, error, verdict, now, 0.0)


def test_a_failure_is_tried_again_later_while_attempts_last() -> None:
    outs = [said(ValueError("x"), record=row(attempt=n)) for n in range(3)]
    assert [(out.state, out.attempt, out.delay) for out in outs] == [
        (State.READY, 1, 10.0),
        (State.READY, 2, 20.0),
        (State.FAILED, 3, 0.0),
    ]
    assert outs[2].reason == "error"
    assert outs[2].error is not None
    assert outs[2].error.endswith("ValueError: x")
    assert {out.version for out in outs} == {7}


def test_attempts_none_is_without_end() -> None:
    rules = Rules(Retry(attempts=None).over(DEFAULT), None, 3)
    assert failed(row(attempt=10_000), rules, ValueError(), None, 0.0, 0.0).state is State.READY


@shows("a deferred job keeps its attempts and its last error")
def test_defer_is_later_and_uncounted() -> None:
    out = said(Defer(300), record=row(attempt=2, error="the last one"))
    assert (out.state, out.attempt, out.delay, out.error) == (State.READY, 2, 300.0, "the last one")
    moment = datetime.fromtimestamp(1060, UTC)
    assert said(Defer(until=moment)).delay == 60
    assert said(ValueError(), verdict=Defer(5)).attempt == 0


def test_a_deferral_without_delay_leaves_the_head_of_the_queue() -> None:
    assert said(Defer()).delay > 0


def test_an_abort_ends_the_job_with_its_message() -> None:
    out = said(Abort("no such customer"))
    assert (out.state, out.reason, out.error, out.attempt) == (State.FAILED, "aborted", "no such customer", 1)
    by_classifier = said(ValueError("x"), verdict=Abort("not worth another try"))
    assert by_classifier.error is not None
    assert by_classifier.error == "not worth another try; ValueError: x\nValueError: x"


def test_the_message_of_an_abort_is_bounded_and_storable() -> None:
    assert len(said(Abort("x" * 50_000)).error or "") <= 10_000
    (said(Abort("\ud800")).error or "").encode()


def test_an_abort_from_something_shows_what() -> None:
    def broken() -> None:
        try:
            raise KeyError("cust-7")
        except KeyError as error:
            raise Abort("no such customer") from error

    with pytest.raises(Abort) as caught:
        broken()
    text = said(caught.value).error or ""
    assert "KeyError: 'cust-7'" in text
    assert text.endswith("no such customer")


def test_an_outcome_of_the_task_takes_precedence_over_the_classifier() -> None:
    assert said(Abort("end"), verdict=RetryNow()).state is State.FAILED
    assert said(Defer(9), verdict=Abort()).delay == 9


def test_retry_after_counts_and_waits_for_its_seconds() -> None:
    for out in (
        said(Retry.after(90)),
        said(ValueError(), verdict=Retry.after(90)),
        said(Retry.after(90), verdict=Abort()),
    ):
        assert (out.state, out.attempt, out.delay) == (State.READY, 1, 90.0)
    last = said(Retry.after(90), record=row(attempt=2))
    assert (last.state, last.reason, last.attempt) == (State.FAILED, "error", 3)
    late = said(Retry.after(90), record=row(deadline_at=1005.0))
    assert (late.state, late.reason) == (State.FAILED, "expired")


def test_the_error_of_a_retry_is_that_of_its_cause() -> None:
    asked = Retry.after(1)
    asked.__cause__ = ConnectionError("503")
    assert (said(asked).error or "").splitlines()[0] == "ConnectionError: 503"
    assert (said(Retry.after(1)).error or "").splitlines()[0].endswith("RetryAfter: retry after 1 s")


def test_retry_now_counts_and_does_not_wait() -> None:
    out = said(ValueError(), verdict=RetryNow())
    assert (out.state, out.attempt, out.delay) == (State.READY, 1, 0.0)
    assert said(ValueError(), verdict=RetryNow(), record=row(attempt=2)).state is State.FAILED


@shows("a job that would retry or defer past its deadline expires")
@pytest.mark.parametrize("error", [ValueError("x"), Defer(10)])
def test_a_retry_after_the_deadline_expires_the_job(error: Exception) -> None:
    out = said(error, record=row(deadline_at=1005.0))
    assert (out.state, out.reason) == (State.FAILED, "expired")
    assert said(error, record=row(deadline_at=1011.0)).state is State.READY


@shows("a job that lost too many workers while it ran alone fails, unless `max_lost` is 0")
def test_a_job_that_is_lost_too_often_fails() -> None:
    def tried(alone: int) -> Record:
        return row(lost=alone + 1, checkpoints=((NOTE, f'{{"lost": {alone + 1}, "alone": {alone}}}'),))

    assert lost_too_often(tried(2), RULES) is None
    out = lost_too_often(tried(3), RULES)
    assert out is not None
    assert (out.state, out.reason, out.attempt) == (State.FAILED, "lost", 0)
    assert lost_too_often(tried(99), Rules(DEFAULT, None, 0)) is None


@shows("a job that a worker releases keeps its last error")
def test_a_success_clears_the_error_and_a_release_keeps_it() -> None:
    assert succeeded(row(error="old", attempt=1), "4").error is None
    back = released(row(error="old", attempt=1))
    assert (back.error, back.attempt, back.delay) == ("old", 1, 0.0)


def test_rules_are_the_row_over_the_task_over_the_default() -> None:
    def ruled(text: str | None) -> Rules:
        return rules_for(row(job=NewJob(id="j", task="t", retry=text)), Retry(attempts=2, base=9), 5.0, 3)

    plain = ruled(None)
    assert (plain.retry.attempts, plain.retry.base, plain.retry.factor) == (2, 9.0, 2.0)
    assert (plain.timeout, plain.max_lost, plain.pass_result) == (5.0, 3, False)
    asked = ruled('{"retry": {"attempts": 8}, "timeout": null, "max_lost": 1, "pass_result": true}')
    assert (asked.retry.attempts, asked.retry.base) == (8, 9.0)
    assert (asked.timeout, asked.max_lost, asked.pass_result) == (None, 1, True)


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Hidden(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name in ("__cause__", "__context__", "__notes__"):
            raise RuntimeError("do not look")
        return super().__getattribute__(name)


@pytest.mark.parametrize("error", [Silent(), Hidden(), ValueError("\ud800"), BaseExceptionGroup("g", [SystemExit(1)])])
def test_any_exception_has_a_text(error: BaseException) -> None:
    text = text_of(error)
    assert type(error).__name__ in text
    text.encode()


@shows("a long error is cut to 10,000 characters and keeps its beginning and its end")
def test_a_long_error_keeps_its_begin_and_its_end() -> None:
    text = text_of(ValueError("a" * 9_000 + "b" * 9_000))
    assert len(text) <= 10_000
    assert "ValueError" in text[:200]
    assert text.endswith("b")


def test_the_text_of_an_error_has_its_causes() -> None:
    def inner() -> None:
        try:
            raise KeyError("deep")
        except KeyError as error:
            raise ValueError("shallow") from error

    with pytest.raises(ValueError, match="shallow") as caught:
        inner()
    text = text_of(caught.value)
    assert "KeyError: 'deep'" in text
    assert "direct cause" in text
    assert text.endswith("ValueError: shallow")


def test_a_package_whose_name_begins_like_ours_keeps_its_frames() -> None:
    file = f"{Path(treadle.__file__).parent}_acme/tasks.py"
    names: dict[str, Any] = {}
    exec(compile("def send():\n    raise ValueError('no route')", file, "exec"), names)
    with pytest.raises(ValueError, match="no route") as caught:
        names["send"]()
    text = text_of(caught.value)
    assert f'File "{file}", line 2, in send' in text
    assert users_part(caught.tb) is caught.tb
