"""Tasks of kind "process": whatever the function does, the worker survives and reports what happened."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.waiting import Signal, until
from tests.worker import process_tasks as work
from treadle import (
    Abort,
    App,
    BadArgument,
    BadResult,
    BadTask,
    Defer,
    JobFailed,
    Middleware,
    ProcessDied,
    Record,
    RemoteFailure,
    Retry,
    State,
    TooLarge,
    Worker,
)
from treadle.core.model import NewJob
from treadle.execution.context import Context
from treadle.execution.job_run import JobRun, enter
from treadle.policy.retry import RetryAfter
from treadle.tasks.core import TaskCore
from treadle.tasks.task import Task
from treadle.worker.executors.processes import ProcessPool
from treadle.worker.state import WorkerState
from treadle_testkit.shows import shows


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    made = ProcessPool()
    yield made
    await made.close()


@pytest.fixture
async def app() -> AsyncIterator[App]:
    async with App("memory://", retry=Retry(attempts=1)) as made:
        yield made


def task_of(function: Callable[..., Any], **options: Any) -> TaskCore:
    if isinstance(function, Task):
        return function._core
    made: Task[..., Any, Any] = App("memory://").task(kind="process", **options)(function)
    return made._core


def record(task: TaskCore, *args: Any, **fields: Any) -> Record:
    payload = task.signature.encode_call(args, {})
    return Record(job=NewJob(id="j1", task=task.name, payload=payload, **fields), version=3, state=State.RUNNING)


async def run(pool: ProcessPool, function: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    task = task_of(function)
    return task.signature.decode_result(await pool.run(task, record(task, *args, **fields)))


async def appears(path: Path) -> str:
    """The text a child writes there."""
    text: str = await until(lambda: path.exists() and path.read_text(), f"the text that a child writes to {path.name}")
    return text


def lives(pid: int) -> bool:
    """Whether it runs: it has not ended, and does not wait to be reaped by the process that adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> None:
    await until(lambda: not lives(pid), "the end of a process")


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


# --- features


async def test_a_function_runs_elsewhere_and_its_process_is_used_again(pool: ProcessPool) -> None:
    first = await run(pool, work.pid)
    assert first != os.getpid()
    assert await run(pool, work.pid) == first
    assert await run(pool, work.double, 21) == 42


@pytest.mark.slow
async def test_as_many_processes_as_run_at_once(pool: ProcessPool) -> None:
    found = await asyncio.gather(*(run(pool, work.pid) for _ in range(3)))
    assert sorted(found) == pool.pids
    assert len(set(found)) == 3
    assert await run(pool, work.pid) in found
    assert len(pool.pids) == 3


async def test_a_process_is_replaced_after_so_many_jobs() -> None:
    pool = ProcessPool(jobs_each=2)
    found = [await run(pool, work.pid) for _ in range(5)]
    assert found[0] == found[1] != found[2] == found[3] != found[4]
    assert pool.pids == [found[4]]
    await pool.close()
    assert pool.pids == []


async def test_tasks_are_found_under_any_name_with_their_codec(pool: ProcessPool) -> None:
    assert await run(pool, work.decorated, 1) == 101
    assert await run(pool, work.by_another_name, 4) == 40
    assert await run(pool, work.shouted, 6) == 7
    alias = task_of(work.double, name="other", codec=work.Shouting())
    with pytest.raises(RemoteFailure, match="does not know its codec"):
        await pool.run(alias, record(alias, 2))


async def test_arguments_and_results_have_their_annotated_types(pool: ProcessPool) -> None:
    from datetime import UTC, datetime

    at = datetime(2030, 1, 2, 3, 4, 5)  # noqa: DTZ001  the task gives it its zone
    assert await run(pool, work.moment, at) == at.replace(tzinfo=UTC)


async def test_current_works_inside(pool: ProcessPool) -> None:
    found = await run(pool, work.whoami, labels=("a",), headers=(("k", "v"),))
    assert found == {
        "id": "j1",
        "attempt": 1,
        "version": 3,
        "task": "tests.worker.process_tasks.whoami",
        "lost": 0,
        "labels": ["a"],
        "headers": {"k": "v"},
        "worker": "",
        "cancelled": False,
    }


