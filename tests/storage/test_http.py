"""The storage over HTTP: the laws of the contract, against a server that keeps its jobs in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import pytest

from tests.served import host, memory_url
from tests.waiting import turn
from treadle import App
from treadle.core.model import NewJob, Record
from treadle.errors import Locked, StorageUnavailable
from treadle.server import Settings
from treadle.storage.contract import Storage
from treadle.storage.http import HttpStorage
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock
from treadle_testkit.conformance import *  # noqa: F403
from treadle_testkit.conformance.property import agrees_with_memory
from treadle_testkit.conformance.run import MakeStorage
from treadle_testkit.shows import shows


@pytest.fixture
def make_storage() -> MakeStorage:
    made: list[str] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            made.append(memory_url(clock, elsewhere=True))
        storage = HttpStorage(made[-1])
        await storage.open()
        return storage

    return make


@pytest.mark.slow
@shows("the HTTP storage answers random calls as the memory storage does")
def test_random_calls_agree_with_memory() -> None:
    async def make(clock: HandClock) -> Storage:
        storage = HttpStorage(memory_url(clock, elsewhere=True))
        await storage.open()
        return storage

    agrees_with_memory(make, examples=10)  # the server uses the memory storage, so this tests the messages only


class Held(MemoryStorage):
    """A storage in which another transaction holds every key."""

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        raise Locked("there", "the key 'k'", [job.id for job in jobs], 4711, "shop", 40.5, "idle in transaction")


async def test_a_held_lock_arrives_with_its_fields() -> None:
    """Older clients do not know the word: the status makes them repeat the call."""
    url = host().add(App(storage=Held()), Settings())
    storage = HttpStorage(url)
    await storage.open()
    with pytest.raises(Locked) as caught:
        await storage.enqueue([NewJob(id="a", task="t", key="k")])
    await storage.close()
    error = caught.value
    assert (error.where, error.what, error.jobs) == ("there", "the key 'k'", ("a",))
    assert (error.pid, error.application, error.age, error.state) == (4711, "shop", 40.5, "idle in transaction")
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/jobs", json={"task": "t"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        assert (await response.json())["error"] == "locked"


@pytest.mark.parametrize("turns", range(21))
async def test_a_call_that_reads_its_answer_ends_when_the_storage_is_closed(turns: int) -> None:
    """The head of the answer arrives in these turns of the loop, its body never. Every call ends, whichever line it
    waits at."""
    half = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body, length in ((b"{}", 2), (b"{", 2)):
            await reader.readuntil(b"\r\n\r\n{}")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (length, body))
        half.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        storage = HttpStorage(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await storage.open()
        call = asyncio.create_task(storage.stats())
        await half.wait()
        await turn(turns)
        await storage.close()
        with pytest.raises(StorageUnavailable, match="closed during this call"):
            async with asyncio.timeout(30):
                await call
