"""`treadle up` with the queue of modules: the queue, its blobs and a runner, with one command."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.contrib.wasi.modules import module
from tests.server.fleet_kit import CLEAN, command
from treadle import App


@pytest.mark.slow
async def test_a_queue_of_modules_with_its_runner(tmp_path: Path) -> None:
    (tmp_path / "echo.wasm").write_bytes(module("echo"))
    (tmp_path / "in.txt").write_bytes(b"there and back")
    words = ("up", "--protocol", "queuey", "--no-discovery", "--host", "127.0.0.1", "--port", "0")
    async with command(tmp_path, *words) as up:
        url = await up.url()
        await up.says("runner")
        run = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "treadle",
            "wasi",
            "run",
            "--server",
            url,
            "echo.wasm",
            "in.txt",
            "out.bin",
            cwd=tmp_path,
            env=CLEAN,
        )
        assert await asyncio.wait_for(run.wait(), 60) == 0
        assert (tmp_path / "out.bin").read_bytes() == b"there and back"
        assert await up.stop() == 0


@pytest.mark.slow
async def test_up_serves_both_protocols_with_their_workers(tmp_path: Path) -> None:
    words = (
        "up",
        "--protocol",
        "queuey",
        "--protocol",
        "delayed",
        "--no-discovery",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    )
    async with command(tmp_path, *words) as up:
        await up.url()
        await up.says("runner")
        assert "a worker with 1 slot for delayed" in up.said
        assert await up.stop() == 0


APP = """
import logging

from treadle import App

app = App("sqlite:///treadle.db")
logging.getLogger("shop").setLevel(logging.INFO)

@app.task(name="sell")
def sell() -> None:
    logging.getLogger("shop").info("sold")
"""


async def test_the_worker_of_up_obeys_the_options_of_logs_and_metrics(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    words = ("up", "shop:app", "--no-discovery", "--port", "0", "--capture-logs", "info", "--no-metrics")
    async with command(tmp_path, *words) as up:
        await up.url()
        app = App(f"sqlite:///{tmp_path}/treadle.db")

        @app.task(name="sell")
        def sell() -> None: ...

        async with app:
            job = await sell.enqueue()
            await job.ended(60)
            assert [line["text"] for line in await app.jobs.stream(job, "log")] == ["sold"]
            assert await up.stop() == 0
            assert await app.metrics.totals("task") == {}
