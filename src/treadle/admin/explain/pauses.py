"""Finds out which operator paused a limit, and when: the storage keeps a pause, the audit log keeps the act."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from treadle.admin.audit import TASK, AuditEntry, entry_of
from treadle.core.query_model import Query
from treadle.storage.contract import Storage

ENTRIES: Final = 500  # newest entries of the audit log that are read


async def paused_by(storage: Storage, names: Collection[str]) -> Mapping[str, tuple[float, str]]:
    """When each of these limits was paused last, and by whom. It leaves out a limit whose last recorded act is another
    one: a program has paused it, or the entry is older than those that are read."""
    if not names:
        return {}
    pauses: dict[str, tuple[float, str] | None] = {}
    page = await storage.find(Query(task=TASK, limit=ENTRIES, scan=storage.capabilities.scan))
    for entry in map(entry_of, page.records):
        kind, _, verb = entry.act.partition(".")
        name = f"queue:{entry.target}" if kind == "queue" else entry.target
        if kind in ("queue", "limit") and name in names and name not in pauses and not entry.error:
            pauses[name] = _pause(entry, verb)
    return {name: pause for name, pause in pauses.items() if pause is not None}


def _pause(entry: AuditEntry, verb: str) -> tuple[float, str] | None:
    return (entry.at, entry.by) if verb == "pause" else None
