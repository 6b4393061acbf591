"""Where the server is: a cluster whose slots move and whose nodes fail, a primary that Sentinels replace, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from tests.servers import tls, valkey
from tests.servers.cluster import Cluster, shared
from tests.servers.sentinel import MASTER, Sentinels
from tests.waiting import Signal, until
from treadle.core.model import Claim, NewJob, Outcome, State
from treadle.core.query_model import Query
from treadle.errors import BadUrl, StorageUnavailable
from treadle.storage import connect
from treadle.storage.contract import Storage
from treadle.storage.redis import RedisStorage
from treadle.storage.redis.pool import Pool

T = TypeVar("T")
_names = (f"p{os.getpid()}-{n}" for n in itertools.count())


def jobs(letter: str, count: int, **options: object) -> list[NewJob]:
    return [NewJob(id=f"{letter}{n:03}", task="t", **options) for n in range(count)]  # type: ignore[arg-type]


async def patiently(verb: Callable[[], Awaitable[T]]) -> T:
    """Again for as long as the storage says that it is away, as a worker does."""
    found: list[T] = []

    async def answered() -> bool:
        with contextlib.suppress(StorageUnavailable):
            found.append(await verb())
        return bool(found)

    await until(answered, "an answer of the storage")
    return found[0]


async def drain(storage: Storage, wanted: int) -> list[str]:
    """Claim and settle until this many jobs have ended. Return their ids, in order."""
    ended: list[str] = []
    for turn in itertools.count():
        if len(ended) >= wanted:
            return ended
        ask = Claim(worker=f"d#{turn}", queues=(("default", 9),), limit=9, lease=100)
        claimed = await patiently(lambda ask=ask: storage.claim(ask))  # type: ignore[misc]
        outs = [Outcome(id=row.id, version=row.version, state=State.SUCCEEDED) for row in claimed.records]
        settled = await patiently(lambda outs=outs: storage.settle(outs))  # type: ignore[misc]
        assert {each.status for each in settled} <= {"applied"}
        ended += [out.id for out in outs]
    raise AssertionError


# --- a cluster


@pytest.fixture
async def clustered() -> AsyncIterator[RedisStorage]:
    storage = RedisStorage(shared().url, ns=next(_names))
    await storage.open()
    yield storage
    await storage.close()


async def test_a_url_with_one_node_finds_the_cluster(clustered: RedisStorage) -> None:
    """Any node will do: each knows which node has our slot."""
    await clustered.enqueue(jobs("a", 3))
    for node in shared().nodes:
        other = connect(f"redis+cluster://127.0.0.1:1,127.0.0.1:{node.port}?ns={clustered._tag[9:-1]}")
        await other.open()
        assert len((await other.find(Query())).records) == 3
        await other.close()


async def test_a_slot_that_moved(clustered: RedisStorage) -> None:
    """The old node redirects; no caller gets an error, and hints continue."""
    cluster = shared()
    slot = cluster.slot(f"{clustered._tag}:job")
    await clustered.enqueue(jobs("a", 300))
    target = next(node for node in cluster.nodes if node is not cluster.owner(slot))
    await asyncio.to_thread(cluster.move, slot, target)
    assert [row.id for row in (await clustered.claim(Claim(worker="w#1"))).records] == ["a000"]
    watch = asyncio.create_task(clustered.watch(["queue:default"], 10))
    await asyncio.sleep(0)
    await clustered.enqueue(jobs("b", 1))
    assert await watch == {"queue:default"}
    assert await clustered.recount() == ()
    [count] = [each for each in (await clustered.stats()).counts if each.queued]
    assert count.queued == 300


async def test_while_a_slot_moves_no_call_sees_half_of_it(
    clustered: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some keys are on one node and some on the other: calls wait or raise an error, and none works on half of the
    jobs."""
    monkeypatch.setattr("treadle.storage.redis.pool.PATIENCE", 0.5)
    cluster = shared()
    slot = cluster.slot(f"{clustered._tag}:job")
    await clustered.enqueue(jobs("a", 100, key=None))
    old = cluster.owner(slot)
    new = next(node for node in cluster.nodes if node is not old)
    new.do("CLUSTER", "SETSLOT", slot, "IMPORTING", str(old.do("CLUSTER", "MYID")))
    old.do("CLUSTER", "SETSLOT", slot, "MIGRATING", str(new.do("CLUSTER", "MYID")))
    keys = sorted(old.do("CLUSTER", "GETKEYSINSLOT", slot, 100))
    assert len(keys) > 3
    for half in (keys[::2], keys[1::2]):
        call = asyncio.create_task(clustered.enqueue(jobs("b", 5)))
        old.do("MIGRATE", "127.0.0.1", new.port, "", 0, 5_000, "KEYS", *half)
        if half == keys[::2]:
            with pytest.raises(StorageUnavailable):
                await call
    for node in (new, old, *cluster.nodes):
        node.do("CLUSTER", "SETSLOT", slot, "NODE", str(new.do("CLUSTER", "MYID")))
    assert len(await call) == 5
    assert await drain(clustered, 105) == [*(f"a{n:03}" for n in range(100)), *(f"b{n:03}" for n in range(5))]
    assert old.do("CLUSTER", "GETKEYSINSLOT", slot, 100) == []


