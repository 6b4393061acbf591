"""Jobs that kill their process or keep its interpreter's lock, and the other jobs there, under a supervisor."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from pathlib import Path

import pytest

from tests.cli.fleet_stage import Made, Stage
from tests.servers import valkey
from tests.waiting import Signal, patient, until
from treadle import Job
from treadle.core.model import Record, State
from treadle.worker.fleet import Fleet, Orders, Recycling, trials, worker_process
from treadle.worker.fleet.fleet import SHORT
from treadle_testkit.shows import shows

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups"),
]

LEASE = 8.0  # s; so short that a fleet of one process has a trial process all the time
TASKS = """
@app.task(max_lost=2)
def poison() -> None:
    log("poison")
    os.kill(os.getpid(), 9)


@app.task
def deadly_once() -> int:
    log("deadly_once")
    if Path("runs").read_text().count("deadly_once") == 1:
        os.kill(os.getpid(), 9)
    return os.getpid()


@app.task
async def healthy(name: str) -> int:
    log("healthy")
    while not Path(name).exists():
        await asyncio.sleep(0.02)
    return os.getpid()


@app.task
def keep_lock(name: str) -> str:
    log("keep_lock")
    while not Path("hold").exists():  # until the event loop has nothing to do
        time.sleep(0.02)
    ctypes.PyDLL(None).open(name.encode(), os.O_RDONLY)  # it returns once another process opens it for writing
    return "ended"


def log(what: str) -> None:
    with open("runs", "a") as file:
        file.write(f"{what} {os.getpid()}\\n")
"""


def redis() -> str:
    """A storage that no process locks for longer than a call: the stuck process would hold the lock of SQLite."""
    return f"{valkey.url()}?ns=guilt{os.getpid()}-{next(_numbers)}"


_numbers = itertools.count()


def runs(here: Stage, what: str) -> list[int]:
    """The processes in which such a job has begun."""
    file = here.folder / "runs"
    lines = file.read_text().split("\n") if file.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith(f"{what} ")]


async def row(here: Stage, job: Job[int]) -> Record:
    found = await here.app.jobs.get(job.id)
    assert found is not None
    return found


SLOW_LOOK = """
async def hangs(self):
    await asyncio.Event().wait()


type(app.queues).stats = hangs


@app.task(max_lost=1)
async def at_once() -> None:
    os.kill(os.getpid(), 9)
"""


async def test_a_job_that_kills_the_first_process_before_its_first_look_at_the_storage(stage: Made) -> None:
    """The process says that it claims before it does: a fleet whose first process ends without that stops."""
    async with stage(1, tasks=SLOW_LOOK, lease=600.0) as here:
        job = await here.enqueue("at_once")
        await job.ended(timeout=60)
        failed = await row(here, job)
        assert (failed.state, failed.reason) == (State.FAILED, "lost")
        assert await here.run("pid") in here.fleet.pids.values()


@shows("a job that kills its worker process fails by itself; the other jobs there end, without an attempt counted")
@pytest.mark.parametrize("processes", [1, 2])
async def test_a_poison_job_dies_alone(stage: Made, processes: int) -> None:
    async with stage(processes, tasks=TASKS, lease=600.0) as here:  # no lease ends by itself
        healthy = [await here.enqueue("healthy", "go") for _ in range(3 * processes)]
        await until(lambda: len(runs(here, "healthy")) == len(healthy), "the healthy jobs")
        poison = await here.enqueue("poison")
        said = await here.until_said(r"while it ran \d jobs?: .* each is a suspect, and will be tried alone")
        assert "was killed by SIGKILL" in said
        assert f"jobs.poison {poison.id}" in said or "more; each is a suspect" in said  # it names five
        (here.folder / "go").touch()
        await poison.ended(timeout=60)
        for job in healthy:
            await job.result(timeout=60)
        failed = await row(here, poison)
        assert (failed.state, failed.reason) == (State.FAILED, "lost")
        assert len(runs(here, "poison")) == 3  # among others, and twice alone
        ended = [await row(here, job) for job in healthy]
        assert {(each.state, each.attempt) for each in ended} == {(State.SUCCEEDED, 1)}
        assert max(each.lost for each in ended) == 1
        assert not {*runs(here, "poison")[1:]} & {*here.fleet.pids.values()}  # it died in trial processes
        assert (
            here.fleet.verdict.line
            == f"ready: {processes} worker process{'es claim' if processes > 1 else ' claims'} jobs"
        )


async def test_a_trial_process_ends_when_it_is_idle(stage: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "IDLE", 0.1)
    async with stage(1, tasks=TASKS, lease=600.0) as here:
        await (await here.enqueue("deadly_once")).result(timeout=60)
        ended = Signal()
        process = here.fleet._trials.process
        assert process is not None
        process.over.add_done_callback(ended.send)
        await ended.until(process.over.done, "the end of the trial process")
        assert process.over.result() == 0
        await (await here.enqueue("healthy", "jobs.py")).result(timeout=60)


@shows("if no trial process can start, a worker tries its suspects itself, when nothing else runs there")
async def test_a_trial_process_that_cannot_start_leaves_the_suspects_to_their_worker(stage: Made) -> None:
    breaks = """
