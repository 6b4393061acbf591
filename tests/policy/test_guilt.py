"""Which lost leases count against a job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.core.defaults import SYSTEM_QUEUE
from treadle.core.model import NewJob, Pairs, Record, State
from treadle.policy import attempts, judge
from treadle.policy.guilt import (
    NOTE,
    cleared_note,
    culprit_of,
    guilt_of,
    is_cleared_by,
    is_suspect,
    plain_note,
    sharing_note,
    standing,
    stop_note,
    trial_note,
    without_kind,
    words,
)
from treadle.policy.retry import DEFAULT, Defer
from treadle_testkit.shows import shows

RULES = judge.Rules(DEFAULT, None, 2)


def row(**fields: Any) -> Record:
    return Record(**{"job": NewJob(id="j", task="t"), "version": 7, "state": State.RUNNING, **fields})


def after(record: Record, note: Pairs, losses: int = 0) -> Record:
    """The row with this note, after so many more leases were lost."""
    return replace(record, checkpoints=note, lost=record.lost + losses)


def test_a_job_that_lost_a_lease_is_a_suspect_until_a_run_has_ended() -> None:
    assert not is_suspect(row())
    once = row(lost=1)
    assert is_suspect(once)
    cleared = after(once, cleared_note(once))
    assert not is_suspect(cleared)
    assert is_suspect(after(cleared, cleared.checkpoints, 1))


@shows("only a lease that is lost while its job runs alone counts towards `max_lost`")
def test_only_leases_lost_alone_count() -> None:
    beside = row(lost=99)
    assert judge.lost_too_often(beside, RULES) is None
    for _ in range(2):
        assert judge.lost_too_often(beside, RULES) is None
        beside = after(beside, trial_note(beside), 1)
    ended = judge.lost_too_often(beside, RULES)
    assert ended is not None
    assert (ended.state, ended.reason, ended.attempt) == (State.FAILED, "lost", 0)
    assert judge.lost_too_often(beside, replace(RULES, max_lost=0)) is None


@shows("a job with `max_lost=1` is not run again once it has lost a worker, whatever else ran there")
def test_a_job_that_must_not_run_twice() -> None:
    rules = replace(RULES, max_lost=1)
    out = judge.lost_too_often(row(lost=1, reason="lost by w"), rules)
    assert out is not None
    assert (
        out.error == "1 worker was lost while it ran this job; it will not run again (max_lost=1): worker 'w' was lost"
    )
    assert judge.lost_too_often(after(row(), stop_note(row()), 1), rules) is None
    assert judge.lost_too_often(after(row(lost=1), cleared_note(row(lost=1))), rules) is None


@shows("a job that failed as lost says when, by which worker and how it lost each of them")
def test_the_error_names_each_death() -> None:
    record = row(lost=1)
    for number in range(2):
        note = {
            "lost": record.lost,
            "worker": f"w{number}",
            "how": "was killed by SIGKILL",
            "at": 1_000_000_000 + number,
        }
        checkpoints = {**dict(record.checkpoints), **dict(trial_note(record)), "treadle:death": json.dumps(note)}
        record = replace(
            record, lost=record.lost + 1, reason=f"lost by w{number}", checkpoints=tuple(checkpoints.items())
        )
        record = replace(record, checkpoints=(*record.checkpoints, *attempts.losses(record)))
    out = judge.lost_too_often(replace(record, reason=None), RULES)
    assert out is not None
    assert out.error == (
        "2 workers were lost while they ran only this job; it will not run again (max_lost=2): "
        "worker 'w0' was killed by SIGKILL at 2001-09-09 01:46:40 UTC, "
        "worker 'w1' was killed by SIGKILL at 2001-09-09 01:46:41 UTC"
    )


def test_a_death_alone_explains_the_ends_of_its_workers_once_for_each_job() -> None:
    neighbour = row(lost=1, reason="lost by w1")
    culprit = after(neighbour, (*trial_note(neighbour), *attempts.losses(neighbour)), 1)
    culprit = replace(culprit, reason="lost by w2")
    assert (culprit_of(neighbour), culprit_of(culprit)) == ((), ("w1", "w2"))
    assert is_cleared_by(neighbour, ["w1"])
    assert not is_cleared_by(neighbour, ["w2"])
    assert not is_cleared_by(culprit, ["w2"])
    again = replace(after(neighbour, cleared_note(neighbour), 1), reason="lost by w2")
    assert not is_cleared_by(again, ["w2"])


def test_the_words_for_a_suspect() -> None:
    lost = row(lost=1, reason="lost by w")
    assert words(lost) == "it is a suspect, because worker 'w' was lost, and will be tried alone"
    assert words(after(lost, trial_note(lost))) == "it is a suspect, because worker 'w' was lost, and runs alone now"
    assert (words(row()), standing(replace(lost, state=State.SUCCEEDED))) == (None, None)
    running = replace(lost, state=State.RUNNING)
    held, shares = after(running, plain_note(running)), after(running, sharing_note(running))
    assert [standing(each) for each in (running, held, shares)] == ["waits", "waits", "shares"]
    assert words(shares) == "it is a suspect, because worker 'w' was lost, and runs next to other jobs"
    assert standing(replace(shares, lost=2)) == standing(after(shares, plain_note(shares))) == "waits"
    assert standing(replace(running, function_done=True)) is None
    assert standing(replace(running, job=replace(running.job, queue=SYSTEM_QUEUE))) is None


def test_a_note_counts_one_of_several_lost_leases() -> None:
    tried = row(lost=1)
    assert guilt_of(after(tried, trial_note(tried), 5)).alone == 1


def test_a_run_that_begins_alone_and_is_released_no_longer_counts() -> None:
    tried = row(lost=1)
    released = judge.released(after(tried, trial_note(tried)))
    assert guilt_of(after(tried, without_kind(tried, released).checkpoints, 1)).alone == 0
    assert without_kind(tried, judge.succeeded(tried, "1")).checkpoints == ()


@shows("a lease that is lost while its worker stops does not count")
def test_a_lease_lost_during_a_stop_is_cleared() -> None:
    for record in (row(), row(lost=2)):
        stopped = after(record, stop_note(record), 1)
        assert guilt_of(stopped).cleared == 1
        assert is_suspect(stopped) == is_suspect(record)
    tried = after(row(lost=1), trial_note(row(lost=1)), 1)
    assert guilt_of(after(tried, stop_note(tried), 1)).alone == 1


def test_each_wait_to_be_alone_is_counted_until_the_next_loss() -> None:
    record = row(lost=1)
    for waits in range(3):
        assert guilt_of(record).waits == waits
        record = after(record, plain_note(record, waited=True))
    assert guilt_of(after(record, record.checkpoints, 1)).waits == 0


def test_a_reopened_job_has_no_losses() -> None:
    record = row(lost=1)
    noted = after(record, cleared_note(record))
    assert is_suspect(replace(noted, reopenings=1))
    tried = replace(after(record, trial_note(record), 0), reopenings=1, lost=2)
    assert (guilt_of(tried).alone, guilt_of(tried).kind) == (0, None)


ENDINGS: list[Any] = [
    judge.failed(row(lost=2), RULES, ValueError("x"), None, 0.0, 0.0),
    judge.failed(row(lost=2), RULES, Defer(5), None, 0.0, 0.0),
    judge.asleep(row(lost=2), "pause", 5.0, 0.0),
    judge.awaiting(row(lost=2), ("a",)),
]


@pytest.mark.parametrize("outcome", ENDINGS)
def test_a_run_that_ended_clears_its_job(outcome: Any) -> None:
    assert not is_suspect(after(row(lost=2), outcome.checkpoints))


def test_a_release_clears_nothing_and_ordinary_jobs_store_nothing() -> None:
    assert judge.released(row(lost=2)).checkpoints == ()
    assert judge.failed(row(), RULES, ValueError("x"), None, 0.0, 0.0).checkpoints == ()


@pytest.mark.parametrize(
    "text", ["", "garbage", "[]", '{"lost": -1}', '{"lost": 7}', '{"kind": "x"}', "1:", "99999999999:1"]
)
def test_a_note_that_nothing_can_read_counts_as_none(text: str) -> None:
    record = row(lost=1, checkpoints=((NOTE, text),))
    assert is_suspect(record)
    assert guilt_of(record).alone == 0


def test_the_older_form_is_read() -> None:
    assert not is_suspect(row(lost=2, checkpoints=((NOTE, "0:2"),)))
    assert is_suspect(row(lost=3, checkpoints=((NOTE, "0:2"),)))
    assert is_suspect(row(lost=2, reopenings=1, checkpoints=((NOTE, "0:2"),)))
