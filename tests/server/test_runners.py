"""The runners of examples/runners, each a process in its own language, against a real server of Treadle."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.served import memory_url
from treadle import App, Retry
from treadle.errors import JobFailed

RUNNERS = Path(__file__).parents[2] / "examples/runners"

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform == "win32", reason="the runners are stopped by SIGTERM, and one needs sh"),
]


async def start(url: str, *command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *command, env={**os.environ, "TREADLE_SERVER": url}, stdout=asyncio.subprocess.PIPE
    )


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
async def test_a_runner_of_plain_curl() -> None:
    url = memory_url(None)
    async with App(url) as app:
        shout = app.stub("shout")
        jobs = [await shout.enqueue(text) for text in ("one", "two")]
        wrong = await shout.enqueue(1, 2)
        runner = await start(url, "sh", str(RUNNERS / "runner.sh"), "3")
        assert [await job.result(30) for job in jobs] == ["ONE", "TWO"]
        with pytest.raises(JobFailed, match="expected one plain text"):
            await wrong.result(30)
        await asyncio.wait_for(runner.communicate(), 30)
        assert runner.returncode == 0


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed here")
async def test_a_runner_of_node() -> None:
    url = memory_url(None)
    async with App(url) as app:
        runner = await start(url, "node", str(RUNNERS / "runner.mjs"))
        try:
            shouts = [await app.stub("text.shout").enqueue(f"a{n}") for n in range(20)]
            total = await app.stub("math.sum").enqueue(1, 2, 3)
            bad = await app.stub("text.fail", retry=Retry(attempts=2, base=0.01)).enqueue()
            assert [await job.result(30) for job in shouts] == [f"A{n}" for n in range(20)]
            assert await total.result(30) == 6
            [listed] = (await app.queues.stats()).workers
            assert (listed.queues, "text.shout" in listed.tasks) == (("default",), True)  # `explain` reads both
            assert await (await app.stub("text.shoutAll").enqueue("a", "b", "c")).result(30) == "A B C"
            assert await (await app.stub("text.shoutLater").enqueue("d")).result(30) == "D"
            with pytest.raises(JobFailed, match="no luck"):
                await bad.result(30)
            assert (await app.jobs.get(bad)).attempt == 2
        finally:
            runner.send_signal(signal.SIGTERM)
            await asyncio.wait_for(runner.communicate(), 30)
        assert runner.returncode == 0
        assert (await app.queues.stats()).workers == ()