if Path("runs").exists() and Path("runs").read_text().count("imported") == 2:
    raise ImportError("broken by a deploy")
log("imported")
"""
    async with stage(1, tasks=TASKS + breaks, lease=600.0) as here:
        job = await here.enqueue("deadly_once")
        assert await job.result(timeout=100) in here.fleet.pids.values()
        assert "no trial process could start 3 times in a row; the workers try their suspects themselves" in here.said
        ended = await row(here, job)
        assert (ended.attempt, ended.lost) == (1, 1)


async def test_a_stop_during_a_trial_releases_the_suspects(stage: Made) -> None:
    async with stage(1, tasks=TASKS, lease=600.0, grace=0.2) as here:
        jobs = [await here.enqueue("healthy", "never") for _ in range(3)]
        await until(lambda: len(runs(here, "healthy")) == 3, "the jobs")
        await here.enqueue("deadly_once")
        await until(lambda: len(runs(here, "healthy")) == 4, "a trial")
    async with here.app:
        rows = [await row(here, job) for job in jobs]
        assert {(each.state, each.attempt, each.lost) for each in rows} == {(State.READY, 0, 1)}


async def test_a_trial_keeps_its_lease_when_its_holder_stops_first(stage: Made) -> None:
    """The supervisor sends the end of the holder to the trial process, which ends its job within the grace."""
    async with stage(1, tasks=TASKS, lease=600.0, grace=30.0) as here:
        job = await here.enqueue("healthy", "go")
        await until(lambda: len(runs(here, "healthy")) == 1, "the job")
        await here.enqueue("deadly_once")
        await until(lambda: len(runs(here, "healthy")) == 2, "a trial")
        trial = here.fleet._trials.process
        assert trial is not None
        here.fleet.stop()
        await until(lambda: here.fleet._shared.live == {trial}, "the end of the holder")
        await until(lambda: not here.fleet._deaths._noting, "the note")
        assert (await row(here, job)).state is State.RUNNING
        (here.folder / "go").touch()
        await until(trial.over.done, "its end")
        ended = await row(here, job)
        assert (ended.state, ended.attempt, ended.lost) == (State.SUCCEEDED, 1, 1)


async def test_a_rolling_restart_lets_a_trial_end(stage: Made) -> None:
    async with stage(1, tasks=TASKS, lease=600.0) as here:
        jobs = [await here.enqueue("healthy", "go") for _ in range(2)]
        await until(lambda: len(runs(here, "healthy")) == 2, "the jobs")
        deadly = await here.enqueue("deadly_once")
        await until(lambda: len(runs(here, "healthy")) == 3, "a trial")
        assert await here.fleet.roll("a test")
        (here.folder / "go").touch()
        first, second = [await job.result(timeout=60) for job in jobs]
        assert first != second  # the second one in a process with the new code
        assert len(runs(here, "healthy")) == 4
        assert await deadly.result(timeout=60) == second


@shows("the leases of a process whose interpreter's lock is kept are renewed by another one: no job of it runs twice")
@pytest.mark.parametrize(("processes", "lease"), [(1, LEASE), (1, SHORT), (2, LEASE)])
async def test_a_process_without_the_interpreters_lock_keeps_its_jobs(
    stage: Made,
    tmp_path: Path,
    processes: int,
    lease: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_process, "STUCK", 2.0)
    os.mkfifo(fifo := tmp_path / "fifo")
    async with stage(processes, tasks=TASKS, lease=lease, url=redis()) as here:
        healthy = [await here.enqueue("healthy", "go") for _ in range(2 * processes)]
        await until(lambda: len(runs(here, "healthy")) == len(healthy), "the healthy jobs")
        job = await here.enqueue("keep_lock", str(fifo))
        await until(lambda: runs(here, "keep_lock"), "the job")
        (here.folder / "hold").touch()
        # On a busy machine an event loop may be late before the lock is kept, and is reported without a job.
        said = await here.until_said(f"job {job.id} of task jobs.keep_lock: ")
        assert "its event loop has not answered" in said
        assert "keeps the interpreter's lock" in said
        [pid] = runs(here, "keep_lock")
        begun = (await row(here, job)).due_at
        assert begun is not None

        async def outlasted() -> bool:
            return ((await row(here, job)).due_at or 0.0) > begun + lease

        await until(outlasted, "renewals for more than a lease")
        (here.folder / "go").touch()
        await asyncio.to_thread(lambda: os.close(os.open(fifo, os.O_WRONLY)))
        assert await job.result(timeout=60) == "ended"
        for each in healthy:
            await each.result(timeout=60)
        assert runs(here, "keep_lock") == [pid]
        assert len(runs(here, "healthy")) == len(healthy)
        rows = [await row(here, each) for each in (job, *healthy)]
        assert {(each.state, each.attempt, each.lost) for each in rows} == {(State.SUCCEEDED, 1, 0)}
        await here.until_said("its event loop answers again")
    assert "in keep_lock" in "\n".join(here.said)


async def test_the_process_that_renews_short_leases_starts_together_with_the_worker(stage: Made) -> None:
    """Each of them waits for the import of the other one, so neither could start first."""
    waits = """
