"""Checks of a Redis or Valkey server for `treadle doctor`: eviction, durability, replicas, memory, limit counters.

With `repair` they correct counters of limits that do not match their jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qsl, urlsplit

from msgspec.structs import replace

from treadle.core.errors import SchemaTooOld
from treadle.core.words import size
from treadle.server.doctor.common import Check, fail, of_risk, ok, warn
from treadle.storage import Risk

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
NEEDED = (6, 2)
FULL = 0.8  # share of maxmemory above which to warn


class ServerFacts(Protocol):
    """The part of a server's INFO and CONFIG that the storage returns."""

    @property
    def info(self) -> dict[str, str]: ...

    @property
    def settings(self) -> dict[str, str] | None: ...

    def risks(self) -> Sequence[Risk]: ...

    @property
    def version(self) -> tuple[int, ...]: ...

    @property
    def name(self) -> str: ...


@runtime_checkable
class HasHealth(Protocol):
    async def health(self) -> Sequence[ServerFacts]: ...

    async def recount_slots(self, correct: bool = True) -> Sequence[tuple[str, int, int]]: ...

    async def relist(self, correct: bool = True) -> Sequence[tuple[str, int, int]]: ...


async def checks(url: str, repair: bool) -> list[Check]:
    """The checks of the storage's servers. Raises StorageError if one is unreachable. Without `repair` nothing is
    written; a namespace that does not exist yet has no counters to check."""
    from treadle.storage import connect

    storage = connect(url)
    assert isinstance(storage, HasHealth)
    slots: Sequence[tuple[str, int, int]] = ()
    lists: Sequence[tuple[str, int, int]] = ()
    try:
        with suppress(SchemaTooOld):
            await storage.open(look=not repair)
            slots = await storage.recount_slots(correct=repair)
            lists = await storage.relist(correct=repair)
        servers = await storage.health()
    finally:
        await storage.close()
    shards = int(dict(parse_qsl(urlsplit(url).query)).get("shards", "1"))
    first, *others = servers
    results = [*judged(first), *_spread(first, shards, len(servers))]
    used = [f"{key}: {before} in use, {now} by its jobs" for key, before, now in dict.fromkeys(slots)]
    results += _drifts("slots", "counters of limits do not match their jobs", "counter of the limit", used, repair)
    kept = [f"{name}: {before} in the list, {now} in the rows" for name, before, now in dict.fromkeys(lists)]
    results += _drifts("lists", "lists of jobs do not match their rows", "list of jobs", kept, repair)
    for number, other in enumerate(others, 2):  # for other servers, only problems are shown
        results += [replace(check, name=f"{check.name} {number}") for check in judged(other) if check.verdict != "ok"]
    return results


def judged(health: ServerFacts) -> Iterator[Check]:
    yield _version(health)
    risks, settings = list(health.risks()), health.settings
    yield from map(of_risk, risks)
    names = {"eviction" if risk.name == "evicted" else risk.name for risk in risks}
    if "eviction" not in names:
        yield _eviction(health.info)
    if settings is None:
        yield warn(
            "settings",
            "the server does not return its settings (CONFIG is forbidden)",
            "check with the provider of the server that it keeps an append-only file with fsync",
        )
    else:
        if "durability" not in names:
            yield _persistence(settings)
        if "replicas" not in names:
            yield _replicas(health.info, settings)
    yield _memory(health)
    yield from _allocator(health)
    yield from _trouble(health)


def _spread(health: ServerFacts, shards: int, nodes: int) -> Iterator[Check]:
    if health.info.get("cluster_enabled") != "1":
        return
    if shards == 1:
        yield warn(
            "shards",
            "1: all jobs of this namespace are on one node of the cluster",
            "if that is too slow, use `treadle storage move` to a new ns with ?shards=8",
        )
    else:
        yield ok("shards", f"{shards}, on {nodes} {'node' if nodes == 1 else 'nodes'}")


def _drifts(name: str, what: str, corrected: str, drifts: Sequence[str], repair: bool) -> Iterator[Check]:
    """The check for kept numbers that differ from the rows. `what` names them in the warning, `corrected` in the report
    of a repair."""
    if repair:
        for drift in drifts:
            yield ok("repaired", f"corrected the {corrected} {drift}")
    elif drifts:
        cure = "`treadle doctor --repair` corrects them; calls were interrupted: check the rights of the server's user"
        yield warn(name, f"{what} ({', '.join(drifts)})", cure)


def _version(health: ServerFacts) -> Check:
    if health.version < NEEDED:
        return fail("version", f"{health.name}", "use Redis 6.2 or newer, or any Valkey")
    return ok("version", health.name)


def _eviction(info: dict[str, str]) -> Check:
    policy = info.get("maxmemory_policy", "?")
    if policy.startswith("volatile-"):
        return ok("eviction", f"{policy}: the server drops only keys with a time to live, and Treadle's have none")
    return ok("eviction", f"{policy}: when memory is full, the server refuses calls and drops nothing")


def _persistence(settings: dict[str, str]) -> Check:
    if settings.get("appendfsync") == "always":
        return ok("durability", "appendfsync always: confirmed changes are on the disk")
    return ok(
        "durability",
        "appendfsync everysec: survives kill -9; a crash of the machine loses about a second of changes",
    )


def _replicas(info: dict[str, str], settings: dict[str, str]) -> Check:
    count, least = info.get("connected_slaves", "0"), settings.get("min-replicas-to-write", "0")
    if count == "0":
        if least != "0":
            return fail(
                "replicas",
                f"none is connected, and min-replicas-to-write is {least}: every write is refused",
                "start a replica, or set min-replicas-to-write 0",
            )
        return ok("replicas", "none; if this machine is lost, its jobs are lost")
    lag = settings.get("min-replicas-max-lag", "?")
    return ok("replicas", f"{count}; {least} must be less than {lag} s behind, and a fail-over may lose that time")


def _memory(health: ServerFacts) -> Check:
    used, most = int(health.info.get("used_memory", 0)), int(health.info.get("maxmemory", 0))
    if most and used > FULL * most:
        return warn(
            "memory",
            f"{size(used)} of {size(most)} are used",
            "a full server refuses new jobs: give it more memory, use a shorter retention, or store fewer results",
        )
    return ok("memory", f"{size(used)} used" + (f" of {size(most)}" if most else ", no maxmemory"))


def _allocator(health: ServerFacts) -> Iterator[Check]:
    if health.info.get("mem_allocator", "").startswith("libc"):
        yield warn(
            "allocator",
            "libc: this server was built without jemalloc, and its calls get slower as it fills",
            "use a build with jemalloc, such as those of the distributions and the official images",
        )


def _trouble(health: ServerFacts) -> Iterator[Check]:
    if health.info.get("loading") == "1":
        yield warn("loading", "the server is still reading its data", "wait")
