"""Checks a namespace when a storage opens it: its schema, its shards, and the rights of the user."""

from __future__ import annotations

from typing import Final

from treadle.core.errors import BadUrl, SchemaTooNew, StorageDenied, StorageError
from treadle.storage.redis.errors import RIGHTS
from treadle.storage.redis.notifier import Notifier
from treadle.storage.redis.reading import Reader

# Version of the layout of keys and rows. Raise it with each change that an older Treadle cannot read.
SCHEMA: Final = 1


def stored_schema(shards: int) -> str:
    """The value that a namespace with this number of shards keeps. One value, so that the first process sets both."""
    return str(SCHEMA) if shards == 1 else f"{SCHEMA}/{shards}"


def check_schema(stored: bytes, wanted: int, where: str, ns: str) -> int:
    """The stored version. Raises SchemaTooNew, and BadUrl for another number of shards than `wanted`."""
    version, _, shards = stored.decode().partition("/")
    if int(version) > SCHEMA:
        raise SchemaTooNew(int(version), SCHEMA)
    if int(shards or 1) != wanted:
        raise BadUrl(
            f"{where}: the namespace {ns!r} has shards={shards or 1}, found shards={wanted} in the URL; use "
            f"shards={shards or 1}, or move the jobs to another ns with `treadle storage move`"
        )
    return int(version)


async def check_rights(db: Reader, notifier: Notifier, where: str, ns: str) -> None:
    """Raise StorageDenied if the user lacks a right, because a script that fails halfway does not roll back."""
    answer = await db.call("rights")
    refused = [f"{answer[k].decode()} ({answer[k + 1].decode()})" for k in range(0, len(answer), 2)]
    if notifier.refusal is not None:
        refused.append(f"SUBSCRIBE ({notifier.refusal})")
    if refused:
        prefix = f"{{treadle:{ns}*"
        raise StorageDenied(
            f"{where}: the server refuses this user {', '.join(refused)}; expected the rights of "
            f"`ACL SETUSER <user> ~{prefix} &{prefix} {RIGHTS}`"
        )


async def restricts_scripts(db: Reader) -> bool:
    """Whether the server can restrict scripts to reading, as Redis 7 and every Valkey do."""
    try:
        await db.call("read_rows")
    except StorageError as error:
        if "unknown command" not in str(error).lower():
            raise
        return False
    return True
