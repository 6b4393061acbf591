"""`GET /v1/scale`: the figures that an autoscaler divides, on every storage, and from one that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from msgspec.structs import replace

from tests.kit import Spy
from tests.served import host
from tests.server.places import EVERY, a_place
from tests.server.test_api import Client, session
from tests.server.test_crossing import token
from treadle import App
from treadle.core.model import Claim, NewJob, Presence
from treadle.core.query_model import Glance, QueueGlance
from treadle.server import Settings, scale
from treadle.server.auth.tokens import ANYBODY
from treadle.server.errors import Refused
from treadle.server.longpoll import LongPoll
from treadle.server.scale import ScaleReader, figures
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.storage.memory import MemoryStorage
from treadle_testkit.shows import shows

__all__ = ["session"]

T = TypeVar("T")
TOKENS = (token("all", "read"), token("bound", "read", queues=("mail",)), token("sender", "enqueue"))


def job(id: str, queue: str = "mail", **fields: Any) -> NewJob:
    return NewJob(id=id, task="t", queue=queue, **fields)


async def furnish(storage: Storage) -> None:
    """Three queued jobs of mail, one of them running, 30 due soon and one late; two of video; one tick."""
    soon = [job(f"s{number}", delay=30.0) for number in range(30)]
    rest = [job("late", delay=3_600.0), job("v1", "video"), job("v2", "video")]
    await storage.enqueue([job("m1"), job("m2"), job("m3"), *soon, *rest])
    if not isinstance(storage, HttpStorage):  # a server accepts no job of Treadle's own queue
        await storage.enqueue([job("tick", "treadle", delay=5.0)])
    await storage.claim(Claim(worker="w#1", queues=(("mail", 1),), tasks={"t": (None, None)}))
    for worker in (
        Presence(worker="w", queues=("mail",), slots=4),
        Presence(worker="x", queues=("video", "mail"), slots=8),
        Presence(worker="old", queues=("mail",), slots=4, draining="it is 3 h old"),
    ):
        await storage.heartbeat(worker, [], 30.0)


@pytest.mark.parametrize("place", EVERY)
@shows("an autoscaler reads the load of some queues: jobs that wait, run, or are due within a minute")
async def test_the_load_is_what_waits_runs_and_is_due_soon(
    place: str, tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    with a_place(place, tmp_path) as storage:
        app = App(storage=storage)
        call = Client(host().add(app, Settings(tokens=TOKENS)), session)
        host().run(furnish(storage))

        async def read(path: str, name: str = "all") -> dict[str, Any]:
            status, found = await call("GET", path, token=name)
            assert status == 200, found
            return dict(found)

        mail = await read("/v1/scale?queue=mail")
        assert (mail["load"], mail["queued"], mail["running"], mail["due_soon"]) == (33, 2, 1, 30)
        assert (mail["workers"], mail["slots"], mail["capped"]) == (2, 12, False)
        assert (await read("/v1/scale?queue=mail&queue=video"))["load"] == 35
        assert (await read("/v1/scale"))["load"] == 35
        bound = await read("/v1/scale", "bound")
        assert (bound["load"], bound["workers"]) == (33, 2)
        new = await read("/v1/scale?queue=new")
        assert (new["load"], new["oldest"], new["workers"], new["slots"]) == (0, 0, 0, 0)
        for path, name, status in (
            ("/v1/scale?queue=video", "bound", 403),
            ("/v1/scale?queue=mail&queue=video", "bound", 403),
            ("/v1/scale", "sender", 403),
            ("/v1/scale?" + "queue=x&" * 101, "all", 422),
        ):
            assert (await call("GET", path, token=name))[0] == status, path
        host().run(app.close())


class Slow(Spy):
    """A storage whose glances wait for `go`."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.go = asyncio.Event()
        self.go.set()

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        if verb == "glance":
            await self.go.wait()
        return await super().around(verb, call)


@shows("an autoscaler gets the last figures, with their age, while the storage does not answer")
async def test_a_slow_storage_does_not_delay_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "WAIT", 0.0)
    storage = Slow(MemoryStorage())
    app = App(storage=storage)
    reader = ScaleReader(app._core, LongPoll(lambda: storage))
    await storage.enqueue([job("m1")])
    with pytest.raises(Refused, match="not answered yet"):  # the first reading has only begun
        await reader.scale(ANYBODY, ("mail",))
    assert reader._reading is not None
    await reader._reading
    assert (await reader.scale(ANYBODY, ("mail",))).load == 1
    assert storage.calls["glance"] == 1  # and not again within two seconds
    storage.go.clear()
    await storage.enqueue([job("m2")])
    reader._seen = reader._seen and replace(reader._seen, at=reader._seen.at - 90.0)
    for _ in range(3):
        found = await reader.scale(ANYBODY, ("mail",))
        assert (found.load, round(found.age)) == (1, 90)
    storage.away["glance"] = 1
    storage.go.set()
    await reader._reading  # fails
    assert reader._seen is not None
    assert figures(reader._seen.glance, ("mail",), reader._seen.due).load == 1
    await renewed(reader)
    assert (await reader.scale(ANYBODY, ("mail",))).load == 2
    monkeypatch.setattr(scale, "STALE", 0.0)
    with pytest.raises(Refused, match="s old"):
        await reader.scale(ANYBODY, ("mail",))
    await reader._reading
    await app.close()


async def renewed(reader: ScaleReader) -> None:
    """Forget the last figures' freshness, and wait for the reading under way or for a new one."""
    assert reader._seen is not None
    reader._seen = replace(reader._seen, every=0.0)
    await reader.scale(ANYBODY, ("mail",))
    assert reader._reading is not None
    await reader._reading


async def test_a_reading_ends_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "WAIT", 0.0)
    storage = Slow(MemoryStorage())
    storage.go.clear()
    waiting = LongPoll(lambda: storage)
    reader = ScaleReader(App(storage=storage)._core, waiting)
    with pytest.raises(Refused):
        await reader.scale(ANYBODY, ())
    waiting.stop()
    assert reader._reading is not None
    await reader._reading


def test_jobs_that_more_workers_do_not_help_are_no_load() -> None:
    glance = Glance(
        at=0.0,
        queues=(
            QueueGlance(name="mail", queued=10_000, queued_capped=True, oldest=7.5, running=1, blocked=5, waiting=3),
            QueueGlance(name="treadle", queued=4, running=4, oldest=100.0),
        ),
        workers=(Presence(worker="tender", queues=("treadle",), slots=4),),
    )
    found = figures(glance, (), {})
    assert (found.load, found.blocked, found.oldest, found.capped) == (10_001, 5, 7.5, True)
    assert (found.workers, found.slots) == (0, 0)
    assert figures(glance, ("treadle",), {}).load == 8


async def test_jobs_of_a_paused_queue_are_no_load() -> None:
    """Without a worker nothing marks its rows as blocked."""
    app = App("memory://")

    @app.task(queue="mail")
    async def send() -> None: ...

    async with app:
        await app.enqueue([send.job() for _ in range(3)])
        assert figures(await app.storage.glance(), ("mail",), {"mail": (2, False)}).load == 5
        await app.queues.pause("mail")
        found = figures(await app.storage.glance(), ("mail",), {"mail": (2, False)})
    assert (found.load, found.queued, found.blocked) == (0, 0, 3)
