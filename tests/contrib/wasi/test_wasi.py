"""Modules in the sandbox, the runner that runs those of a queue, and their commands."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wasmtime import wat2wasm

from tests.contrib.wasi.modules import module
from tests.served import memory_url
from tests.waiting import until
from treadle.blobs import DirectoryBlobs
from treadle.cli.root import run as treadle
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.blobs import blob_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.contrib.wasi import Bounds, ModuleReport, run_module
from treadle.contrib.wasi.client import Client, QueueJob
from treadle.contrib.wasi.runner import Runner, _keep
from treadle.testing import HandClock
from treadle_testkit.shows import shows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="bounds are kept by the system's own limits")


async def run(name: str, folder: Path, content: bytes = b"", **bounds: Any) -> tuple[ModuleReport, bytes]:
    (folder / "m.wasm").write_bytes(module(name))
    (folder / "in").write_bytes(content)
    report = await run_module(folder / "m.wasm", folder / "in", folder, Bounds(**{"wall": 20.0, **bounds}))
    return report, (folder / "stdout").read_bytes()


@pytest.mark.slow
@shows("the input and the output of a module pass unchanged, up to 100 MB")
@pytest.mark.parametrize("size", [0, 1, 3_000_000, 100_000_000])
async def test_bytes_pass_unharmed(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    report, out = await run("echo", tmp_path, content)
    assert report.ok
    assert out == content


@shows("the exit code and the standard error of a module are kept")
async def test_an_exit_code_and_the_standard_error_are_kept(tmp_path: Path) -> None:
    report, _ = await run("fails", tmp_path)
    assert (report.ok, report.exit_code) == (False, 3)
    assert (tmp_path / "stderr").read_bytes() == b"bad\n"


@shows("a module that exceeds its time limit is stopped")
async def test_an_endless_loop_is_stopped(tmp_path: Path) -> None:
    assert (await run("endless", tmp_path, wall=0.5))[0] == ModuleReport(timed_out=True)


@shows("a module that exceeds its memory limit is stopped")
async def test_a_memory_bomb_is_stopped(tmp_path: Path) -> None:
    report, _ = await run("bomb", tmp_path, memory=32 * 2**20)
    assert report.trap is not None
    assert "unreachable" in report.trap


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system counts what is mapped on Linux only")
async def test_a_module_that_bursts_its_compiler_is_stopped(tmp_path: Path) -> None:
    """20,000 functions that do nothing, with 32 MiB for compiling them; otherwise it takes more than 100 MiB."""
    (tmp_path / "m.wasm").write_bytes(bytes(wat2wasm(f'(module {"(func)" * 20_000} (func (export "_start")))')))
    (tmp_path / "in").write_bytes(b"")
    report = await run_module(tmp_path / "m.wasm", tmp_path / "in", tmp_path, Bounds(compiler=32 * 2**20))
    assert report.trap is not None
    assert "out of memory" in report.trap
    assert (await run("echo", tmp_path, compiler=32 * 2**20))[0].ok


@pytest.mark.slow
@shows("a module that exceeds its output limit is stopped")
async def test_a_flood_of_output_is_stopped(tmp_path: Path) -> None:
    report, out = await run("flood", tmp_path, wall=2.0, output=3_000_000)
    assert not report.ok
    assert len(out) <= 3_000_000


@pytest.mark.parametrize("content", [b"no module", module("no_start")], ids=["junk", "no start"])
async def test_a_file_that_is_no_module_is_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.wasm").write_bytes(content)
    (tmp_path / "in").write_bytes(b"")
    report = await run_module(tmp_path / "m.wasm", tmp_path / "in", tmp_path, Bounds())
    assert report.trap


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path / "blobs")


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def url(blobs: DirectoryBlobs, clock: HandClock) -> str:
    return memory_url(clock, protocols=[queue_routes(Rules()), blob_routes(blobs)])


@asynccontextmanager
async def running(url: str, bounds: Bounds | None = None, **options: Any) -> AsyncIterator[Runner]:
    async with Client(url) as client:
        runner = Runner(client, bounds or Bounds(wall=20.0), **options)
        task = asyncio.create_task(runner.run())
        try:
            yield runner
            runner.stop()
            await asyncio.wait_for(task, 30)
        finally:
            task.cancel()
            await asyncio.wait([task])


async def ended(client: Client, id: str, at: Callable[[QueueJob], bool] | None = None) -> QueueJob:
    found: list[QueueJob] = []

    async def seen() -> bool:
        found.append(await client.get(id))
        return at(found[-1]) if at is not None else found[-1].completed_at is not None

    await until(seen, "the state of a job at the server")
    return found[-1]


async def send(client: Client, folder: Path, name: str, content: bytes | None = None) -> str:
    (folder / name).write_bytes(module(name))
    given = None
    if content is not None:
        (folder / "input").write_bytes(content)
        given = await client.put(folder / "input")
    return (await client.create(await client.put(folder / name), given)).job_id


async def fetched(client: Client, job: QueueJob, folder: Path) -> bytes:
    assert job.output_addr is not None
    await client.fetch(job.output_addr, folder / "fetched")
    return (folder / "fetched").read_bytes()


@shows("a runner fetches, runs and stores, and it reports success or failure")
async def test_the_runner_completes_and_reports(url: str, tmp_path: Path) -> None:
    content = os.urandom(100_000)
    async with Client(url, patient=False) as client, running(url, slots=2):
        good, bad = await send(client, tmp_path, "echo", content), await send(client, tmp_path, "fails")
        job = await ended(client, good)
        assert (job.status, await fetched(client, job, tmp_path)) == ("completed", content)
        job = await ended(client, bad)
        report = json.loads(await fetched(client, job, tmp_path))
        assert (job.status, report["exit_code"], report["trap"], report["timed_out"]) == ("failed", 3, None, False)
        await client.fetch(report["stderr_addr"], tmp_path / "said")
        assert (tmp_path / "said").read_bytes() == b"bad\n"


@shows("a missing or corrupt blob fails its job, and the runner continues")
async def test_a_missing_or_damaged_blob_fails_the_job_and_not_the_runner(
    url: str, tmp_path: Path, blobs: DirectoryBlobs
) -> None:
    async with Client(url, patient=False) as client:
        missing = (await client.create("0" * 64, None)).job_id
        spoiled = await send(client, tmp_path, "echo", b"input")
        given = (await client.get(spoiled)).input_addr
        blobs.path(given or "").write_bytes(b"inqut")
        good = await send(client, tmp_path, "echo")
        async with running(url):
            for id in (missing, spoiled):
                job = await ended(client, id)
                assert job.status == "failed"
                assert json.loads(await fetched(client, job, tmp_path))["error"]
            assert (await ended(client, good)).status == "completed"


@pytest.mark.parametrize("bounds", [Bounds(module=10), Bounds(input=3)], ids=["module", "input"])
async def test_a_module_or_an_input_beyond_its_bound_fails_the_job(url: str, tmp_path: Path, bounds: Bounds) -> None:
    async with running(url, bounds), Client(url) as client:
        job = await ended(client, await send(client, tmp_path, "echo", b"hello"))
        assert job.status == "failed"
        most = min(bounds.module, bounds.input)
        assert f"the limit is {most}" in json.loads(await fetched(client, job, tmp_path))["error"]


@pytest.mark.slow
async def test_an_output_that_the_store_refuses_fails_the_job_and_not_the_runner(
    clock: HandClock, tmp_path: Path
) -> None:
    small = DirectoryBlobs(tmp_path / "small", limit=4_000)
    url = memory_url(clock, protocols=[queue_routes(Rules()), blob_routes(small)])
    async with running(url, Bounds(wall=20.0)), Client(url) as client:
        for name, expected in (("too_much", "failed"), ("fails", "failed"), ("echo", "completed")):
            job = await ended(client, await send(client, tmp_path, name, b"hello"))
            assert job.status == expected
            if name == "too_much":
                report = json.loads(await fetched(client, job, tmp_path))
                assert "the store refused its output: 413" in report["error"]


def test_the_cache_of_modules_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is limited in number and in bytes. A running job has its own link to its module."""
    monkeypatch.setattr("treadle.contrib.wasi.runner.CACHE", 3)
    monkeypatch.setattr("treadle.contrib.wasi.runner.CACHE_SIZE", 250)
    cache = tmp_path / "cache"
    cache.mkdir()
    for number, size in enumerate((10, 10, 10, 10, 100, 200)):
        mine = tmp_path / f"job{number}"
        mine.write_bytes(b"x" * size)
        os.utime(mine, (number, number))
        _keep(mine, cache / f"m{number}")
        kept = sorted(each.name for each in cache.iterdir())
        assert len(kept) <= 3
        assert sum(each.stat().st_size for each in cache.iterdir()) <= 250
    assert kept == ["m5"]
    assert (tmp_path / "job0").stat().st_size == 10


