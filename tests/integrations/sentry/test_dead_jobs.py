"""One error event for each dead job, with its exception and its stack, from a real `treadle worker`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tools import Command
from tests.integrations.sentry.receiver import Receiver
from treadle_testkit.shows import shows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups")

PROGRAM = Path(__file__).with_name("program.py")
DEAD = {
    ("raises", "ValueError"): "async",
    ("in_thread", "KeyError"): "'thread'",
    ("in_process", "ZeroDivisionError"): "process",
    ("in_batch", "RuntimeError"): "batch",
    ("hangs", "TimeoutError"): "jobs.hangs ran longer than its timeout of 0.05 s",
    ("reads", "BadArgument"): "jobs.reads: parameter 'number' expected int, got str",
    ("misreturns", "BadResult"): "jobs.misreturns: the result expected int, got str ('no number')",
    ("gives_up", "Abort"): "no such customer",
    ("reports_itself", "LookupError"): "mine",
}


@pytest.fixture(scope="module")
def sentry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    folder = tmp_path_factory.mktemp("sentry")
    (folder / "jobs.py").write_text(PROGRAM.read_text())
    with Receiver() as receiver:
        environment = {**os.environ, "DSN": receiver.dsn}
        with Command("worker", "jobs:app", cwd=folder, DSN=receiver.dsn) as command:
            subprocess.run([sys.executable, "jobs.py"], cwd=folder, env=environment, check=True, timeout=90)
            command.process.terminate()
            assert command.ended() == 0, command.stderr
        yield receiver


def _task(event: dict[str, Any]) -> str:
    return str(event["tags"]["treadle.task"])


@pytest.mark.slow
@shows("Sentry gets one event for each dead job, with its exception and its stack")
def test_each_dead_job_is_one_event(sentry: Receiver) -> None:
    events = sentry.of("event")
    last = [event["exception"]["values"][-1] for event in events]
    found = Counter((_task(event), each["type"]) for event, each in zip(events, last, strict=True))
    # A function that reports its exception itself does so at each attempt: Sentry drops the same exception at the end.
    assert found == Counter(
        {**dict.fromkeys(DEAD, 1), ("in_batch", "RuntimeError"): 3, ("reports_itself", "LookupError"): 2}
    )
    assert {(_task(event), each["type"]): each["value"] for event, each in zip(events, last, strict=True)} == DEAD
    assert all(each["stacktrace"]["frames"] for each in last)


@pytest.mark.slow
def test_the_last_frame_is_that_of_the_function(sentry: Receiver) -> None:
    own = {"raises", "in_thread", "in_process", "in_batch", "gives_up", "reports_itself"}
    for event in sentry.of("event"):
        frames = event["exception"]["values"][-1]["stacktrace"]["frames"]
        if _task(event) in own:
            assert (frames[-1]["function"], Path(frames[-1]["filename"]).name) == (_task(event), "jobs.py")
        if _task(event) == "hangs":  # where the function was when its time was over
            assert "hangs" in [frame["function"] for frame in frames]


def test_an_event_names_its_job(sentry: Receiver) -> None:
    [event] = [event for event in sentry.of("event") if _task(event) == "raises"]
    facts = event["contexts"]["treadle"]
    assert event["transaction"] == "raises"
    assert event["level"] == "error"
    assert facts["job"] == event["tags"]["treadle.job"]
    assert (facts["task"], facts["queue"], facts["attempt"]) == ("raises", "default", 2)
    assert event["contexts"]["treadle.outcome"] == {
        "outcome": "failed",
        "reason": "error",
        "seconds": pytest.approx(0, abs=60),
    }
    assert "arguments" not in facts


def test_a_worker_reports_nothing_else(sentry: Receiver) -> None:
    """Log records of failures are no events of their own, and a job that succeeds at last is none."""
    assert {_task(event) for event in sentry.of("event")} == {task for task, _ in DEAD}
    assert not sentry.of("transaction")
    assert not sentry.of("check_in")
