"""What the server says of itself: version, memory, persistence, replicas. Read only.

Without it nobody could tell, before it happens, that this server may drop jobs.
"""

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


class Health(Struct, frozen=True):
    """INFO as it came, and those settings that decide what survives; None where the server will not tell."""

    info: dict[str, str]
    settings: dict[str, str] | None

    @property
    def version(self) -> tuple[int, ...]:
        """Of Redis, whose versions count; a Valkey says which one it stands for."""
        parts = self.info.get("redis_version", "0").split(".")
        return tuple(int(part) for part in parts if part.isdecimal())

    @property
    def name(self) -> str:
        info = self.info
        if "valkey_version" in info:
            return f"Valkey {info['valkey_version']}"
        return f"Redis {info.get('redis_version', '?')}"


class Asked(Protocol):
    async def command(self, *words: Any) -> Any:
        """One plain command."""
        ...


async def health(pool: Asked) -> Health:
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
        except StorageError:  # many who rent servers out forbid it
            return Health(info, None)
        if len(found) == 2:
            settings[name] = found[1].decode()
    return Health(info, settings)
