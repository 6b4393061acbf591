"""`treadle worker` as a process: its output, how it stops, and what happens to its jobs and children."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tools import Command, alive, gone
from treadle import App, Record, flow
from treadle.core.model import State
from treadle_testkit.shows import shows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the supervisor needs signals and process groups")

TASKS = """
import asyncio
import logging
import os
import sys
from pathlib import Path

from treadle import App

app = App("sqlite:///jobs.db")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task
async def until(name: str) -> str:
    say("job runs")
    while not Path(name).exists():
        await asyncio.sleep(0.02)
    return "finished"


@app.task(queue="slow")
def stuck() -> None:
    say("job runs")
    import threading

    threading.Event().wait()


@app.task
async def tell() -> int:
    logging.getLogger("shop").warning("I was here")
    return os.getpid()


@app.task
async def loop() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


@app.task
async def wrong() -> None:
    raise ValueError("no good")


if __name__ == "__main__":
    app.sync.enqueue(add.options(id="from-main").job(1, 2))
    app.sync.close()
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(TASKS)
    return tmp_path


def typed(here: Path, *args: str) -> str:
    """Run a command to its end. Return what it printed."""
    with Command(*args, cwd=here) as command:
        assert command.ended() == 0, command.stderr
        return command.stdout


def row_of(here: Path, id: str) -> Record:
    async def look() -> Record:
        async with App(f"sqlite:///{here}/jobs.db") as app:
            return await app.jobs.get(id)

    return asyncio.run(look())


