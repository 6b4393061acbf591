"""An error of the server is raised as a class that says whether waiting helps. It is never returned as a result."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.servers import valkey
from treadle import App, StorageDenied, StorageError, StorageFull, StorageUnavailable, Worker
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, State
from treadle.core.query_model import Query
from treadle.storage import connect
from treadle.storage.redis import RedisStorage
from treadle_testkit.proxy import Proxy

_names = (f"e{os.getpid()}-{n}" for n in itertools.count())

ERRORS = {
    "LOADING Redis is loading the dataset in memory": StorageUnavailable,
    "READONLY You can't write against a read only replica.": StorageUnavailable,
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": StorageUnavailable,
    "CLUSTERDOWN The cluster is down": StorageUnavailable,
    "TRYAGAIN Multiple keys request during rehashing of slot": StorageUnavailable,
    "BUSY Redis is busy running a script.": StorageUnavailable,
    "UNKILLABLE Sorry the script already executed write commands": StorageUnavailable,
    "OOM command not allowed when used memory > 'maxmemory'.": StorageFull,
    "MISCONF Errors writing to the AOF file": StorageFull,
    "NOREPLICAS Not enough good replicas to write.": StorageFull,
    "NOAUTH Authentication required.": StorageDenied,
    "WRONGPASS invalid username-password pair or user is disabled.": StorageDenied,
    "NOPERM User jobs has no permissions to run the 'evalsha' command": StorageDenied,
    "ERR something new": StorageError,
}

Call = Callable[[Any], Awaitable[object]]
VERBS: dict[str, Call] = {
    "enqueue": lambda storage: storage.enqueue([NewJob(id="a", task="t"), NewJob(id="b", task="t", key="k")]),
    "claim": lambda storage: storage.claim(Claim(worker="w#1")),
    "settle": lambda storage: storage.settle([Outcome(id="a", version=1, state=State.SUCCEEDED)]),
    "settle_claim": lambda storage: storage.settle_claim(
        [Outcome(id="a", version=1, state=State.SUCCEEDED)], Claim(worker="w#1")
    ),
    "heartbeat": lambda storage: storage.heartbeat(Presence(worker="w"), [LeaseRenewal(id="a", version=1)], 30.0),
    "get": lambda storage: storage.get(["a"]),
    "find": lambda storage: storage.find(Query(count=True)),
    "stats": lambda storage: storage.stats(),
    "set_limits": lambda storage: storage.set_limits([Limit("api", slots=1)]),
    "prune": lambda storage: storage.prune(10),
    "health": lambda storage: storage.health(),
    "read_mark": lambda storage: storage.read_mark(),
}


@pytest.mark.parametrize("shards", [1, 3])
async def test_each_verb_raises_each_error(shards: int) -> None:
    """Every error of the server, in reply to any verb."""
    port = urlsplit(valkey.url()).port
    assert port is not None
    async with Proxy("127.0.0.1", port) as proxy:
        more = f"&shards={shards}" if shards > 1 else ""
        storage = connect(f"redis://127.0.0.1:{proxy.port}/0?ns={next(_names)}{more}")
        await storage.open()
        for verb, call in VERBS.items():
            for text, kind in ERRORS.items():
                await storage.get(["x"])  # a new connection of the driver begins with commands of its own
                said = proxy.answer(f"-{text}\r\n".encode())
                with pytest.raises(StorageError) as caught:
                    await call(storage)
                assert said.done, f"{verb} asked nothing"
                assert type(caught.value) is kind, f"{verb}: {text}"
        await storage.enqueue([NewJob(id="after", task="t")])
        await storage.close()


async def test_opening_raises_each_error() -> None:
    """Also in reply to the first command of a storage."""
    port = urlsplit(valkey.url()).port
    assert port is not None
    async with Proxy("127.0.0.1", port) as proxy:
        for text, kind in (ERRORS | {"ERR max number of clients reached": StorageUnavailable}).items():
            storage = RedisStorage(f"redis://127.0.0.1:{proxy.port}/0", ns=next(_names))
            proxy.answer(f"-{text}\r\n".encode(), b"schema")
            with pytest.raises(StorageError) as caught:
                await storage.open()
            assert type(caught.value) is kind, text
            await storage.close()


async def test_wrong_credentials_end_a_worker_at_once() -> None:
    """They are no outage, in which a worker would retry."""
    with valkey.Valkey() as server:
        app = App(server.url.replace("redis://", "redis://me:secret@"))
        with pytest.raises(StorageDenied, match="user and password") as caught:
            await Worker(app).start()
        assert "secret" not in str(caught.value)
        await app.close()


async def test_credentials_that_are_needed_from_now_on() -> None:
    """An open connection that has lost its authentication raises StorageDenied, not a TypeError."""
    with valkey.Valkey() as server:
        storage = RedisStorage(server.url)
        await storage.open()
        await storage._pool.command("CONFIG", "SET", "requirepass", "new")
        await storage._pool.command("RESET")
        with pytest.raises(StorageDenied):
            await storage.get(["a"])
        await storage.close()
