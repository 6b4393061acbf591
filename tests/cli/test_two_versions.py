"""A rolling deployment: a worker process with the old code and one with the new code claim from one queue."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.tools import Command
from tests.waiting import until
from treadle import App
from treadle_testkit.shows import shows

PROGRAM = """
from treadle import App

app = App("sqlite:///jobs.db", misfits="wait")


@app.task(name="pay")
async def pay({parameters}) -> str:
    return "{version}"
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups")
@shows("two worker processes of two versions each run the jobs that only they can read, uncounted")
async def test_each_version_runs_its_own_jobs(tmp_path: Path) -> None:
    parameters = {"old": "order: int", "new": "order: str, currency: str"}
    for version, given in parameters.items():
        (tmp_path / f"{version}_code.py").write_text(PROGRAM.format(parameters=given, version=version))
    app = App(f"sqlite:///{tmp_path}/jobs.db")
    async with app:
        with (
            Command("worker", "old_code:app", "--poll", "0.1", cwd=tmp_path) as old,
            Command("worker", "new_code:app", "--poll", "0.1", cwd=tmp_path) as new,
        ):

            async def both() -> bool:
                return len((await app.storage.stats()).workers) == 2

            await until(both, "both workers")
            jobs = [await app._core.stub("pay").enqueue(n) for n in range(10)]
            jobs += [await app._core.stub("pay").enqueue(str(n), "EUR") for n in range(10)]
            results = [await job.result(timeout=60) for job in jobs]
            rows = await app.storage.get([job.id for job in jobs])
            for command in (old, new):
                command.signal(signal.SIGTERM)
                assert await asyncio.to_thread(command.ended) == 0
    assert results == ["old"] * 10 + ["new"] * 10
    assert {row.attempt for row in rows if row is not None} == {1}
    assert {row.error for row in rows if row is not None} == {None}