def workers(here: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(typed(here, "queues", "workers", "--json", "--app", "jobs:app"))
    return found


@pytest.mark.slow
def test_a_worker_stops_although_nothing_reads_its_output(here: Path) -> None:
    command = [sys.executable, "-m", "treadle", "worker", "jobs:app"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as worker:
        assert worker.stderr is not None
        try:
            while b"claiming" not in worker.stderr.readline():
                assert worker.poll() is None
            worker.stderr.close()
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()


def test_a_worker_prints_its_storage_queues_and_tasks_and_exits_with_0(here: Path) -> None:
    with Command("worker", "jobs:app", "--concurrency", "7", "--queues", "default=3,slow", cwd=here) as worker:
        worker.wait_for("claiming")
        assert f"jobs live in sqlite:///{here / 'jobs.db'}" in worker.stderr
        assert "default (weight 3), slow" in worker.stderr
        assert "jobs.add" in worker.stderr
        assert "7 in each of 1 process" in worker.stderr
        assert typed(here, "enqueue", "--app", "jobs:app", "add", "2", "40", "--wait", "30") == "42\n"
        [known] = workers(here)
        assert (known["slots"], known["queues"]) == (7, ["default", "slow"])
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert "Traceback" not in worker.stderr
    assert worker.stdout == ""
    assert workers(here) == []


def test_a_failed_job_is_reported_and_exits_with_1(here: Path) -> None:
    with Command("worker", "jobs:app", cwd=here) as worker:
        worker.wait_for("claiming")
        options = ("--app", "jobs:app", "--wait", "30", "--expires", "0.5")
        with Command("enqueue", *options, "wrong", cwd=here) as command:
            assert command.ended() == 1
            assert "no good" in command.stderr
        assert "ValueError: no good  [job=" in worker.wait_for("jobs.wrong")


def test_ctrl_c_lets_running_jobs_end(here: Path) -> None:
    with Command("worker", "jobs:app", "--processes", "2", "--grace", "30", cwd=here) as worker:
        worker.wait_for("claiming")
        typed(here, "enqueue", "--app", "jobs:app", "until", "go", "--id", "one")
        worker.wait_for("job runs")
        worker.ctrl_c()
        worker.wait_for("stopping")
        (here / "go").touch()
        assert worker.ended() == 0
    assert row_of(here, "one").state is State.SUCCEEDED


@pytest.mark.slow
def test_a_job_that_outlasts_the_grace_is_released_uncounted(here: Path) -> None:
    with Command("worker", "jobs:app", "--grace", "0.2", cwd=here) as worker:
        worker.wait_for("claiming")
        typed(here, "enqueue", "--app", "jobs:app", "until", "never", "--id", "one")
        worker.wait_for("job runs")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    row = row_of(here, "one")
    assert (row.state, row.attempt, row.lost) == (State.READY, 0, 0)


@pytest.mark.slow
def test_a_second_signal_stops_at_once(here: Path) -> None:
    with Command("worker", "jobs:app", "--grace", "300", cwd=here) as worker:
        worker.wait_for("claiming")
        typed(here, "enqueue", "--app", "jobs:app", "until", "never", "--id", "one")
        worker.wait_for("job runs")
        worker.ctrl_c()
        worker.wait_for("stopping")
        worker.ctrl_c()
        assert worker.ended() == 0
    row = row_of(here, "one")
    assert (row.state, row.attempt) == (State.READY, 0)


@pytest.mark.slow
def test_a_function_stuck_in_a_thread_does_not_hold_the_process(here: Path) -> None:
    with Command("worker", "jobs:app", "--grace", "0.1", cwd=here) as worker:
        worker.wait_for("claiming")
        typed(here, "enqueue", "--app", "jobs:app", "stuck")
        worker.wait_for("job runs")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        assert gone(worker.process.pid)


@pytest.mark.slow
def test_a_dead_worker_is_started_again(here: Path) -> None:
    with Command("worker", "jobs:app", "--processes", "2", "--name", "w", cwd=here) as worker:
        worker.wait_for("claiming")
        pid = int(typed(here, "enqueue", "--app", "jobs:app", "tell", "--wait", "30"))
        assert pid in alive(worker.process.pid)
        os.kill(pid, signal.SIGKILL)
        worker.wait_for("was killed by SIGKILL; restarting it")
        assert int(typed(here, "enqueue", "--app", "jobs:app", "tell", "--wait", "30")) != pid
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert gone(worker.process.pid)


def test_without_their_supervisor_the_workers_stop(here: Path) -> None:
    with Command("worker", "jobs:app", "--processes", "2", cwd=here) as worker:
        worker.wait_for("claiming")
        typed(here, "enqueue", "--app", "jobs:app", "tell", "--wait", "30")
        worker.process.kill()
        assert gone(worker.process.pid)


@pytest.mark.slow
@shows("a JSON log line of a worker carries the job, its task and its attempt")
def test_log_lines_carry_the_job(here: Path) -> None:
    with Command("worker", "jobs.py:app", "--name", "w", "--log-json", cwd=here) as worker:
        worker.wait_for("claiming")
        typed(here, "enqueue", "--app", "jobs:app", "tell", "--id", "one")
        line = json.loads(worker.wait_for("I was here"))
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert (line["job"], line["task"], line["attempt"], line["logger"]) == ("one", "jobs.tell", 1, "shop")
    assert line["worker"].startswith("w-1:")


@pytest.mark.slow
def test_jobs_that_the_file_stores_as_a_program_are_run(here: Path) -> None:
    subprocess.run([sys.executable, "jobs.py"], cwd=here, check=True)
    assert row_of(here, "from-main").job.task == "add"
    with Command("worker", "jobs:app", cwd=here) as worker:
        worker.wait_for("claiming")
        assert typed(here, "enqueue", "--app", "jobs:app", "add", "1", "1", "--wait", "30") == "2\n"
        assert row_of(here, "from-main").state is State.SUCCEEDED
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


@pytest.mark.slow
def test_jobs_of_tasks_it_does_not_have_are_named(here: Path) -> None:
    typed(here, "enqueue", "--app", "jobs:app", "add", "1", "1")
    typed(here, "enqueue", "--url", "sqlite:///jobs.db", "nobody.knows")
    app = App(f"sqlite:///{here / 'jobs.db'}")
    flow(app.stub("nobody.knows").job(n) for n in range(2)).enqueue_sync()
    app.sync.close()
    with Command("worker", "jobs:app", cwd=here) as worker:
        worker.wait_for("3 jobs of task 'nobody.knows' wait for another worker")
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert any("claiming jobs" in line for line in worker.said)
    assert not any("treadle.flow" in line for line in worker.said), "any worker ends a flow"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["nowhere:app"], 2, "no module 'nowhere'"),
        (["jobs:nothing"], 2, "try jobs:app"),
        (["jobs:app", "--tasks", "jobs.ad"], 2, "no task 'jobs.ad'"),
        (["empty:app"], 2, "has no tasks"),
        (["broken:app"], 1, "ZeroDivisionError"),
        (["away:app"], 3, "no/such/folder"),
    ],
)
def test_arguments_that_cannot_work_are_reported_once(here: Path, args: list[str], code: int, said: str) -> None:
    (here / "empty.py").write_text("from treadle import App\napp = App('memory://')\n")
    (here / "broken.py").write_text("1 / 0\n")
    (here / "away.py").write_text(TASKS.replace("sqlite:///jobs.db", "sqlite:///no/such/folder/jobs.db"))
    with Command("worker", *args, "--processes", "3", cwd=here) as worker:
        assert worker.ended() == code, worker.stderr
    assert said in worker.stderr
    assert worker.stderr.count("treadle: ") == 1
    assert ("Traceback" in worker.stderr) is (code == 1)


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "found"), [((), "uvloop"), (("--loop", "asyncio"), "asyncio")])
def test_jobs_run_on_the_loop_of_the_option(here: Path, asked: tuple[str, ...], found: str) -> None:
    with Command("worker", "jobs:app", *asked, cwd=here) as worker:
        worker.wait_for("claiming")
        assert typed(here, "enqueue", "--app", "jobs:app", "loop", "--wait", "30") == f'"{found}"\n'


def test_a_loop_that_is_not_installed_is_an_error(here: Path) -> None:
    (here / "sitecustomize.py").write_text("import sys\nsys.modules['uvloop'] = None\n")
    with Command("worker", "jobs:app", "--loop", "uvloop", cwd=here, PYTHONPATH=str(here)) as worker:
        assert worker.ended() == 2
        assert "pip install 'uvloop>=0.21'" in worker.stderr
