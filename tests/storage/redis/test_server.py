"""Failures between Treadle and the server: it is down, loses its scripts, is full or too new; two programs share it."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from tests.servers import valkey
from tests.waiting import until
from treadle.core.limit_model import Limit
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.core.query_model import Query
from treadle.errors import BadUrl, SchemaTooNew, StorageDenied, StorageFull, StorageUnavailable
from treadle.storage import connect
from treadle.storage.redis import RedisStorage
from treadle.testing import HandClock
from treadle_testkit.proxy import Proxy
from treadle_testkit.shows import shows

_names = (f"s{os.getpid()}-{n}" for n in itertools.count())


def job(id: str, **options: object) -> NewJob:
    return NewJob(id=id, **{"task": "t", **options})  # type: ignore[arg-type]


def done(row: Record) -> Outcome:
    return Outcome(id=row.id, version=row.version, state=State.SUCCEEDED, attempt=1)


@pytest.fixture
def own() -> Iterator[str]:
    """A server for one test."""
    with valkey.Valkey() as server:
        yield server.url


async def test_scripts_that_the_server_lost_are_sent_again(storage: RedisStorage) -> None:
    """A restart or a fail-over empties the server's cache of scripts."""
    await storage.enqueue([job("a"), job("b")])
    await storage._pool.command("SCRIPT", "FLUSH")
    first = await storage.claim(Claim(worker="w#1"))
    await storage._pool.command("SCRIPT", "FLUSH")
    [settled], second = await storage.settle_claim([done(first.records[0])], Claim(worker="w#2"))
    assert (settled.status, [row.id for row in second.records]) == ("applied", ["b"])


async def test_the_clock_is_the_servers(storage: RedisStorage) -> None:
    async def now() -> float:
        seconds, micros = await storage._pool.command("TIME")
        return int(seconds) + int(micros) / 1e6

    before = await now()
    [row] = await storage.enqueue([job("a")])
    assert before <= row.created_at <= await now()
    assert await storage.get(["a"]) == [row]


async def test_idle_connections_that_died_are_replaced(storage: RedisStorage) -> None:
    """No caller gets an error, because every script may be repeated."""
    await storage.enqueue([job("a")])
    await storage._pool.command("CLIENT", "KILL", "TYPE", "normal")
    await storage.enqueue([job("b")])
    assert len((await storage.find(Query())).records) == 2


async def test_hints_arrive_again_after_a_lost_connection(storage: RedisStorage) -> None:
    other = RedisStorage(valkey.url(), ns=storage._tag[9:-1])
    await other.open()
    await other._pool.command("CLIENT", "KILL", "TYPE", "pubsub")
    assert storage._notifier is not None

    async def heard() -> set[str]:
        watch = asyncio.create_task(storage.watch(["queue:default"], 0.2))
        await asyncio.sleep(0)
        await other.enqueue([job(next(_names))])
        return await watch

    await until(heard, "a hint")
    await other.close()


async def test_an_open_without_a_server_raises() -> None:
    away = RedisStorage("redis://127.0.0.1:1/0")
    with pytest.raises(StorageUnavailable, match="127"):
        await away.open()
    await away.close()


async def test_a_server_that_stops() -> None:
    with valkey.Valkey() as server:
        storage = RedisStorage(server.url)
        await storage.open()
        await storage.enqueue([job("a")])
    with pytest.raises(StorageUnavailable):
        await storage.claim(Claim(worker="w#1"))
    with pytest.raises(StorageUnavailable):
        await storage.get(["a"])
    # No error. It may return the topic: with the connection that was lost, a hint may have been missed.
    assert await storage.watch(["queue:default"], 0.01) <= {"queue:default"}
    await storage.close()


async def test_a_wrong_password_is_not_shown(own: str) -> None:
    storage = RedisStorage(own.replace("redis://", "redis://me:secret@"))
    with pytest.raises(StorageDenied) as caught:
        await storage.open()
    assert "secret" not in str(caught.value)
    await storage.close()


async def test_a_full_server_stores_nothing_and_is_readable(own: str) -> None:
    """Nothing of the call is stored; reading still works."""
    storage = RedisStorage(own)
    await storage.open()
    await storage.enqueue([job("a")])
    await storage._pool.command("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(StorageFull):
        await storage.enqueue([job("b", payload="x" * 100_000), job("c", key="k")])
    [a, b] = await storage.get(["a", "b"])
    assert a is not None
    assert b is None
    await storage._pool.command("CONFIG", "SET", "maxmemory", "0")
    await storage._pool.command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StorageUnavailable, match="replica"):
        await storage.enqueue([job("d")])
    await storage.close()