@shows("a runner that lost its job stops the module and drops the result")
async def test_a_run_that_lost_its_job_is_ended_and_its_result_dropped(
    url: str, tmp_path: Path, clock: HandClock
) -> None:
    async with Client(url, patient=False) as client, running(url, tickle=0.05):
        id = await send(client, tmp_path, "endless")
        await ended(client, id, lambda job: job.status == "active")
        clock.advance(301)
        other = await client.claim("1f1e1d1c-1b1a-4918-9716-151413121110", 5.0)
        assert other is not None
        good = await send(client, tmp_path, "echo")
        assert (await ended(client, good)).status == "completed"  # its slot is free again
        assert (await client.get(id)).runner_id == other.runner_id


@shows("a runner that claims its own job again stops the earlier run")
async def test_a_runner_that_claims_its_own_job_again_stops_the_earlier_run(
    url: str, tmp_path: Path, clock: HandClock
) -> None:
    bounds = Bounds(wall=600.0)
    async with Client(url, patient=False) as client, running(url, bounds, slots=2, tickle=600.0, grace=0.0):
        id = await send(client, tmp_path, "endless")
        await ended(client, id, lambda job: job.status == "active")
        clock.advance(301)
        good = await send(client, tmp_path, "echo")
        await ended(client, id, lambda job: job.status == "active" and job.run_attempts > 1)
        assert (await ended(client, good)).status == "completed"  # by the slot of the earlier run
        assert (await client.get(id)).status == "active"


