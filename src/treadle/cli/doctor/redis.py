"""What `treadle doctor` says of a Redis or Valkey server: which of its settings may lose jobs, and which jobs.

Without it a cache's settings, which drop what is old when memory is short, would be found out by jobs that vanish.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlsplit

from msgspec.structs import replace

from treadle.cli.doctor.common import Check, fail, ok, warn
from treadle.cli.output import size

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
NEEDED = (6, 2)
FULL = 0.8  # of maxmemory: from here on a warning


class Health(Protocol):
    """What a server says of itself, as the storage hands it over."""

    @property
    def info(self) -> dict[str, str]: ...

    @property
    def settings(self) -> dict[str, str] | None: ...

    @property
    def version(self) -> tuple[int, ...]: ...

    @property
    def name(self) -> str: ...


@runtime_checkable
class Asked(Protocol):
    async def health(self) -> Sequence[Health]: ...

    async def recount(self) -> Sequence[tuple[str, int, int]]: ...


async def checks(url: str) -> list[Check]:
    """What the server of this storage says of itself; raises StorageError if it is away."""
    from treadle.storage import connect

    storage = connect(url)
    assert isinstance(storage, Asked)
    await storage.open()
    try:
        found = await storage.health()
        slots = await storage.recount()
    finally:
        await storage.close()
    shards = int(dict(parse_qsl(urlsplit(url).query)).get("shards", "1"))
    first, *others = found
    told = [*judged(first), *_spread(first, shards, len(found)), *_slots(slots)]
    for number, other in enumerate(others, 2):  # of these only what is amiss
        told += [replace(check, name=f"{check.name} {number}") for check in judged(other) if check.verdict != "ok"]
    return told


def judged(health: Health) -> Iterator[Check]:
    yield _version(health)
    settings = health.settings
    if settings is None:
        yield warn(
            "settings",
            "the server does not tell its settings (CONFIG is forbidden)",
            "look where it is rented: maxmemory-policy noeviction, and AOF with fsync",
        )
    else:
        yield _eviction(settings)
        yield _persistence(health, settings)
        yield _replicas(health, settings)
    yield _memory(health)
    yield from _allocator(health)
    yield from _trouble(health)


def _spread(health: Health, shards: int, nodes: int) -> Iterator[Check]:
    if health.info.get("cluster_enabled") != "1":
        return
    if shards == 1:
        yield warn(
            "shards",
            "1: all jobs of this namespace are on one node of the cluster",
            "if that is too slow: a new ns with ?shards=8, and `treadle move` to it",
        )
    else:
        yield ok("shards", f"{shards}, on {nodes} {'node' if nodes == 1 else 'nodes'}")


def _slots(corrected: Sequence[tuple[str, int, int]]) -> Iterator[Check]:
    if corrected:
        said = ", ".join(f"{key}: {before} in use, {now} by its jobs" for key, before, now in dict.fromkeys(corrected))
        yield warn(
            "slots",
            f"counters of limits that did not match their jobs were corrected ({said})",
            "calls broke off midway: check the rights of the server's user, upgrade all programs",
        )


def _version(health: Health) -> Check:
    if health.version < NEEDED:
        return fail("version", f"{health.name}", "6.2 or newer is needed, or any Valkey")
    return ok("version", health.name)


def _eviction(settings: dict[str, str]) -> Check:
    policy, most = settings.get("maxmemory-policy", "?"), settings.get("maxmemory", "0")
    if policy == "noeviction":
        return ok("eviction", "noeviction: when memory is full calls are refused, and nothing is dropped")
    if policy.startswith("volatile-"):
        return ok("eviction", f"{policy}: drops keys with a time to live only, and Treadle's have none")
    if most == "0":
        return warn(
            "eviction",
            f"{policy}, which drops keys once a maxmemory is set",
            "CONFIG SET maxmemory-policy noeviction, and in its file",
        )
    return fail(
        "eviction",
        f"{policy}: when memory is full it drops keys, and with one key any number of jobs",
        "CONFIG SET maxmemory-policy noeviction, and in its file; or a server that is no cache",
    )


def _persistence(health: Health, settings: dict[str, str]) -> Check:
    if settings.get("appendonly") == "yes":
        fsync = settings.get("appendfsync", "?")
        if fsync == "always":
            return ok("durability", "appendfsync always: what was answered is on the disk")
        if fsync == "everysec":
            return ok("durability", "appendfsync everysec: survives kill -9; losing the machine takes about a second")
        return warn(
            "durability",
            "appendfsync no: losing the machine takes up to the last half a minute",
            "CONFIG SET appendfsync everysec, or always",
        )
    if settings.get("save"):
        return warn(
            "durability",
            "snapshots only: when the server ends, all since the last one is gone "
            f"({health.info.get('rdb_changes_since_last_save', '?')} changes now)",
            "CONFIG SET appendonly yes, and in its file",
        )
    return warn(
        "durability",
        "nothing is written to disk: when the server ends, every job is gone",
        "CONFIG SET appendonly yes, and in its file",
    )


def _replicas(health: Health, settings: dict[str, str]) -> Check:
    info = health.info
    role, count = info.get("role", "?"), info.get("connected_slaves", "0")
    if role != "master":
        return fail(
            "replicas",
            f"this server is a replica of {info.get('master_host', '?')}",
            "give the URL of the primary, or redis+sentinel:// to have it found",
        )
    least = settings.get("min-replicas-to-write", "0")
    if count == "0":
        if least != "0":
            return fail(
                "replicas",
                f"none is connected, and min-replicas-to-write is {least}: every write is refused",
                "bring a replica back, or set min-replicas-to-write 0",
            )
        return ok("replicas", "none; if this machine is lost, so is what only its disk has")
    if least == "0":
        return warn(
            "replicas",
            f"{count}, fed after the answer: a fail-over may lose the last moments, and a primary "
            "that is cut off goes on taking jobs that will be thrown away",
            "min-replicas-to-write 1 and min-replicas-max-lag 10 bound that to some seconds",
        )
    lag = settings.get("min-replicas-max-lag", "?")
    return ok("replicas", f"{count}; {least} must be less than {lag} s behind, which a fail-over may lose")


def _memory(health: Health) -> Check:
    used, most = int(health.info.get("used_memory", 0)), int(health.info.get("maxmemory", 0))
    if most and used > FULL * most:
        return warn(
            "memory",
            f"{size(used)} of {size(most)} are used",
            "more memory, shorter retention, fewer results: a full server refuses new jobs",
        )
    return ok("memory", f"{size(used)} used" + (f" of {size(most)}" if most else ", no maxmemory"))


def _allocator(health: Health) -> Iterator[Check]:
    if health.info.get("mem_allocator", "").startswith("libc"):
        yield warn(
            "allocator",
            "libc: this server was built without jemalloc, and calls get dearer as it fills",
            "a build with jemalloc, as those of the distributions and the official images are",
        )


def _trouble(health: Health) -> Iterator[Check]:
    info = health.info
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield fail(
            "disk",
            "the server could not write its last snapshot or log",
            "is its disk full? It refuses writes until that is mended",
        )
    if info.get("loading") == "1":
        yield warn("loading", "the server is still reading its data", "wait")
