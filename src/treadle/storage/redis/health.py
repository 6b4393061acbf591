"""Reads the server's version, memory, persistence and replicas, to find settings that may lose jobs. Read only."""

from __future__ import annotations

from typing import Any, Final, Protocol

from msgspec import Struct

from treadle.errors import StorageError, StorageUnavailable

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


class CommandRunner(Protocol):
    async def command(self, *words: Any) -> Any:
        """Run one plain command."""
        ...


async def health(pool: CommandRunner) -> RedisHealth:
    info: dict[str, str] = {}
    for section in ("server", "memory", "persistence", "replication", "cluster"):
        for line in (await pool.command("INFO", section)).decode().splitlines():
            name, mark, value = line.partition(":")
            if mark:
                info[name] = value
    settings: dict[str, str] = {}
    for name in SETTINGS:
        try:
            found = await pool.command("CONFIG", "GET", name)
        except StorageUnavailable:
            raise
        except StorageError:  # many hosting services forbid CONFIG
            return RedisHealth(info, None)
        if len(found) == 2:
            settings[name] = found[1].decode()
    return RedisHealth(info, settings)
