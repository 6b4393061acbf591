"""Runs all checks that fit a storage: those of its file or server, of its rows, and of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.core.errors import StorageError
from treadle.core.redaction import shown
from treadle.server.doctor import common, leftovers, outbox, sqlite
from treadle.server.doctor.common import Check
from treadle.storage import mark_of, words

if TYPE_CHECKING:
    from treadle.app.core import AppCore


def of_file(url: str, file: Path, full: bool) -> list[Check]:
    """The checks of a SQLite file, without opening it as a storage. `full`: read every page of it."""
    return [*sqlite.checks(url, file, full), *leftovers.in_file(file)]


def is_broken(checks: list[Check]) -> bool:
    """Whether these checks of a file say that no storage can be opened on it."""
    return any(check.verdict == "fail" and check.name in ("file", "content") for check in checks)


async def of_contents(core: AppCore, has_tasks: bool, repair: bool = False) -> AsyncIterator[Check]:
    """The checks of an open storage: a move, its server, rows that faults left, the fleet.

    has_tasks  whether the app is the user's, so that its tasks are known
    repair     whether to repair what the checks of rows and of Redis can repair
    """
    place = shown(core.url) if core.url else "this storage"
    if (moved := words(await mark_of(core.storage), place)) is not None:
        yield common.fail("moved", moved, "restart the processes that still use it with that URL")
    async for check in of_server(core.url or "", repair):
        yield check
    if not core.storage.capabilities.queues:
        if (emptied := await core.emptied.look()) is not None:
            advice = "look for a flush, an eviction, a fail-over or a dropped schema at that time; restore a backup"
            yield common.warn("emptied", emptied, advice)
        async for check in leftovers.in_storage(core, repair):
            yield check
        yield await leftovers.kept_counts(core, repair)
    async for check in common.checks(core, has_tasks):
        yield check
    for check in common.bounds(await core.queues.stats()):
        yield check
    async for check in of_outbox(core):
        yield check


async def of_outbox(core: AppCore) -> AsyncIterator[Check]:
    """The checks of the outbox, if the app has one. Its storage need not exist yet."""
    if core.choice.outbox is not None:
        delivered_to = None if core.outbox_tasks is None else core.outbox_tasks.place
        async for check in outbox.checks(core.choice.outbox, delivered_to):
            yield check


async def examine(core: AppCore) -> AsyncGenerator[Check, None]:
    """All checks that change nothing, of an app that is open. A storage that does not answer is one of them."""
    url = core.url or ""
    place, file = shown(url) if url else "a storage of the app", sqlite.file_of(url)
    if file is not None:
        checks = await asyncio.to_thread(of_file, url, file, False)
        for check in checks:
            yield check
        if is_broken(checks):
            return
    try:
        await core.storage.get(["treadle:doctor"])
        yield common.ok("storage", f"{place} answers")
        async for check in of_contents(core, bool(core.tasks)):
            yield check
    except StorageError as error:
        yield common.fail("storage", f"{place}: {error}", "check whether the server of the storage is running")


async def of_server(url: str, repair: bool = False) -> AsyncIterator[Check]:
    """The checks of the storage's server, if it is PostgreSQL or Redis. The storage need not exist yet."""
    from treadle.server.doctor import postgres, redis

    if postgres.is_postgres(url):
        async for check in postgres.checks(url):
            yield check
    if url.partition("://")[0] in redis.SCHEMES:
        for check in await redis.checks(url, repair):
            yield check
