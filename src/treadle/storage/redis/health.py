"""Reads the server's version, memory, persistence and replicas, and names the settings by which it may lose jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from treadle.core.errors import StorageError, StorageUnavailable
from treadle.core.words import plural
from treadle.storage.optional_parts import Risk
from treadle.storage.redis.pool import Pool

SETTINGS: Final = (
    "maxmemory",
    "maxmemory-policy",
    "appendonly",
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "min-replicas-max-lag",
)


class RedisHealth(Struct, frozen=True):
    """The server's INFO, and the settings that decide which data survives; None if the server forbids reading them."""

    info: dict[str, str]
    settings: dict[str, str] | None

    def risks(self) -> tuple[Risk, ...]:
        """The settings by which this server may lose jobs."""
        return tuple(_risks(self.info, self.settings))

    @property
    def version(self) -> tuple[int, ...]:
        """The Redis version; for Valkey, the Redis version with which it is compatible."""
        parts = self.info.get("redis_version", "0").split(".")
        return tuple(int(part) for part in parts if part.isdecimal())

    @property
    def name(self) -> str:
        info = self.info
        if "valkey_version" in info:
            return f"Valkey {info['valkey_version']}"
        return f"Redis {info.get('redis_version', '?')}"


async def health(pool: Pool) -> RedisHealth:
    """Read them in two trips."""
    info: dict[str, str] = {}
    [answer] = await pool.commands(["INFO"])
    for line in answer.decode().splitlines():
        name, mark, value = line.partition(":")
        if mark:
            info[name] = value
    try:
        answers = await pool.commands(*(("CONFIG", "GET", name) for name in SETTINGS))
    except StorageUnavailable:
        raise
    except StorageError:  # many hosting services forbid CONFIG
        return RedisHealth(info, None)
    return RedisHealth(info, {pair[0].decode(): pair[1].decode() for pair in answers if len(pair) == 2})


def _risks(info: Mapping[str, str], settings: Mapping[str, str] | None) -> Iterator[Risk]:
    """The risks of a server with this INFO and these settings. None: the server forbids reading its settings, so only
    INFO is checked."""
    yield from _eviction(info)
    if settings is not None:
        yield from _persistence(info, settings)
    yield from _replicas(info, settings)
    if info.get("aof_last_write_status", "ok") != "ok" or info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield Risk(
            "fail",
            "disk",
            "the server could not write its last snapshot or log",
            "check whether its disk is full; the server refuses writes until it can save again",
        )


def _eviction(info: Mapping[str, str]) -> Iterator[Risk]:
    policy = info.get("maxmemory_policy", "noeviction")
    if policy == "noeviction" or policy.startswith("volatile-"):
        return
    if info.get("maxmemory", "0") == "0":
        yield Risk(
            "warn",
            "eviction",
            f"{policy}: the server would drop keys if a maxmemory were set",
            "CONFIG SET maxmemory-policy noeviction, and set it in the server's configuration file",
        )
        return
    dropped = int(info.get("evicted_keys", "0"))
    since = f" (it has dropped {dropped:,} since its start)" if dropped else ""
    yield Risk(
        "fail",
        "evicted" if dropped else "eviction",
        f"{policy}: when memory is full, the server drops keys, and any number of jobs with them{since}",
        "CONFIG SET maxmemory-policy noeviction, also in the configuration file; or use a server that is not a cache",
    )


def _persistence(info: Mapping[str, str], settings: Mapping[str, str]) -> Iterator[Risk]:
    if settings.get("appendonly") == "yes":
        if settings.get("appendfsync") not in ("always", "everysec"):
            yield Risk(
                "warn",
                "durability",
                "appendfsync no: a crash of the machine loses up to half a minute of changes",
                "CONFIG SET appendfsync everysec, or always",
            )
        return
    changes = info.get("rdb_changes_since_last_save", "?")
    yield Risk(
        "warn",
        "durability",
        "snapshots only: if the server crashes, all changes since the last snapshot are lost "
        f"({changes} changes at present)"
        if settings.get("save")
        else "the server writes nothing to disk: when it ends, every job is lost",
        "CONFIG SET appendonly yes, and set it in the server's configuration file",
    )


def _replicas(info: Mapping[str, str], settings: Mapping[str, str] | None) -> Iterator[Risk]:
    replicas = int(info.get("connected_slaves", "0"))
    if info.get("role", "master") != "master":
        yield Risk(
            "fail",
            "replicas",
            f"this server is a replica of {info.get('master_host', '?')}",
            "give the URL of the primary, or a redis+sentinel:// URL that finds it",
        )
    elif replicas and settings is not None and settings.get("min-replicas-to-write", "0") == "0":
        count = plural(replicas, "asynchronous replica")
        yield Risk(
            "warn",
            "replicas",
            f"{count}: a fail-over may lose the latest changes, and a primary that is cut off keeps accepting writes "
            "that will be discarded",
            "set min-replicas-to-write 1 and min-replicas-max-lag 10, which limit the loss to some seconds",
        )
