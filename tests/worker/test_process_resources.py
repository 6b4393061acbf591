"""The resources of tasks of kind "process": opened in each process for its first job, closed before it is replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.worker import process_resources as work
from treadle import App, JobFailed, Retry, Worker
from treadle.worker.executors import processes
from treadle_testkit.shows import shows


@shows('a process of kind="process" enters the lifespan for its first job and leaves it before it is replaced')
async def test_a_lifespan_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv("NOTES", str(notes))
    monkeypatch.setattr(processes.ProcessPool.__init__, "__defaults__", (2,))  # jobs for each process
    async with work.app, Worker(work.app, concurrency=1):
        found = [await (await work.use.enqueue()).result(60) for _ in range(3)]
        first, second = found[0][0], found[2][0]
        assert found == [(first, first), (first, first), (second, second)]
        assert os.getpid() not in (first, second)
    lines = notes.read_text().splitlines()
    assert lines[0] == f"entered {os.getpid()}"
    assert lines[-1] == f"left {os.getpid()}"
    assert sorted(lines[1:-1]) == sorted(f"{what} {pid}" for what in ("entered", "left") for pid in (first, second))


async def test_a_lifespan_that_fails_there_fails_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("FAILS", str(os.getpid()))
    async with work.app, Worker(work.app):
        with pytest.raises(JobFailed, match="failed before its yield: OSError: no database"):
            await (await work.use.enqueue()).result(60)


@shows('tasks of kind="process" get their dependencies in their process, which closes them before it ends')
async def test_dependencies_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv("NOTES", str(notes))
    async with work.app, Worker(work.app, concurrency=1):
        found = [await (await work.use_session.enqueue(n)).result(60) for n in (1, 2)]
    pid = found[0].split()[-1]
    assert found == [f"{n} session on pool of {pid} in {pid}" for n in (1, 2)]
    there = [line.removesuffix(f" {pid}") for line in notes.read_text().splitlines() if line.endswith(f" {pid}")]
    runs = ["open session", "close session"] * 2
    assert there == ["entered", "open pool", *runs, "close pool", "left"]
    assert pid != str(os.getpid())


async def test_a_function_that_is_no_task_there_has_no_dependencies(tmp_path: Path) -> None:
    async with App("memory://", retry=Retry(attempts=1)) as app:
        task = app.task(name="use", kind="process")(work.undecorated)
        async with Worker(app):
            with pytest.raises(JobFailed, match="is not that task, so the process does not know its dependencies"):
                await (await task.enqueue(1)).result(60)