async def test_a_full_server_finishes_what_runs_and_is_pruned(own: str) -> None:
    """Such a server was stuck: heartbeats were refused, so leases expired, and prune, which frees memory, was refused
    too."""
    clock = HandClock()
    storage = RedisStorage(own, now=clock)
    await storage.open()
    await storage.enqueue([job(f"old{n}", keep=60.0, payload="x" * 10_000) for n in range(100)])
    old = (await storage.claim(Claim(worker="w#1", limit=100))).records
    await storage.settle([done(row) for row in old])
    await storage.enqueue([job("kept"), job("ends"), job("large"), job("lost"), job("waits"), job("later", delay=50.0)])
    [kept, ends, large, lost] = (await storage.claim(Claim(worker="w#2", limit=4, lease=40.0))).records
    await storage._pool.command("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1mb")
    with pytest.raises(StorageFull):
        await storage.enqueue([job("new")])
    clock.advance(30)
    held = [LeaseRenewal(id=row.id, version=row.version) for row in (kept, ends, large)]
    assert (await storage.heartbeat(Presence(worker="w"), held, 40.0)).lost == set()
    clock.advance(31)
    assert [told.status for told in await storage.settle([done(ends)])] == ["applied"]
    with pytest.raises(StorageFull):
        await storage.settle([replace(done(large), result="x" * 1_000_000)])
    assert {row.id for row in (await storage.claim(Claim(worker="w#3", limit=9))).records} == {"lost", "waits", "later"}
    clock.advance(30)
    assert await storage.prune(500) == 100
    reopened = RedisStorage(own, now=clock)
    await reopened.open()
    await reopened.close()
    await storage._pool.command("CONFIG", "SET", "maxmemory", "0")
    assert [told.status for told in await storage.settle([done(large), done(lost)])] == ["applied", "stale"]
    await storage.close()


@pytest.mark.parametrize("how", ["window", "bucket", "slots"])
async def test_partitions_and_workers_leave_nothing_behind(how: str) -> None:
    """Each user has a rate. Once the rate would admit its full number again, `prune` deletes it. The same holds for
    workers."""
    clock = HandClock()
    storage = RedisStorage(valkey.url(), ns=next(_names), now=clock)
    await storage.open()
    before = set(await storage._pool.command("KEYS", f"{storage._tag}:*"))
    rule = Limit("user", slots=1) if how == "slots" else Limit("user", rate=2, per=60.0, how=how)  # type: ignore[arg-type]
    await storage.set_limits([rule])
    for turn in range(3):
        new = [job(f"{turn}-{n}", limits=((f"user:{n}", 1),), keep=60.0) for n in range(700)]
        await storage.enqueue([*new, job(f"{turn}-again", limits=(("user:7", 1),), keep=60.0)])
        rows = (await storage.claim(Claim(worker=f"w#{turn}", limit=1_000))).records
        assert len(rows) == (700 if how == "slots" else 701)
        await storage.settle(list(map(done, rows)))
        rows = (await storage.claim(Claim(worker=f"v#{turn}", limit=1_000))).records
        assert len(rows) == (1 if how == "slots" else 0)
        await storage.settle(list(map(done, rows)))
        await storage.heartbeat(Presence(worker=f"w{turn}"), [], 30.0)
        await storage.prune(1)
        [row] = await storage.enqueue([job(f"{turn}-third", limits=(("user:7", 1),), keep=60.0)])
        found = (await storage.claim(Claim(worker=f"u#{turn}"))).records
        assert [each.id for each in found] == ([row.id] if how == "slots" else [])
        clock.advance(70)
        found = found or (await storage.claim(Claim(worker=f"u2#{turn}"))).records
        await storage.settle(list(map(done, found)))
        clock.advance(200)
        await storage.prune(10_000)
    clock.advance(31 * 86_400)
    for _ in range(9):
        await storage.prune(10_000)
    left = set(await storage._pool.command("KEYS", f"{storage._tag}:*")) - before
    assert left == {f"{storage._tag}:{name}".encode() for name in ("rules", "facts", "facts:at")}
    await storage.close()


async def test_a_newer_schema_is_refused(storage: RedisStorage) -> None:
    await storage._pool.command("SET", f"{storage._tag}:schema", 9)
    other = RedisStorage(valkey.url(), ns=storage._tag[9:-1])
    with pytest.raises(SchemaTooNew):
        await other.open()
    await other.close()


async def test_a_cancelled_call_leaves_no_answer_behind(storage: RedisStorage) -> None:
    """The next caller must not read another caller's answer."""
    await storage.enqueue([job("a")])
    for _ in range(20):
        call = asyncio.create_task(storage.get(["a"]))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await storage.get(["none"]) == [None]


async def test_programs_are_kept_apart() -> None:
    one, two = (connect(f"{valkey.url()}?ns={next(_names)}") for _ in range(2))
    await one.open()
    await two.open()
    await one.enqueue([job("a")])
    assert await two.get(["a"]) == [None]
    await one.close()
    await two.close()


