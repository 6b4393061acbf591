"""`Worker.health`, and the probes of a program that runs its own worker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.error
import urllib.request

import pytest

from tests.kit import Spy
from tests.servers.process import free_port
from tests.waiting import Signal, patient
from treadle import App, Event, Probes, Retry, Worker
from treadle.storage.memory import MemoryStorage
from treadle.worker import outage
from treadle_testkit.shows import shows

RECOVERY = Retry(base=0.01, factor=1, max=0.01, jitter=0)


def probe(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


@shows("a worker in a program of the user says what it does, and whether its storage answers")
async def test_the_health_of_a_worker_follows_its_life_and_its_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = Signal().after(monkeypatch, outage.StorageOutage, "failed", "answered")
    storage = Spy(MemoryStorage())
    app = App(storage=storage)
    going, go, told = asyncio.Event(), asyncio.Event(), Signal()
    app.on("worker.stopping")(told.send)

    @app.task
    async def work() -> None:
        going.set()
        await go.wait()

    worker = Worker(app, name="w", concurrency=3, recovery=RECOVERY, poll=0.01)
    assert (worker.health().stage, worker.health().problem, worker.health().ready) == ("stopped", "stopped", False)
    await worker.start()
    assert (worker.health().stage, worker.health().ready, worker.health().slots) == ("claiming", True, 3)
    await work.enqueue()
    async with patient("the job"):
        await going.wait()
    assert (worker.health().running, worker.health().started) == (1, 1)
    storage.away["claim"] = 3
    found = await changed.until(lambda: None if worker.health().ready else worker.health(), "the outage")
    assert found.stage == "claiming"
    assert found.storage_away is not None
    assert found.problem.startswith("the storage has been unavailable for 0 s")
    await changed.until(lambda: worker.health().ready, "the end of the outage")
    stopping = asyncio.create_task(worker.stop())
    await told.until(lambda: told.sent, "the stop")
    assert (worker.health().stage, worker.health().problem) == ("stopping", "stopping")
    go.set()
    await stopping
    assert worker.health().stage == "stopped"
    await app.close()


async def test_a_failing_loop_that_jobs_do_not_need_does_not_make_a_worker_unready() -> None:
    found = outage.StorageOutage("w", RECOVERY, lambda: 0.0, lambda *_: None)
    await found.failed("fold", ConnectionError())
    assert found.away is None
    await found.failed("dispatcher 1", ConnectionError())
    assert found.away is not None
    found.answered("dispatcher 0")
    assert found.away is not None
    found.answered("dispatcher 1")
    assert found.away is None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
async def test_run_answers_probes_until_it_has_stopped() -> None:
    app, told, port = App("memory://"), Signal(), free_port()

    @app.on("worker.started")
    def started(_: Event) -> None:
        told.send()

    @app.task
    async def work() -> None: ...

    running = asyncio.create_task(Worker(app, name="w").run(Probes(str(port), systemd=False)))
    await told.until(lambda: told.sent, "the start of the worker")
    for path, text in (("livez", "alive"), ("readyz", "ready: worker w claims jobs")):
        assert await asyncio.to_thread(probe, f"http://127.0.0.1:{port}/{path}") == (200, text)
    os.kill(os.getpid(), signal.SIGTERM)
    await running
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(probe, f"http://127.0.0.1:{port}/livez")
    await app.close()
