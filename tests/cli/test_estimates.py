"""`treadle jobs explain --eta` and `treadle queues plan`: what people and programs read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from treadle import App, Limit
from treadle.admin import Range
from treadle.cli.estimates import pace, when
from treadle.cli.root import run
from treadle.core.model import Presence

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on a file with forty jobs of a limit of one slot, and a worker. Return its exit code and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_URL", raising=False)

    async def fill() -> None:
        async with App("sqlite:///treadle.db") as app:

            @app.task(name="t")
            async def t() -> None: ...

            await app.limits.set(Limit("api", slots=1))
            await app.enqueue(t.options(id=f"j{number:02}", limits=["api"]).job() for number in range(40))
            present = Presence(worker="w1", queues=("default",), tasks=("t",), slots=8, ttl=86_400)
            await app.storage.heartbeat(present, [], 30)

    asyncio.run(fill())

    def call(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(args)
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_estimate_of_a_job(cli: Run) -> None:
    code, out, err = cli("jobs", "explain", "j39", "--eta")
    assert code == 0
    explanation, starts, ends, basis, _, head, as_is, *changes = out.splitlines()
    assert explanation.startswith("It is queued behind 39 jobs in queue 'default'")
    assert starts.startswith("starts ")
    assert ", in 39 s (39 s to 39 s)" in starts, "a run that was never measured counts one second"
    assert ends.startswith("ends ")
    assert basis.endswith(" of 39 jobs ahead")
    assert head.split() == ["CHANGE", "STARTS", "RANGE", "COMMAND"]
    assert as_is.startswith("as it is ")
    assert [line for line in changes if "'api' has 2 slots instead of 1" in line and "in 19 s" in line]
    assert "assumed: few runs of 't' were measured: 1 s a run is used" in err


def test_the_estimate_for_programs(cli: Run) -> None:
    code, out, _ = cli("jobs", "explain", "j39", "--eta", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["start"]["median"] == pytest.approx(found["at"] + 39, abs=1)
    assert "treadle limits set api --slots 2" in [each["command"] for each in found["changes"]]
    code, out, _ = cli("jobs", "explain", "j39", "--json")
    assert json.loads(out)["explanation"].startswith("It is queued behind")


def test_the_estimate_of_a_job_that_does_not_start(cli: Run) -> None:
    cli("queues", "pause", "default")
    code, out, _ = cli("jobs", "explain", "j01", "--eta")
    assert code == 0
    assert "Estimate: it does not start by itself." in out
    assert "treadle queues resume default" in out
    cli("jobs", "cancel", "j02")
    code, out, _ = cli("jobs", "explain", "j02", "--eta")
    assert (code, out.count("\n")) == (0, 1)


@pytest.mark.slow
def test_the_plan_of_a_queue(cli: Run) -> None:
    code, out, _ = cli("queues", "plan", "default")
    assert code == 0
    facts = {line[:13].strip(): line[15:] for line in out.split("\n\n")[0].splitlines()}
    assert facts["jobs"] == "40 queued, 0 running, 0 blocked, 0 scheduled"
    assert facts["workers"] == "1 with 8 slots"
    assert facts["bottleneck"] == "the limit 'api'"
    assert "in 39 s" in facts["empty"]
    assert "CHANGE" in out
    code, out, _ = cli("queues", "plan", "default", "--json")
    assert json.loads(out)["bottleneck"] == "the limit 'api'"
    code, out, err = cli("queues", "plan", "defualt")
    assert code == 0
    assert "empty" in out
    assert "default" in err, "the nearest known name"


def test_times_and_rates_are_short() -> None:
    assert when(Range(40, 60, 130), 10) == "1970-01-01 00:01:00 UTC, in 50 s (30 s to 2 m)"
    assert when(None, 10) is None
    assert [pace(each) for each in (0, 3.21, 0.5, 0.01)] == [
        "0.0 jobs/s",
        "3.2 jobs/s",
        "30.0 jobs/min",
        "36.0 jobs/h",
    ]