log("imports")
while Path("runs").read_text().count("imports") < 2:
    time.sleep(0.02)
"""
    async with stage(1, tasks=TASKS + waits, lease=3.0) as here:
        assert len({*runs(here, "imports")}) == 2
        trial = here.fleet._trials.process
        assert trial is not None
        assert trial.pid in runs(here, "imports")


async def test_a_worker_that_cannot_start_ends_the_fleet_and_the_process_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.py").write_text("raise ImportError('broken')")
    fleet = Fleet(Orders(app="jobs:app", lease=3.0), 1, lambda text: None)
    async with patient("the end of the fleet"):
        assert await fleet.run() == 1
    assert fleet._shared.live == set()


async def test_a_stuck_process_is_ended_and_only_the_culprit_is_to_blame(
    stage: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "STUCK", 0.5)
    os.mkfifo(fifo := tmp_path / "fifo")
    async with stage(
        1,
        Recycling(restart_stuck=3.0),
        tasks=TASKS.replace("@app.task\ndef keep", "@app.task(max_lost=1)\ndef keep"),
        lease=600.0,
        url=redis(),
    ) as here:
        healthy = await here.enqueue("healthy", "go")
        await until(lambda: len(runs(here, "healthy")) == 1, "the healthy job")
        (here.folder / "hold").touch()
        job = await here.enqueue("keep_lock", str(fifo))
        await here.until_said(
            r"was killed by SIGABRT after its event loop had not answered for 3 s while it ran 2 jobs"
        )
        (here.folder / "go").touch()
        await job.ended(timeout=60)
        assert await healthy.result(timeout=60)
        failed, ended = await row(here, job), await row(here, healthy)
        assert (failed.state, failed.reason) == (State.FAILED, "lost")
        assert (ended.state, ended.attempt, ended.lost) == (State.SUCCEEDED, 1, 1)