async def test_a_process_has_the_folder_and_paths_of_its_parent(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/here/and/there")
    assert await run(pool, work.cwd_and_path) == (str(tmp_path), sys.path, "/here/and/there")


async def test_a_process_prints_as_usual_and_reads_no_input(
    pool: ProcessPool, capfd: pytest.CaptureFixture[str]
) -> None:
    await run(pool, work.says, "good morning")
    seen = capfd.readouterr()
    assert (seen.out, seen.err) == ("good morning\n", "good morning\n")
    assert await run(pool, work.reads) == ""


@pytest.mark.slow
async def test_payloads_and_results_of_sixteen_mebibytes(pool: ProcessPool) -> None:
    text = "ä" * (8 * 2**20 - 8)
    assert await run(pool, work.big, text) == text + "!"
    with pytest.raises(TooLarge) as caught:
        await run(pool, work.too_big)
    assert (caught.value.size, caught.value.limit) == (16 * 2**20 + 2, 16 * 2**20)


async def test_progress_reaches_the_parents_context(pool: ProcessPool, tmp_path: Path) -> None:
    heard, go_on = asyncio.Event(), tmp_path / "go"
    task = task_of(work.reports)
    row = record(task, 1000, str(go_on))
    run = JobRun(row, "w", heard.set)
    enter(run)
    running = asyncio.create_task(pool.run(task, row))
    await heard.wait()
    assert run.note is not None
    assert "of 1000" in run.note
    go_on.touch()
    await running
    assert run.note == '{"progress":1.0,"text":"1000 of 1000"}'


@pytest.mark.parametrize("end", ["return", "raise", "die"])
async def test_real_costs_reach_the_parents_run(pool: ProcessPool, end: str) -> None:
    """Also if the process dies then: the run ends with it."""
    task = task_of(work.spends)
    row = record(task, 20, end, limits=(("tokens:ann", 50),))
    run = JobRun(row, "w", lambda: None)
    enter(run)
    with nullcontext() if end == "return" else pytest.raises((RemoteFailure, ProcessDied)):
        await pool.run(task, row)
    assert run.spent == {"tokens:ann": 40}


# --- failures


async def test_an_exception_of_a_process_comes_back_as_text_with_the_traceback(pool: ProcessPool) -> None:
    with pytest.raises(RemoteFailure) as caught:
        await run(pool, work.boom)
    error = caught.value
    assert (error.type, error.module, error.message) == ("ZeroDivisionError", "builtins", "nothing to divide by")
    assert 'process_tasks.py", line' in str(error)
    assert "child.py" not in str(error)
    assert str(error).endswith("ZeroDivisionError: nothing to divide by")
    with pytest.raises(RemoteFailure, match="cannot be made again"):
        await run(pool, work.picky)
    with pytest.raises(RemoteFailure, match="SystemExit: enough"):
        await run(pool, work.quits)
    assert len(pool.pids) == 1


async def test_outcomes_raised_in_a_process_reach_the_worker(pool: ProcessPool) -> None:
    with pytest.raises(Defer) as deferred:
        await run(pool, work.later, 12.5)
    assert deferred.value.seconds == 12.5
    with pytest.raises(Defer) as until:
        await run(pool, work.later_at)
    assert str(until.value.until) == "2100-01-01 00:00:00+00:00"
    with pytest.raises(RetryAfter) as again:
        await run(pool, work.ask_again, 2.5)
    assert (again.value.seconds, again.value.__cause__) == (2.5, None)
    with pytest.raises(RetryAfter) as caused:
        await run(pool, work.ask_again_because, 2.5)
    assert "KeyError: 'busy'" in str(caused.value.__cause__)
    with pytest.raises(Abort, match=r"^bad input$") as aborted:
        await run(pool, work.never)
    assert aborted.value.__cause__ is None
    with pytest.raises(Abort, match=r"^bad input$") as because:
        await run(pool, work.never_because)
    assert "ValueError: too short" in str(because.value.__cause__)
    with pytest.raises(BadResult) as unstorable:
        await run(pool, work.unstorable)
    assert unstorable.value.task.endswith("unstorable")
    task = task_of(work.double)
    bad = Record(job=NewJob(id="x", task=task.name, payload='["no"]'), version=1, state=State.RUNNING)
    with pytest.raises(BadArgument) as wrong:
        await pool.run(task, bad)
    assert wrong.value.parameter == "n"


@pytest.mark.slow
async def test_the_error_of_a_dead_process_has_its_cause_and_the_pool_continues(pool: ProcessPool) -> None:
    with pytest.raises(ProcessDied, match="ended with exit code 3") as left:
        await run(pool, work.dies, 3)
    assert left.value.code == 3
    with pytest.raises(ProcessDied, match=r"died with signal 11 \(SIGSEGV\)") as struck:
        await run(pool, work.struck, 11)
    assert (struck.value.code, struck.value.signal) == (-11, "SIGSEGV")
    with pytest.raises(ProcessDied, match="signal 9"):
        await run(pool, work.struck, 9)
    assert pool.pids == []
    assert await run(pool, work.double, 4) == 8


async def test_a_process_that_died_while_idle_costs_no_attempt(pool: ProcessPool) -> None:
    pid = await run(pool, work.pid)
    os.kill(pid, signal.SIGKILL)
    assert await run(pool, work.double, 4) == 8
    assert pid not in pool.pids


async def test_signals_for_the_whole_family_are_for_the_worker(pool: ProcessPool) -> None:
    assert await run(pool, work.ignores, signal.SIGTERM) == "still here"
    assert await run(pool, work.ignores, signal.SIGINT) == "still here"
    assert os.getpgid(await run(pool, work.pid)) != os.getpgid(0)


@needs_proc
async def test_a_cancelled_run_is_over_when_the_process_is_dead(pool: ProcessPool, tmp_path: Path) -> None:
    running = asyncio.create_task(run(pool, work.spins, str(tmp_path / "pid")))
    pid = int(await appears(tmp_path / "pid"))
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()  # it must not be interrupted
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not lives(pid)
    assert pool.pids == []
    assert await run(pool, work.double, 1) == 2


@needs_proc
async def test_processes_that_a_task_started_are_killed_with_it(pool: ProcessPool, tmp_path: Path) -> None:
    running = asyncio.create_task(run(pool, work.spawns, str(tmp_path / "pids")))
    _, other = map(int, (await appears(tmp_path / "pids")).split())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await gone(other)


@needs_proc
async def test_a_fork_that_holds_the_socket_does_not_hide_a_death(pool: ProcessPool, tmp_path: Path) -> None:
    with pytest.raises(ProcessDied, match="signal 9"):
        await run(pool, work.forks_and_dies, str(tmp_path / "pid"))
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@needs_proc
async def test_closing_kills_what_runs(tmp_path: Path) -> None:
    pool = ProcessPool()
    running = asyncio.create_task(run(pool, work.spins, str(tmp_path / "pid")))
    pid = int(await appears(tmp_path / "pid"))
    await pool.close()
    assert not lives(pid)
    with pytest.raises(ProcessDied):
        await running
    with pytest.raises(RuntimeError, match="closed"):
        await run(pool, work.double, 1)


async def test_a_function_that_cannot_be_found_is_an_error_of_that_job(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(work.double)
    monkeypatch.setattr(work.double, "__module__", "no_such_module")
    with pytest.raises(RemoteFailure, match="No module named 'no_such_module'"):
        await pool.run(task, record(task, 1))
    monkeypatch.setattr(work.double, "__module__", work.__name__)
    monkeypatch.setattr(work.double, "__qualname__", "nowhere")
    with pytest.raises(RemoteFailure, match=f"{BadTask.__name__}.*has no nowhere at its top level"):
        await pool.run(task, record(task, 1))


# --- through a worker


async def test_a_worker_runs_tasks_of_processes(app: App) -> None:
    double = app.task(kind="process")(work.double)
    async with Worker(app):
        assert await (await double.enqueue(4)).result(30) == 8


async def test_middleware_sees_values_also_around_processes(app: App) -> None:
    seen: list[object] = []

    @app.middleware
    class Adds(Middleware):
        async def run(self, context: Context, proceed: Any) -> Any:
            seen.append(await proceed())
            return 99

    double = app.task(kind="process")(work.double)
    async with Worker(app):
        assert await (await double.enqueue(4)).result(30) == 99
    assert seen == [8]


async def test_failures_are_counted_and_the_row_shows_the_traceback(app: App) -> None:
    boom = app.task(kind="process")(work.boom)
    dies = app.task(kind="process")(work.dies)
    never = app.task(kind="process", retry=Retry(attempts=3))(work.never)
    later = app.task(kind="process")(work.later)
    async with Worker(app):
        jobs = [await boom.enqueue(), await dies.enqueue(3), await never.enqueue()]
        deferred = asyncio.Event()
        app.on("deferred")(lambda _: deferred.set())
        later_job = await later.enqueue(500)
        rows = [await job.ended(30) for job in jobs]
        await deferred.wait()
        row = await app.jobs.get(later_job)
    assert [each.reason for each in rows] == ["error", "error", "aborted"]
    assert [each.attempt for each in rows] == [1, 1, 1]
    errors = [each.error or "" for each in rows]
    assert errors[0].startswith("ZeroDivisionError: nothing to divide by\nTraceback")
    assert errors[0].endswith("ZeroDivisionError: nothing to divide by")
    assert "exit code 3" in errors[1]
    assert errors[2] == "bad input"
    assert row.attempt == 0
    assert row.due_at is not None
    assert row.due_at > row.updated_at + 499


@shows("a timeout kills the process of a process task")
@needs_proc
async def test_a_timeout_kills_the_process(app: App, tmp_path: Path) -> None:
    spins = app.task(kind="process")(work.spins)
    warm = app.task(kind="process")(work.pid)
    async with Worker(app, concurrency=1):
        process = await (await warm.enqueue()).result(30)
        job = await spins.options(timeout=0.3).enqueue(str(tmp_path / "pid"))
        with pytest.raises(JobFailed, match=r"ran longer than its timeout of 0\.3 s"):
            await job.result(30)
        assert not lives(process)  # the only one there was
        late = await spins.options(expires=0.3).enqueue(str(tmp_path / "pid2"))
        assert (await late.ended(30)).reason == "expired"


@pytest.mark.slow
@needs_proc
async def test_a_stopping_worker_kills_processes_after_its_grace_and_releases_their_jobs(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spins = app.task(kind="process")(work.spins)
    reports = app.task(kind="process")(work.reports)
    worker, notes = Worker(app), Signal().after(monkeypatch, WorkerState, "note_changed")
    await worker.start()
    endless = await spins.enqueue(str(tmp_path / "pid"))
    short = await reports.enqueue(1, str(tmp_path / "go"))
    pid = int(await appears(tmp_path / "pid"))
    assert worker._core.session is not None
    running = worker._core.session.state.running
    await notes.until(lambda: short.id in running and running[short.id].job_run.note, "a note")
    stopping = asyncio.create_task(worker.stop(grace=1.0))
    await asyncio.sleep(0)
    (tmp_path / "go").touch()
    await stopping
    assert not lives(pid)
    rows = [await app.jobs.get(endless), await app.jobs.get(short)]
    assert [(row.state, row.attempt, row.lost) for row in rows] == [(State.READY, 0, 0), (State.SUCCEEDED, 1, 0)]


SCRIPT = """
    import asyncio, sys
    from pathlib import Path
    from treadle import App, Worker

    app = App("memory://")

    @app.task(kind="process")
    def square(n: int) -> int:
        return n * n

    @app.task(kind="process")
    def spins(marker: str) -> None:
        import os
        Path(marker).write_text(str(os.getpid()))
        while True:
            pass

    print(__name__, flush=True)

    async def main(marker: str) -> None:
        async with app, Worker(app):
            print(await (await square.enqueue(12)).result(30), flush=True)
            if marker:
                await (await spins.enqueue(marker)).result()

    if __name__ == "__main__":
        asyncio.run(main(sys.argv[1] if sys.argv[1:] else ""))
"""


def test_a_script_runs_its_own_functions(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(dedent(SCRIPT))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["__main__", "__mp_main__", "144"]


@needs_proc
async def test_children_end_with_their_worker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(dedent(SCRIPT))
    parent = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(script), str(tmp_path / "pid")], stdout=subprocess.DEVNULL
    )
    pid = int(await appears(tmp_path / "pid"))
    parent.kill()
    await gone(pid)
    parent.wait()