@shows("a runner that is stopped releases a job that outlasts its grace period")
async def test_a_runner_that_is_stopped_releases_jobs_that_outlast_its_grace(url: str, tmp_path: Path) -> None:
    async with Client(url, patient=False) as client:
        id = await send(client, tmp_path, "endless")
        async with running(url, grace=0.0):
            await ended(client, id, lambda job: job.status == "active")
        job = await client.get(id)
        assert (job.status, job.run_attempts, job.runner_id) == ("pending", 0, None)


@pytest.mark.slow
@shows("a runner tickles its job as often as the queue requires")
async def test_a_runner_tickles_its_job_as_often_as_the_queue_requires(blobs: DirectoryBlobs, tmp_path: Path) -> None:
    url = memory_url(None, protocols=[queue_routes(Rules(abandoned_age=1.0)), blob_routes(blobs)])
    async with Client(url, patient=False) as client, running(url, tickle=60.0, grace=0.0):
        id = await send(client, tmp_path, "endless")
        first = await ended(client, id, lambda job: job.status == "active")
        later = await ended(client, id, lambda job: job.updated_at > first.updated_at + 2_000)
        assert (later.status, later.run_attempts) == ("active", 1)


async def call(*words: str, folder: Path, given: bytes = b"") -> tuple[int, bytes]:
    command = [sys.executable, "-m", "treadle", "wasi", *words]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    out, _ = await process.communicate(given)
    return process.returncode or 0, out


@pytest.mark.slow
@shows("`treadle wasi` runs and enqueues modules, stores blobs, and prints results and lists")
async def test_the_commands_run_modules_and_print_results(url: str, tmp_path: Path) -> None:
    (tmp_path / "echo.wasm").write_bytes(module("echo"))
    (tmp_path / "fails.wasm").write_bytes(module("fails"))
    (tmp_path / "in.txt").write_bytes(b"hello")
    async with running(url):
        assert await call("run", "--server", url, "echo.wasm", "in.txt", "out.bin", folder=tmp_path) == (0, b"")
        assert (tmp_path / "out.bin").read_bytes() == b"hello"
        code, out = await call("run", "--server", url, "fails.wasm", folder=tmp_path)
        assert (code, json.loads(out)["exit_code"]) == (1, 3)
        code, address = await call("put", "--server", url, "-", folder=tmp_path, given=b"piped")
        code, id = await call("enqueue", "--server", url, "echo.wasm", address.decode().strip(), folder=tmp_path)
        async with Client(url) as client:
            await ended(client, id.decode().strip())
        assert await call("result", "--server", url, id.decode().strip(), folder=tmp_path) == (0, b"piped")
        code, listed = await call("list", "--server", url, "--json", folder=tmp_path)
        assert [job["status"] for job in json.loads(listed)] == ["completed", "failed", "completed"]


@shows("`treadle wasi` reports an unreachable server in one line, with exit code 3")
def test_an_unreachable_server_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert treadle(["wasi", "list", "--server", "http://127.0.0.1:9"]) == 3
    assert capsys.readouterr().err.count("\n") == 1
