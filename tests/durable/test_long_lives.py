"""Jobs that live long: restarts, workers lost since the last step, and warnings before a limit is reached."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.durable.kit import AGAIN
from tests.kit import lose, work
from treadle import App, BadArgument, Sizes, State, current
from treadle.core.model import LOST, OURS, ROUND, Outcome
from treadle.policy.guilt import guilt_of
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows


def add(n: int) -> int:
    return 10 * n


@shows("`restart` begins a durable function anew in the same job, with new arguments and without its steps")
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_restarted_function_has_new_arguments_and_no_steps(app: App, kind: str) -> None:
    keys: list[str] = []

    @app.task(name="async", retry=AGAIN)
    async def in_loop(n: int, total: int = 0) -> int:
        here = current()
        total += await here.step("add", add, n)
        keys.append(here.step_key("add"))
        if n < 4:
            await here.restart(n + 1, total=total)
        return total

    @app.task(name="thread", retry=AGAIN)
    def in_thread(n: int, total: int = 0) -> int:
        here = current()
        total += here.sync.step("add", add, n)
        keys.append(here.step_key("add"))
        if n < 4:
            here.sync.restart(n + 1, total=total)
        return total

    async with work(app):
        job = await (in_loop if kind == "async" else in_thread).enqueue(1)
        assert await job.result(timeout=20) == 100
    row = await app.jobs.get(job)
    assert (row.attempt, row.lost, row.job.payload) == (1, 0, "[1]")
    assert [name for name, _ in row.checkpoints if not name.startswith(OURS)] == ["add"]
    assert dict(row.checkpoints)[ROUND] == '{"number":3}'
    assert keys == [f"{job.id}{'' if n == 0 else f'@{n}'}:add" for n in range(4)]


@shows("a restarted function does not receive the signals of earlier rounds again")
async def test_a_round_receives_the_next_signal(app: App) -> None:
    got: list[Any] = []

    @app.task(retry=AGAIN)
    async def listen(n: int) -> None:
        got.append(await current().wait_for("go"))
        if n < 3:
            await current().restart(n + 1)

    job = await listen.enqueue(1)
    for n in range(3):
        await drain(app)
        await app.jobs.signal(job, "go", n)
    await drain(app)
    assert got == [0, 1, 2]
    assert (await app.jobs.get(job)).state is State.SUCCEEDED


async def test_arguments_that_do_not_fit_restart_nothing(app: App) -> None:
    @app.task(retry=AGAIN)
    async def once(n: int) -> str:
        here = current()
        await here.step("add", add, n)
        with pytest.raises(BadArgument):
            await here.restart("many")
        return await here.step("end", str, n)

    async with work(app):
        assert await (await once.enqueue(7)).result(timeout=20) == "7"


@shows("workers lost before the last stored step do not count against a durable job, those lost at one step do")
@pytest.mark.parametrize("further", [0, 1])
async def test_a_stored_step_clears_the_lost_workers(app: App, clock: HandClock, further: int) -> None:
    calls = 0

    async def two() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            clock.advance(31)  # the lease of this run expires, as if its worker had died alone
            await lose(app.storage, clock, job.id, times=1 + further, alone=True)
        return "two"

    @app.task(max_lost=3, retry=AGAIN)
    async def long() -> str:
        await current().step("one", add, 1)
        return await current().step("two", two)

    job = await long.enqueue()
    await lose(app.storage, clock, job.id, times=2, alone=True)
    await drain(app)
    row = await app.jobs.get(job)
    if further:
        assert (row.state, row.reason, calls) == (State.FAILED, LOST, 1)
        assert "3 workers were lost" in (row.error or "")
    else:
        assert (row.state, row.result, row.lost, calls) == (State.SUCCEEDED, '"two"', 4, 2)
        assert guilt_of(row).alone == 0


@shows("durable code warns once when it has used 80 percent of a limit")
async def test_a_limit_that_is_near_is_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    small = App(storage=app.storage, sizes=Sizes(steps=10, step=2_000, checkpoints=6_000))

    async def text(size: int) -> str:
        return "x" * size

    @small.task(retry=AGAIN)
    async def long() -> None:
        for size in (*[10] * 7, 1_700, 1_500, 1_500):
            await current().step("s", text, size)

    async with work(small):
        await (await long.enqueue()).result(timeout=20)
    near = [record.getMessage() for record in caplog.records if "nears" in record.getMessage()]
    assert len(near) == 3
    for line, what in zip(
        near, ["result of step 's#8'", "it has 8 of at most 10 steps", "its steps have 5,"], strict=True
    ):
        assert what in line


@shows("`explain` tells how often a job was restarted, and that it nears a limit of durable code")
async def test_explain_names_the_round_and_a_near_limit(app: App) -> None:
    @app.task(retry=AGAIN)
    async def again(n: int) -> None:
        here = current()
        if n < 3:
            await here.restart(n + 1)
        await here.sleep(60)

    job = await again.enqueue(1)
    await drain(app)
    assert "begun anew 2 times, by restart() or a rerun" in await app.jobs.explain(job)
    assert "nears a limit" not in await app.jobs.explain(job)
    row = await app.jobs.get(job)
    steps = tuple((f"s{n}", "{}") for n in range(8_000))
    release = Outcome(id=row.id, version=row.version, state=State.READY, delay=60, checkpoints=steps)
    assert (await app.storage.settle([release]))[0].status == "applied"
    assert "8,001 steps of 10,000" in await app.jobs.explain(job)


KILLED = """
import asyncio, os, sys
from treadle import App, Worker, current

url, ledger, point, where = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
app = App(url)

def note(text):
    with open(ledger, "a") as file:
        file.write(text + "\\n")

def die(here, n):
    if point == here and n == where:
        os.kill(os.getpid(), 9)

def work(n):
    note(str(n))
    return n

@app.task(name="t")
async def loop(n, total):
    here = current()
    die("begin", n)
    total += await here.step("work", work, n)
    die("stored", n)
    if n == 9:
        return total
    await here.restart(n + 1, total)

async def main():
    async with Worker(app, lease=0.3, poll=0.05):
        print(await (await loop.options(id="the-job").enqueue(0, 0)).result(timeout=30))

asyncio.run(main())
"""


@pytest.mark.slow
@shows("a job that is killed around a restart is in the round before it or after it, and repeats no stored step")
@pytest.mark.skipif(sys.platform == "win32", reason="kills its worker by SIGKILL")
@pytest.mark.parametrize("point", ["begin", "stored"])
async def test_a_kill_is_before_or_after_a_restart(tmp_path: Path, point: str) -> None:
    program, ledger = tmp_path / "program.py", tmp_path / "ledger"
    program.write_text(KILLED)

    async def run(where: int) -> tuple[int, str]:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, str(program), f"sqlite:///{tmp_path / 'jobs.db'}", str(ledger), point, str(where)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        out, _ = await child.communicate()
        return child.returncode or 0, out.decode().strip()

    async with asyncio.timeout(100):
        for where in (0, 3, 4, 9):
            assert (await run(where))[0] == -signal.SIGKILL
        assert await run(-1) == (0, "45")
    assert ledger.read_text().split() == [str(n) for n in range(10)]
