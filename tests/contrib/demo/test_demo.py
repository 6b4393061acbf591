"""`treadle demo` as a process: its report, a killed worker, and that it leaves nothing behind."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.tools import Command, gone

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="the demo needs signals")]


def nothing_left(demo: Command, temporary: Path) -> bool:
    return gone(demo.process.pid) and not list(temporary.iterdir())


def test_the_demo_prints_its_report(tmp_path: Path) -> None:
    with Command("demo", cwd=tmp_path, TMPDIR=str(tmp_path)) as demo:
        assert demo.ended() == 0, demo.stderr
    assert "json.decoder" not in demo.stderr
    assert "LONGEST FUNCTIONS" in demo.stdout
    assert "BIGGEST MODULES" in demo.stdout
    assert "0 failed, 0 lost, 0 missing" in demo.stdout
    assert nothing_left(demo, tmp_path)


def test_a_killed_worker_loses_nothing(tmp_path: Path) -> None:
    with Command("demo", "--kill", "--json", cwd=tmp_path, TMPDIR=str(tmp_path)) as demo:
        assert "kill -9" in demo.wait_for("killed worker")
        demo.wait_for("restarting it")
        assert "run again" in demo.wait_for("came back")
        assert demo.ended() == 0, demo.stderr
    found = json.loads(demo.stdout)
    jobs, report = found["jobs"], found["report"]
    assert jobs["killed"] == 1
    assert jobs["lost"] >= 1
    assert (jobs["missing"], jobs["failed"]) == (0, 0)
    assert jobs["enqueued"] == jobs["succeeded"] == report["modules"] + 1
    assert report["missing"] == []
    assert len(report["longest"]) == len(report["biggest"]) == 10
    assert nothing_left(demo, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["enqueued", "killed worker"])
def test_the_demo_can_be_stopped_at_any_time(tmp_path: Path, number: int, moment: str) -> None:
    with Command("demo", "--kill", cwd=tmp_path, TMPDIR=str(tmp_path)) as demo:
        demo.wait_for(moment)
        demo.signal(number)
        assert demo.ended() == 130, demo.stderr
    assert "Traceback" not in demo.stderr, demo.stderr
    assert demo.stderr.count("interrupted") == 1
    assert demo.stdout == ""
    assert nothing_left(demo, tmp_path)


def test_keep_leaves_the_file_and_prints_its_path(tmp_path: Path) -> None:
    with Command("demo", "--keep", cwd=tmp_path, TMPDIR=str(tmp_path)) as demo:
        demo.wait_for("enqueued")
        demo.signal(signal.SIGINT)
        assert demo.ended() == 130
    kept = next(line for line in demo.said if line.startswith("kept the database: "))
    [folder] = tmp_path.iterdir()
    assert str(folder / "demo.db") in kept


def test_a_storage_in_memory_is_refused(tmp_path: Path) -> None:
    with Command("demo", "--url", "memory://", cwd=tmp_path) as demo:
        assert demo.ended() == 2
    assert demo.stderr.startswith("treadle: the demo's worker processes cannot share a memory://")