@pytest.mark.slow
async def test_a_node_that_is_killed_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls raise StorageUnavailable meanwhile. A caller that repeats them can continue, and acknowledged jobs are
    there."""
    monkeypatch.setattr("treadle.storage.redis.pool.PATIENCE", 0.2)
    with Cluster(fsync="always") as cluster:
        storage = RedisStorage(cluster.url)
        await storage.open()
        await storage.enqueue(jobs("a", 50))
        owner = cluster.owner(cluster.slot("{treadle:default}:job"))
        owner.kill()
        with pytest.raises(StorageUnavailable):
            await storage.enqueue(jobs("b", 1))
        call = asyncio.create_task(drain(storage, 50))
        await asyncio.to_thread(owner.start)
        assert await call == [f"a{n:03}" for n in range(50)]
        await storage.close()


# --- Sentinels


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with Sentinels(fsync="always") as found:
        yield found


def url_of(sentinels: Sentinels) -> str:
    return f"redis+sentinel://{sentinels.addresses}/{MASTER}?ns={next(_names)}"


@pytest.mark.slow
async def test_a_fail_over_is_found_by_itself(sentinels: Sentinels) -> None:
    """A fail-over as before maintenance: everything continues at the new primary, including hints."""
    storage = connect(url_of(sentinels))
    await storage.open()
    await storage.enqueue(jobs("a", 50))
    await asyncio.to_thread(sentinels.settled)
    await asyncio.to_thread(sentinels.fail_over)
    await patiently(lambda: storage.enqueue(jobs("b", 50)))
    assert await drain(storage, 100) == [*(f"a{n:03}" for n in range(50)), *(f"b{n:03}" for n in range(50))]
    numbers = itertools.count()

    async def heard() -> set[str]:
        watch = asyncio.create_task(storage.watch(["queue:default"], 0.5))
        await asyncio.sleep(0)
        await storage.enqueue(jobs(f"c{next(numbers)}", 1))
        return await watch

    await until(heard, "a hint")
    await storage.close()


@pytest.mark.slow
async def test_a_call_refused_by_a_replaced_primary_finds_the_new_one(
    sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `min-replicas-to-write`, a primary that was replaced refuses writes for seconds before it learns it. A call
    looks for the new one, or succeeds when a replica is back."""
    monkeypatch.setattr("treadle.storage.redis.pool.PATIENCE", 60.0)
    refused = Signal().after(monkeypatch, Pool, "_drop_idle")
    storage = connect(url_of(sentinels))
    await storage.open()
    await asyncio.to_thread(sentinels.settled)
    primary, replica = sentinels.primary, sentinels.replica
    primary.do("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        replica.do("REPLICAOF", "NO", "ONE")
        again = asyncio.create_task(refused.again("a second refusal", 2))
        sent = asyncio.create_task(storage.enqueue(jobs("a", 5)))
        await again
        replica.do("REPLICAOF", "127.0.0.1", primary.port)
        assert len(await sent) == 5
    finally:
        primary.do("CONFIG", "SET", "min-replicas-to-write", "0")
    assert len(await drain(storage, 5)) == 5
    await storage.close()
    await asyncio.to_thread(sentinels.whole)


@pytest.mark.slow
async def test_a_primary_that_is_killed(sentinels: Sentinels) -> None:
    """The rows of the replica are there, and each is settled once."""
    storage = connect(url_of(sentinels))
    await storage.open()
    await storage.enqueue(jobs("a", 50))
    await asyncio.to_thread(sentinels.settled)
    old, new = sentinels.primary, sentinels.replica
    old.kill()
    call = asyncio.create_task(drain(storage, 50))
    await asyncio.to_thread(sentinels.promoted, new)
    assert await call == [f"a{n:03}" for n in range(50)]
    await asyncio.to_thread(old.start)
    await storage.close()


async def test_an_unknown_service_is_refused_by_name(sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.storage.redis.pool.PATIENCE", 0.2)
    storage = connect(f"redis+sentinel://{sentinels.addresses}/nobody")
    with pytest.raises(StorageUnavailable, match="does not know the service 'nobody'"):
        await storage.open()
    await storage.close()


# --- TLS


async def test_a_certificate_is_checked_against_its_authority() -> None:
    """With the certificate authority named, the certificate is checked; without it, or under another name, it is
    refused."""
    async with tls.before(valkey.shared().port) as port:
        storage = connect(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tls.CA}&ns={next(_names)}")
        await storage.open()
        await storage.enqueue(jobs("a", 20))
        assert len(await drain(storage, 20)) == 20
        watch = asyncio.create_task(storage.watch(["queue:default"], 10))
        await asyncio.sleep(0)
        await storage.enqueue(jobs("b", 1))
        assert await watch == {"queue:default"}
        await storage.close()
        for url in (
            f"rediss://127.0.0.1:{port}/0",
            f"rediss://localhost.localdomain:{port}/0?ssl_ca_certs={tls.CA}",
            f"redis://127.0.0.1:{port}/0",
        ):
            stranger = connect(url)
            with pytest.raises(StorageUnavailable):
                await stranger.open()
            await stranger.close()


async def test_tls_with_a_certificate_of_ones_own() -> None:
    own = f"ssl_ca_certs={tls.CA}&ssl_certfile={tls.CLIENT}&ssl_keyfile={tls.CLIENT_KEY}"
    async with tls.before(valkey.shared().port, certificates=True) as port:
        storage = connect(f"rediss://127.0.0.1:{port}/0?{own}&ns={next(_names)}")
        await storage.open()
        await storage.enqueue(jobs("a", 1))
        await storage.close()
        stranger = connect(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tls.CA}")
        with pytest.raises(StorageUnavailable):
            await stranger.open()
        await stranger.close()


# --- URLs


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://h:26379",
        "redis+sentinel://h:26379/a/b",
        "redis+cluster://h:1/3",
        "redis+cluster://h:1,/",
        "redis+cluster://h:x",
        "redis+cluster://h:1?db=2",
        "redis+cluster://h:1?sentinel_password=x",
        "redis+sentinel://h:1/main?colour=red",
    ],
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        connect(url)


def test_an_unknown_option_names_those_that_exist() -> None:
    with pytest.raises(BadUrl, match=r"nss: no such option for this storage \(expected ns, shards, .*\bdb\b"):
        connect("redis://h?nss=shop")


def test_a_password_is_not_shown() -> None:
    with pytest.raises(BadUrl) as caught:
        connect("redis+cluster://me:secret@h:1,h:2/7")
    assert "secret" not in str(caught.value)