@shows("each Redis key has the hash tag of its namespace", "no Redis key of a job is left when the job is pruned")
async def test_every_key_has_the_tag_of_its_namespace(own: str) -> None:
    """So that a cluster keeps them on one node; and no key is left when all jobs are gone."""
    storage = RedisStorage(own, ns="x")
    await storage.open()
    await storage.set_limits([Limit("l", slots=1), Limit("r", rate=5, per=60)])
    specs = [
        job("a"),
        job("b", key="k", lane="x", limits=(("l", 1),)),
        job("c", after=("a",), limits=(("l", 1),)),
        job("d", delay=0.001, priority=5),
        job("e", root="a", parent="a", limits=(("r", 1),)),
        job("f", key="k", key_conflict="replace", aging=3.0),
        job("g", limits=(("l", 1),)),
    ]
    await storage.enqueue(specs)
    turns = itertools.count()

    async def all_ended() -> bool:
        claimed = await storage.claim(Claim(worker=f"w#{next(turns)}", queues=(("default", 9),), limit=9))
        renewals = [LeaseRenewal(row.id, row.version, (("s", "1"),)) for row in claimed.records]
        assert (await storage.heartbeat(Presence(worker="w"), renewals, 30)).lost == set()
        await storage.settle([replace(done(row), keep=0.0) for row in claimed.records])
        return all(row.state.final for row in (await storage.find(Query())).records)

    await until(all_ended, "the end of all jobs, one of which is due later by the server's clock")
    keys = {key.decode() for key in await storage._pool.command("KEYS", "*")}
    assert all(key.startswith("{treadle:x}:") for key in keys)
    rows = (await storage.find(Query())).records
    assert {row.state for row in rows} <= {State.SUCCEEDED, State.CANCELLED}
    later = RedisStorage(own, ns="x", now=lambda: max(row.expires_at or 0 for row in rows) + 1)
    await later.open()
    assert await later.prune(99) == len(specs)
    left = {key.decode().removeprefix("{treadle:x}:") for key in await storage._pool.command("KEYS", "*")}
    assert left == {"schema", "rules", "facts", "facts:at", "workers"}
    await later.close()
    await storage.close()


@pytest.mark.parametrize("url", ["redis://h/0?colour=red", "redis://h/x?db=y", "redis://h?ns=a{b"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        connect(url)


async def test_a_channel_without_waiters_is_left_and_joined_again(
    storage: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.storage.redis.notifier.IDLE", -1.0)
    notifier = storage._notifier
    assert notifier is not None

    async def left() -> bool:
        """Each message finds nobody waiting."""
        await storage.enqueue([job("a"), job(next(_names))])
        claimed = await storage.claim(Claim(worker=next(_names), queues=(("default", 9),), limit=9))
        await storage.settle([done(row) for row in claimed.records])
        return not notifier._listening

    async with asyncio.timeout(30):
        await until(left, "the server's answers to UNSUBSCRIBE")
        await storage.watch(["queue:default"], 0.1)  # joins it, and wakes once for nothing
        watch = asyncio.create_task(storage.watch(["queue:default"], 5))
        await asyncio.sleep(0)
        await storage.enqueue([job(next(_names))])
        assert await watch == {"queue:default"}


async def test_a_worker_without_waiters_leaves_the_channel_of_endings(storage: RedisStorage) -> None:
    """A worker that has just begun gets no message for each job that it settles; a later waiter for one of them is
    notified."""
    notifier = storage._notifier
    assert notifier is not None
    ends = notifier._channels["job"]

    async def run(id: str) -> None:
        await storage.enqueue([job(id)])
        claimed = await storage.claim(Claim(worker=next(_names), queues=(("default", 9),), limit=9))
        await storage.settle([done(row) for row in claimed.records])

    async with asyncio.timeout(30):
        await run("a")
        await until(lambda: ends not in notifier._listening, "the server's answer to UNSUBSCRIBE")
        assert notifier._channels[""] in notifier._listening
        await storage.watch(["job:b"], 5)  # it begins to listen, and wakes once without a reason
        watch = asyncio.create_task(storage.watch(["job:b"], 5))
        await asyncio.sleep(0)
        await run("b")
        assert await watch == {"job:b"}


async def test_a_listener_reconnects_when_its_server_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.storage.redis.notifier.PING", 3_600.0)  # moved by hand
    parts = urlsplit(valkey.url())
    assert parts.hostname is not None
    assert parts.port is not None
    async with Proxy(parts.hostname, parts.port) as proxy, asyncio.timeout(30):
        storage = RedisStorage(f"redis://127.0.0.1:{proxy.port}{parts.path}", ns=next(_names))
        await storage.open()
        notifier = storage._notifier
        assert notifier is not None
        first = notifier._connection
        for _ in range(3):  # each ping after a silence is answered
            notifier._look()
            notifier._look()
            await until(lambda: not notifier._silent, "the server's answer to PING")
        assert notifier._connection is first
        silence = proxy.silence(b"PING")
        notifier._look()
        notifier._look()
        await silence.happened()
        notifier._look()
        await until(lambda: notifier._connection not in (first, None), "another connection to the server")
        watch = asyncio.create_task(storage.watch(["queue:default"], 10))
        await until(lambda: notifier._listening, "the server's answer to SUBSCRIBE")
        await storage.enqueue([job(next(_names))])
        assert await watch == {"queue:default"}
        await storage.close()
