"""`treadle migrate`: migrates the storage before a deployment, which the first new worker would do otherwise, and
creates the tables of the app's outbox, which nothing else creates."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from treadle.cli.output import OK, UNREACHABLE, data
from treadle.cli.target import Target, note_move, targeted
from treadle.core.errors import SchemaTooOld

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.outbox import Outbox

T = TypeVar("T")
DUE = UNREACHABLE  # the exit code of --check


@click.command()
@targeted
@click.option(
    "--check",
    is_flag=True,
    help="Change nothing, and exit with 3 if the storage or the outbox must be migrated first; rights to read are "
    "enough.",
)
def migrate(target: Target, check: bool) -> int:
    """Migrate the storage to the schema of this Treadle, or create it. Prints the old and the new schema number.

    With --app, this creates the tables of the app's outbox too, if it has one.
    """
    if check:
        due = [line for line in (_storage_due(target), _outbox_due(target)) if line is not None]
        for line in due:
            data(line)
        if not due:
            data(f"{target.url} needs no migration")
        return DUE if due else OK
    _migrate_storage(target)
    outbox = target.app.outbox
    if outbox is not None:
        created = _once(outbox, outbox.create)
        data(f"outbox {outbox.url} " + ("created" if created else "already has its tables"))
    return OK


def _migrate_storage(target: Target) -> None:
    before = _schema(target)

    async def opened(_: App) -> None:
        """Do nothing: opening the storage migrates it."""

    target.run(opened, make=True)
    after = _schema(target)
    if after is None:
        data(f"{target.url} is up to date")
    elif before == after:
        data(f"{target.url} already has schema {after}")
    elif before is None:
        data(f"{target.url} created, with schema {after}")
    else:
        data(f"{target.url} migrated from schema {before} to {after}")


def _storage_due(target: Target) -> str | None:
    """Why the storage needs a migration; None: it needs none. The storage is only read."""

    async def opened() -> None:
        async with target.app:  # opening it compares the schemas
            await note_move(target.app)

    try:
        with target.app._core.looking():
            asyncio.run(opened())
    except SchemaTooOld as error:
        return str(error)
    return None


def _outbox_due(target: Target) -> str | None:
    outbox = target.app.outbox
    if outbox is None or _once(outbox, outbox.version) is not None:
        return None
    return f"outbox {outbox.url} has no tables"


def _once(outbox: Outbox, act: Callable[[], Awaitable[T]]) -> T:
    async def work() -> T:
        try:
            return await act()
        finally:
            await outbox._close()

    return asyncio.run(work())


def _schema(target: Target) -> int | None:
    """The schema number, for storages that have one."""
    from treadle.server.doctor import postgres, sqlite

    url = target.app.url or ""
    if postgres.is_postgres(url):
        return asyncio.run(postgres.schema(url))
    return sqlite.schema(target.file) if target.file is not None else None
