"""Reads the server's version, memory, persistence and replicas, to find settings that may lose jobs. Read only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from treadle.core.errors import StorageError, StorageUnavailable
from treadle.storage.optional_parts import Risk
from treadle.storage.redis.risks import risks

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
        return tuple(risks(self.info, self.settings))

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
    async def commands(self, *commands: Sequence[Any]) -> list[Any]:
        """Run plain commands in one trip."""
        ...


async def health(pool: CommandRunner) -> RedisHealth:
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
