"""The processes of a delayed job's command: none of its group outlives the attempt, or the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.waiting import until
from treadle import App, JobFailed, Retry, State, Worker
from treadle.contrib.delayed.delivery import Delivery, deliver
from treadle_testkit.shows import shows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no process groups")

FAMILY = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.pause()
"""


# Runs one command, and is killed in the moment after it has started its so-manyth process.
KILLED_WORKER = """
import asyncio, os, signal, sys
from treadle import App, Worker
from treadle.contrib.delayed.delivery import Delivery, deliver

start, processes = asyncio.create_subprocess_exec, []

async def started(*words, **options):
    processes.append(await start(*words, **options))
    if len(processes) == int(sys.argv[1]):
        with open(sys.argv[2], "w") as file:
            file.write(" ".join(str(process.pid) for process in processes))
        os.kill(os.getpid(), signal.SIGKILL)
    return processes[-1]

asyncio.create_subprocess_exec = started

async def main():
    app = App("memory://")
    deliver(app, Delivery(how="command", target=tuple(sys.argv[3:])))
    async with app, Worker(app):
        await (await app.stub("delayed.job", queue="delayed").enqueue("x")).result()

asyncio.run(main())
"""


def written(file: Path) -> list[int]:
    return [int(word) for word in file.read_text().split()] if file.exists() else []


async def pids(file: Path) -> list[int]:
    await until(lambda: written(file), "the processes of a command")
    return written(file)


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")  # a zombie runs nothing


def delivering(folder: Path, timeout: float) -> App:
    """An app whose jobs run a command that starts processes of its own."""
    (folder / "family.py").write_text(FAMILY)
    target = (sys.executable, str(folder / "family.py"), str(folder / "pids"))
    app = App("memory://")
    deliver(app, Delivery(how="command", target=target, timeout=timeout))
    return app


async def gone(*each: int) -> None:
    await until(lambda: not any(map(is_there, each)), "the end of the processes")


@shows("a command at its timeout is killed with its whole process group before the attempt fails")
async def test_at_its_timeout_the_whole_group_is_killed_before_it_is_tried_again(tmp_path: Path) -> None:
    app = delivering(tmp_path, timeout=1.0)
    async with app, Worker(app, poll=0.05):
        job = await app.stub("delayed.job", queue="delayed", retry=Retry(attempts=1)).enqueue("x")
        family = await pids(tmp_path / "pids")
        with pytest.raises(JobFailed, match="was killed after 1 s"):
            await job.result(30)
        assert not is_there(family[0])
        await gone(*family)


@shows("a worker that stops kills the process group of its command and releases the job uncounted")
async def test_a_worker_that_stops_kills_the_command_and_releases_the_job(tmp_path: Path) -> None:
    app = delivering(tmp_path, timeout=600)
    async with app:
        async with Worker(app, poll=0.05, grace=0.1):
            job = await app.stub("delayed.job", queue="delayed").enqueue("x")
            family = await pids(tmp_path / "pids")
        assert not is_there(family[0])
        await gone(*family)
        row = await app.jobs.get(job.id)
        assert (row.state, row.attempt) == (State.READY, 0)


@shows("a worker that is killed leaves no command running")
async def test_a_worker_that_is_killed_leaves_no_command_behind(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    words = f"{sys.executable} {tmp_path / 'family.py'} {tmp_path / 'pids'}"
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "treadle",
        "up",
        "--protocol",
        "delayed",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--command",
        words,
        cwd=tmp_path,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with App(f"sqlite:///{tmp_path / 'treadle.db'}") as app:
            await app.stub("delayed.job", queue="delayed").enqueue("x")
            family = await pids(tmp_path / "pids")
        os.kill(worker.pid, signal.SIGKILL)
        await gone(*family)
    finally:
        if worker.returncode is None and is_there(worker.pid):
            worker.kill()
        await worker.wait()


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_worker_that_is_killed_between_two_starts_leaves_no_command_behind(
    tmp_path: Path, processes: int
) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    words = [sys.executable, str(tmp_path / "family.py"), str(tmp_path / "pids")]
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED_WORKER, str(processes), str(tmp_path / "started"), *words
    )
    assert await worker.wait() == -signal.SIGKILL
    started = written(tmp_path / "started")
    assert len(started) == processes
    await gone(*started)
    assert not written(tmp_path / "pids")  # the command itself was never run


async def test_a_command_keeps_variables_whose_names_no_shell_could_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("spring.profiles", "kept")
    app = App("memory://")
    deliver(app, Delivery(how="command", target=("printenv", "spring.profiles")))
    async with app, Worker(app, poll=0.05):
        assert await (await app.stub("delayed.job", queue="delayed").enqueue("x")).result(30) == "kept"


async def test_a_command_that_was_removed_fails_with_its_name(tmp_path: Path) -> None:
    program = tmp_path / "gone program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    app = App("memory://")
    deliver(app, Delivery(how="command", target=(str(program),)))
    program.unlink()
    async with app, Worker(app, poll=0.05):
        job = await app.stub("delayed.job", queue="delayed", retry=Retry(attempts=1)).enqueue("x")
        with pytest.raises(JobFailed, match=r"gone program ended with exit code 127: .+"):
            await job.result(30)
