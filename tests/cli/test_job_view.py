"""A job as the command line shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from treadle import App
from treadle.cli.job_view import line, shown, steps
from treadle.core.model import NewJob, Record, State
from treadle.policy.guilt import trial_note


def test_a_suspect_that_a_worker_holds_is_not_shown_as_one_that_runs() -> None:
    held = Record(
        job=NewJob(id="j", task="t"), version=7, state=State.RUNNING, lost=1, reason="lost by w", started_at=100.0
    )
    runs = replace(held, checkpoints=trial_note(held))
    assert [line(row, 103.0)[-1] for row in (held, runs)] == ["waits to run alone, for 3.0 s", "for 3.0 s"]
    facts = [dict(shown(App("memory://"), row, "", 103.0)) for row in (held, runs)]
    assert [each["state"] for each in facts] == ["running, but it waits to run alone", "running"]
    assert [each["lost"] for each in facts] == [
        "1 expired lease: a suspect, will be tried alone",
        "1 expired lease: a suspect, runs alone now",
    ]


@pytest.mark.parametrize(
    ("ended_at", "entry", "text"),
    [
        (None, {"until": 60.0}, "sleeps until 1970-01-01 00:01:00 UTC"),
        (None, {"until": 60.0, "over": True}, "slept until 1970-01-01 00:01:00 UTC"),
        (61.0, {"until": 60.0}, "slept until 1970-01-01 00:01:00 UTC"),
        (50.0, {"until": 60.0}, "slept until its job ended"),
    ],
)
def test_a_sleep_of_a_job_that_has_ended_is_over(ended_at: float | None, entry: dict[str, Any], text: str) -> None:
    state = State.RUNNING if ended_at is None else State.CANCELLED
    checkpoints = (("sleep:sleep", json.dumps(entry)),)
    row = Record(job=NewJob(id="j", task="t"), version=7, state=state, checkpoints=checkpoints, ended_at=ended_at)
    assert steps(row) == [("sleep:sleep", text)]
