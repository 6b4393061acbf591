"""`treadle doctor` on a Redis or Valkey server: the data that each setting may lose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from redis import Redis

from tests.servers import cluster
from tests.servers.valkey import Valkey
from tests.waiting import until_blocking
from treadle import App, Limit
from treadle.cli.root import treadle
from treadle.core.model import Claim
from treadle.server.doctor.redis import judged
from treadle.storage.redis.health import RedisHealth


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey() as found:
        yield found


def doctor(server: Valkey) -> dict[str, tuple[str, str]]:
    return doctor_of(server.url)


def doctor_of(url: str) -> dict[str, tuple[str, str]]:
    """Run doctor. Return name -> (verdict, text)."""
    function_done = CliRunner().invoke(treadle, ["doctor", "--url", url, "--json"])
    return {check["name"]: (check["verdict"], check["text"]) for check in json.loads(function_done.stdout)}


def contents(server: Valkey) -> dict[str, bytes]:
    """Each key with its contents."""
    with Redis.from_url(server.url) as client:
        return {key: client.dump(key) for key in sorted(client.keys("*"))}  # type: ignore[type-var, misc, union-attr]


@pytest.mark.parametrize(
    ("settings", "name", "verdict", "says"),
    [
        ({}, "version", "ok", "Valkey|Redis"),
        ({"appendonly": "yes", "appendfsync": "always"}, "durability", "ok", "on the disk"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "durability", "ok", "a second"),
        ({"appendonly": "yes", "appendfsync": "no"}, "durability", "warn", "half a minute"),
        ({"appendonly": "no", "save": "900 1"}, "durability", "warn", "since the last snapshot"),
        ({"appendonly": "no", "save": ""}, "durability", "warn", "every job is lost"),
        ({"maxmemory-policy": "noeviction"}, "eviction", "ok", "drops nothing"),
        ({"maxmemory-policy": "volatile-lru"}, "eviction", "ok", "time to live"),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "0"}, "eviction", "warn", "if a maxmemory"),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "1gb"}, "eviction", "fail", "any number of jobs"),
        ({"maxmemory": "3mb", "maxmemory-policy": "noeviction"}, "memory", "warn|ok", "used"),
        ({"maxmemory": "0", "min-replicas-to-write": "0"}, "replicas", "ok", "none"),
    ],
)
def test_each_setting_of_a_server_has_a_verdict(
    server: Valkey, settings: dict[str, str], name: str, verdict: str, says: str
) -> None:
    for each, value in settings.items():
        server.do("CONFIG", "SET", each, value)
    found = doctor(server)[name]
    assert found[0] in verdict.split("|")
    assert any(word in found[1] for word in says.split("|"))


def test_a_replica_that_may_lag_is_a_warning() -> None:
    """A primary with a replica, with and without a limit on how far the replica may be behind; and the replica
    itself."""
    with (
        Valkey("--repl-diskless-sync-delay", "0") as primary,
        Valkey("--replicaof", f"127.0.0.1 {primary.port}") as replica,
    ):
        until_blocking(lambda: "state=online" in primary.info("replication").get("slave0", ""), "the replica comes")
        assert doctor(primary)["replicas"][0] == "warn"
        primary.do("CONFIG", "SET", "min-replicas-to-write", "1")
        assert doctor(primary)["replicas"][0] == "ok"
        assert doctor(replica)["storage"][0] == "fail"


@pytest.mark.parametrize(
    ("info", "settings", "wrong"),
    [
        ({"redis_version": "6.0.16"}, {}, "version"),
        ({"redis_version": "7.0.0"}, None, "settings"),
        ({"redis_version": "7.0.0", "aof_last_write_status": "err"}, None, "disk"),
        ({"redis_version": "7.0.0", "used_memory": "95", "maxmemory": "100"}, None, "memory"),
        ({"redis_version": "7.0.0", "role": "slave"}, {"maxmemory-policy": "noeviction"}, "replicas"),
        ({"redis_version": "7.0.0", "role": "master"}, {"min-replicas-to-write": "2"}, "replicas"),
    ],
)
def test_each_state_of_a_server_has_a_verdict(
    info: dict[str, str], settings: dict[str, str] | None, wrong: str
) -> None:
    """States that no server of these tests has."""
    found = {check.name: check.verdict for check in judged(RedisHealth(info, settings))}
    assert found[wrong] in ("warn", "fail")


def test_a_cluster_with_all_shards_on_one_node_is_a_warning() -> None:
    found = doctor_of(cluster.shared().url)["shards"]
    assert found[0] == "warn"
    assert "one node of the cluster" in found[1]
    found = doctor_of(f"{cluster.shared().url}?ns=doctor-shards&shards=12")["shards"]
    assert found == ("ok", "12, on 3 nodes")


@pytest.mark.parametrize("shards", [1, 4])
def test_a_look_changes_nothing_and_a_repair_corrects_the_counters(server: Valkey, shards: int) -> None:
    ns = f"looked-at-{shards}"
    url = f"{server.url}?ns={ns}" + (f"&shards={shards}" if shards > 1 else "")

    async def leak() -> None:
        async with App(url) as app:
            await app.limits.set(Limit("api", slots=2))
            await app.stub("t").options(limits={"api": 1}).enqueue()
            assert len((await app.storage.claim(Claim(worker="w#1", limit=1))).records) == 1
            await app.stub("t").options(limits={"api": 1}).enqueue()

    asyncio.run(leak())
    live = [key for key in server.do("KEYS", f"*{ns}*:live") if server.do("HEXISTS", key, "api")]
    for key in live:
        server.do("HINCRBY", key, "api", "2")
    before = contents(server)
    verdict, text = doctor_of(url)["slots"]
    assert (verdict, "api: 3 in use, 1 by its jobs" in text) == ("warn", True)
    assert contents(server) == before
    told = CliRunner().invoke(treadle, ["doctor", "--url", url]).stdout
    assert "`treadle doctor --repair` corrects them" in " ".join(told.split())
    told = CliRunner().invoke(treadle, ["doctor", "--url", url, "--repair"]).stdout
    assert "corrected the counter of the limit api: 3 in use, 1 by its jobs" in " ".join(told.split())
    assert [server.do("HGET", key, "api") for key in live] == ["1"]
    assert "slots" not in doctor_of(url)


def test_a_server_without_jemalloc() -> None:
    """Such a server gets slower as it fills; the distributions build theirs with jemalloc."""
    told = {
        allocator: {check.name: check.verdict for check in judged(RedisHealth({"mem_allocator": allocator}, None))}
        for allocator in ("libc", "jemalloc-5.3.0")
    }
    assert told["libc"]["allocator"] == "warn"
    assert "allocator" not in told["jemalloc-5.3.0"]
