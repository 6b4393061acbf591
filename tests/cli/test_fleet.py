"""The supervisor of worker processes: event loops that are stuck, and processes that are replaced while jobs run."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.cli.fleet_stage import TASKS, Made
from tests.waiting import until
from treadle import App, Job
from treadle.cli.options import memory
from treadle.core.model import State
from treadle.worker import WorkerHealth
from treadle.worker.fleet import Recycling, worker_process
from treadle.worker.fleet.fleet import reap
from treadle.worker.fleet.messages import Vitals
from treadle.worker.fleet.recycling import JITTER, SETTLED
from treadle.worker.fleet.worker_process import EVERY, STUCK
from treadle_testkit.shows import shows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups")


@pytest.mark.slow
@shows("a worker process whose event loop is stuck is named with how long, and the stack that blocks it is printed")
async def test_a_stuck_event_loop_is_named_with_its_stack(stage: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EVERY + STUCK + 1.0 <= 10.0  # s: the pause before a probe, the patience, and one check
    monkeypatch.setattr(worker_process, "STUCK", 0.4)
    async with stage(2, Recycling(restart_stuck=None)) as here:
        await until(lambda: here.fleet.verdict.problem is None, "a probe of both since they claim")
        job = await here.enqueue("block", "go")
        await here.until_said(
            r"worker [12] \(pid \d+\): its event loop has not answered for \d+ s\. .*Its stack is below"
        )
        verdict = here.fleet.verdict
        assert verdict.stuck is not None
        assert re.fullmatch(r"worker [12] \(pid \d+\): its event loop has not answered for \d+ s", verdict.stuck)
        assert verdict.line.startswith("not alive: worker ")
        (here.folder / "go").touch()
        assert await job.result(timeout=60) in here.fleet.pids.values()
        await here.until_said("its event loop answers again")
        assert here.fleet.verdict.line == "ready: 2 worker processes claim jobs"
    assert "jobs.py" in (printed := "\n".join(here.said))
    assert "in block" in printed


@pytest.mark.slow
@shows("a fleet with a stuck process is not ready, and alive until its supervisor should have restarted that process")
async def test_a_stuck_process_that_will_be_restarted_is_no_reason_to_restart_all(
    stage: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "STUCK", 0.4)
    async with stage(2) as here:
        await until(lambda: here.fleet.verdict.problem is None, "a probe of both since they claim")
        job = await here.enqueue("block", "go")
        said = await here.until_said("its event loop has not answered")
        assert "the leases of its jobs are renewed until it answers, at most 300 s" in said
        assert here.fleet.verdict.line.startswith("not ready: worker ")
        (here.folder / "go").touch()
        assert await job.result(timeout=60)


@pytest.mark.slow
async def test_a_stuck_process_is_killed_with_restart_stuck(
    stage: Made, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_process, "STUCK", 0.2)
    async with stage(1, Recycling(restart_stuck=0.4)) as here:
        before = here.fleet.pids
        await here.enqueue("block", "go")
        await here.until_said("it will be killed and restarted")
        (here.folder / "go").touch()
        await here.until_said(r"worker 1 was killed by SIGABRT; restarting it in 0\.2 s")
        await here.changed.until(lambda: here.fleet.pids and here.fleet.pids != before, "another process")
    assert "Fatal Python error: Aborted" in capfd.readouterr().err


@shows(
    "a replaced worker process claims until its replacement claims, and ends its running jobs; no attempt is counted"
)
async def test_a_process_is_replaced_without_a_gap_and_ends_its_jobs(stage: Made) -> None:
    async with stage(1, Recycling(max_jobs=1, drain=60.0)) as here:
        [old] = here.fleet.pids.values()
        job = await here.enqueue("until", "go")
        said = await here.until_said("lets its running jobs end")
        [new] = here.fleet.pids.values()
        assert said == f"worker 1 (pid {new}) claims jobs; worker 1 (pid {old}) lets its running jobs end"
        assert f"worker 1 (pid {old}) will be replaced: it has started 1 jobs" in here.said

        async def draining() -> bool:
            workers = (await here.app.queues.stats()).workers
            return [each.draining for each in workers if each.pid == old] == ["it has started 1 jobs"]

        await until(draining, "the heartbeat of the draining process")
        assert await here.run("pid") == new  # the old one claims no more
        number = len(here.said)
        (here.folder / "go").touch()
        assert await job.result(timeout=60) == old
        row = await here.app.jobs.get(job.id)
        assert (row.state, row.attempt, row.lost) == (State.SUCCEEDED, 1, 0)
        await here.until_said(rf"\(pid {new}\) lets its running jobs end", number)  # which was due meanwhile
    events = (here.folder / "events").read_text().splitlines()
    assert events[:2] == [f"{old} worker.recycling it has started 1 jobs", f"{old} worker.stopped "]


@pytest.mark.slow
async def test_a_stop_gives_a_draining_process_the_usual_grace_only(stage: Made) -> None:
    async with stage(1, grace=0.1) as here:
        job = await here.enqueue("until", "never")
        await until(lambda: running(here.app, job), "the job")
        assert await here.fleet.roll("a test")
        await here.until_said("lets its running jobs end")
    async with here.app:
        row = await here.app.jobs.get(job.id)
    assert (row.state, row.attempt, row.lost) == (State.READY, 0, 0)


@pytest.mark.slow
async def test_memory_and_age_are_limits_too(stage: Made) -> None:
    async with stage(1, Recycling(max_memory=400 * 2**20)) as here:
        old = await here.run("hold", 400)
        assert re.search(r"it uses 4\d\d\.\d MiB of memory", await here.until_said("will be replaced"))
        await here.until_said("lets its running jobs end")
        assert await here.run("pid") != old


@pytest.mark.slow
async def test_workers_that_keep_the_order_of_jobs_do_not_overlap(stage: Made) -> None:
    async with stage(1, ordered=True) as here:
        [old] = here.fleet.pids.values()
        job = await here.enqueue("until", "go")
        await until(lambda: running(here.app, job), "the job")
        rolling = asyncio.create_task(here.fleet.roll("a test"))
        await here.until_said("will be replaced: a test")
        assert list(here.fleet.pids.values()) == [old]
        (here.folder / "go").touch()
        assert await rolling
        assert await here.run("pid") not in (0, old)


async def running(app: App, job: Job[int]) -> bool:
    return (await app.jobs.get(job.id)).state is State.RUNNING


@pytest.mark.slow
async def test_a_replacement_that_cannot_start_leaves_the_old_process(stage: Made) -> None:
    async with stage(2) as here:
        before = here.fleet.pids
        (here.folder / "jobs.py").write_text("1 / 0\n")
        assert not await here.fleet.roll("a test")
        await here.until_said(rf"the replacement of worker 1 \(pid {before[1]}\) ended with exit code 1; .* continues")
        assert here.fleet.pids == before
        assert await here.run("pid") in before.values()


@pytest.mark.slow
async def test_a_request_during_a_replacement_gets_a_process_of_its_own(stage: Made) -> None:
    """The replacement that is under way may have imported the code from before the request. A SIGHUP that reaches a
    worker process too, as with `systemctl kill`, does not end it."""
    async with stage(1) as here:
        [first] = here.fleet.pids.values()
        os.kill(first, signal.SIGHUP)
        assert await here.run("pid") == first
        code = "import time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n"
        (here.folder / "jobs.py").write_text(f"import os\n{code}{TASKS}")
        rolls = [asyncio.create_task(here.fleet.roll("the first"))]
        await here.until_said("will be replaced: the first")
        rolls.append(asyncio.create_task(here.fleet.roll("the second")))
        await asyncio.sleep(0)  # the second request is made
        (here.folder / "go").touch()
        assert await asyncio.gather(*rolls) == [True, True]
        await here.until_said("will be replaced: the second")


async def test_a_limit_below_the_memory_of_an_idle_process_is_reported(stage: Made) -> None:
    """Otherwise each new process would be replaced at once, for ever."""
    async with stage(1, Recycling(max_memory=2**24)) as here:
        [pid] = here.fleet.pids.values()
        await here.until_said(r"MiB of memory before its first job, .* give --max-memory a larger size")
        assert await here.run("pid") == pid
        assert not [line for line in here.said if "will be replaced" in line]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has containers and subreapers")
def test_processes_that_pid_1_inherits_are_reaped() -> None:
    """The test makes this process the heir of its descendants, as pid 1 is."""
    libc, subreaper = ctypes.CDLL(None), 36
    assert libc.prctl(subreaper, 1, 0, 0, 0) == 0
    try:
        script = ["sh", "-c", "sleep 60 >&2 & echo $!"]
        with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            orphan = int(parent.stdout.readline())
            os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
            os.kill(orphan, signal.SIGKILL)
            assert reap([0]) == reap([parent.pid]) == []  # the exit code of its own child is left to its owner
        os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
        assert orphan in reap([])
        with pytest.raises(ChildProcessError):
            os.waitpid(orphan, os.WNOHANG)
    finally:
        libc.prctl(subreaper, 0, 0, 0, 0)


# --- the limits


def vitals(started: int = 0, memory: int = 0) -> Vitals:
    return Vitals(WorkerHealth(worker="w", stage="claiming", started=started), memory)


def test_limits_of_jobs_and_age_are_drawn_up_to_a_tenth_lower() -> None:
    asked = Recycling(max_jobs=1_000, max_age=3_600.0, max_memory=2**30)
    assert asked.drawn(lambda: 0.0) == asked
    least = asked.drawn(lambda: 1.0)
    assert (least.max_jobs, least.max_age, least.max_memory) == (900, 3_240.0, 2**30)
    assert JITTER == 0.1
    assert Recycling(max_jobs=1).drawn(lambda: 1.0).max_jobs == 1
    assert Recycling().drawn().reason(vitals(10**9, 2**50), 1e9) is None


def test_a_process_is_due_when_it_reaches_a_limit() -> None:
    limits = Recycling(max_jobs=100, max_age=60.0, max_memory=2**20)
    assert limits.reason(vitals(99, 2**20 - 1), 59.0) is None
    assert limits.reason(vitals(1_234), 0.0) == "it has started 1,234 jobs"
    assert limits.reason(vitals(), 61.0) == "it is 61 s old"
    assert limits.reason(vitals(memory=2**20), 0.0) == "it uses 1.0 MiB of memory"
    assert Recycling(max_memory=2**20).reason(vitals(memory=2**21), SETTLED - 1, 2**20) is None
    assert Recycling(max_memory=2**20).reason(vitals(memory=2**21), SETTLED, 2**20) is not None


@pytest.mark.parametrize(
    ("text", "size"),
    [("16M", 2**24), ("1.5G", 3 * 2**29), ("512 MiB", 2**29), ("33554432", 2**25), ("20000kb", 20_480_000)],
)
def test_a_size_with_a_unit_is_parsed(text: str, size: int) -> None:
    assert memory(text) == size


def test_a_process_measures_its_memory() -> None:
    from treadle.worker.fleet.supervisor_link import resident_memory

    before = resident_memory()
    held = os.urandom(64 * 2**20)
    assert resident_memory() - before > len(held) // 2
